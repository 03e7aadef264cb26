"""Where two runs part: the first calls whose inputs agree and whose results do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.compare.calls import FAR, NONE
from probe_nb.analysis.compare.compared import Compared
from probe_nb.analysis.compare.judge import DIVERGED
from probe_nb.analysis.compare.measures import MEASURES
from probe_nb.analysis.words import module as written
from probe_nb.analysis.words import number, plural, tensor
from probe_nb.terms import DIRECTIONS, Site, shown

if TYPE_CHECKING:
    import pandas as pd

Rows = NDArray[np.intp]
Phase = Literal["fed", "forward", "backward", "optimizer"]
PHASES: Final[tuple[Phase, ...]] = ("fed", "forward", "backward", "optimizer")
_NAMED: Final = 4
_AGREE: Final = 8.0
"""Sources agree up to so many times what rounding explains: a second divergence is independent
only of such."""

_WORDS: Final = {
    "exact": "",
    "histogram": "share of the values that changed by more than a power of two",
    "tensor": "norm of the difference over the norm",
    "element": "largest difference of two elements over the largest element",
}


@dataclass(frozen=True, eq=False)
class Divergence:
    """A place where two runs part.

    Attributes:
        phase: `forward`, `backward` or `optimizer`; `fed` if the difference was there before the
            model computed anything: its input, or what it began with.
        step: The step of the baseline.
        model, module, type, api: Where it arose. For values that differ between two calls that
            agree this is the module around both, whose own code lies between them.
        role, leaf: Those of the first row that differs.
        between: The last call in that module that agreed and the first that was given something
            else, where the difference arose in the module's own code; else None.
        measure: What it was seen in: a statistic, `histogram`, `tensor`, `element`, or `exact`.
        difference: The relative difference in that measure.
        explained: What rounding and the differences that came in explain of it.
        came_in: The largest relative difference of what the call was given.
        evidence: What there was to judge by.
        sentence: Where, when and how much.
        detail: What speaks for it.
        rows: The rows of this call in `comparison.df`, under their labels there.
        inherited: The rows that differ after it, which follow from it.
    """

    phase: Phase
    step: int
    model: str
    module: str
    type: str
    api: str
    role: str
    leaf: str
    between: tuple[str, str] | None
    measure: str
    difference: float
    explained: float
    came_in: float
    evidence: str
    sentence: str
    detail: str
    rows: pd.DataFrame = field(repr=False)
    inherited: pd.DataFrame = field(repr=False)

    def __repr__(self) -> str:
        """Say where it is and what followed, in a few lines."""
        return "\n".join([self.sentence, f"  {self.detail}", *self._then()])

    def _then(self) -> list[str]:
        names = list(dict.fromkeys(shown(str(name)) for name in self.inherited["module"]))
        if not names:
            return []
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        many = plural(len(self.inherited), "row")
        return [f"  inherited by {many}, in {', '.join(names[:_NAMED])}{more}"]


@dataclass(frozen=True)
class Origin:
    """A divergence as places of pairs.

    Attributes:
        first: The first pair that differs.
        pairs: All pairs of the same call, or of the same parameter, that do.
        again: Later pairs of the same site that do so of themselves.
    """

    phase: Phase
    first: int
    pairs: Rows
    again: int


def origins(of: Compared) -> list[Origin]:
    """Return where the runs part, in execution order: each phase's of its first step with any."""
    found: list[Origin] = []
    order, step = of.places.order, of.places.step
    suspects = np.flatnonzero(of.beyond > 1.0)
    suspects = suspects[np.lexsort((order[suspects], step[suspects]))]
    phase = _phases(of)[suspects]
    for code, name in enumerate(PHASES):
        mine = suspects[phase == code]
        if found and name in ("backward", "optimizer"):
            mine = mine[_stands_out(of, mine, min(order[each.first] for each in found))]
        if len(mine):
            found += _of_phase(of, name, mine)
    return sorted(found, key=lambda each: (step[each.first], order[each.first]))


def _stands_out(of: Compared, pairs: Rows, since: int) -> NDArray[np.bool_]:
    """Tell which differences those of earlier phases cannot explain, wherever these went."""
    places = of.places
    flowing = np.flatnonzero(places.are("input", "output") & (places.order >= since))
    level = np.nan_to_num(of.found.difference[flowing], nan=0.0, posinf=np.inf).max(initial=0.0)
    size = np.nan_to_num(np.fmax.reduce(of.found.apart[:, pairs], axis=0)) * of.flow.share[pairs]
    with np.errstate(invalid="ignore"):
        large = size > of.flow.gain[pairs] * level
    return large | (of.flow.came_in[pairs] == 0) | (places.order[pairs] < since)  # type: ignore[no-any-return]


def _phases(of: Compared) -> Rows:
    """Return the phase of each pair, as a place in `PHASES`."""
    return np.where(of.fed, 0, of.places.direction + 1)


def _of_phase(of: Compared, phase: Phase, suspects: Rows) -> list[Origin]:
    step = of.places.step
    now = suspects[step[suspects] == step[suspects[0]]]
    groups: dict[tuple[object, ...], list[int]] = {}
    for pair in now.tolist():
        groups.setdefault(_place(of, pair, phase), []).append(pair)
    found: list[Origin] = []
    for key, pairs in groups.items():
        if found and phase != "fed" and not _agrees(of, pairs[0]):
            continue
        same = sum(_place(of, pair, phase) == key for pair in suspects.tolist()[:_MANY])
        found.append(Origin(phase, pairs[0], np.array(pairs), same - len(pairs)))
    return found


_MANY: Final = 10_000


def _agrees(of: Compared, pair: int) -> bool:
    """Tell whether what came into a pair is no farther apart than rounding takes it."""
    came = float(np.nan_to_num(of.flow.came_in[pair]))
    return came <= _AGREE * float(of.found.tolerance.extreme[pair])


def _place(of: Compared, pair: int, phase: Phase) -> tuple[object, ...]:
    """Return what the origins of one place have in common.

    What both were fed is one place per role, and what an optimizer did is one place.
    """
    places, tree = of.places, of.tree
    site = places.sites[places.site[pair]]
    if phase == "fed":
        return (site.role,)
    if phase == "optimizer":
        return ()
    call = tree.of[pair]
    if call >= 0 and site.role in ("input", "grad_output"):
        parent = int(tree.parent[call])
        return int(tree.module[parent]) if parent >= 0 else int(places.module[pair]), "between"
    return int(places.module[pair]), site.api


# -- in words ------------------------------------------------------------------------------------


def told(of: Compared, found: list[Origin], frame: pd.DataFrame) -> Iterator[Divergence]:
    """Say of each origin where it is, with its rows and those that follow from it.

    Args:
        of: The comparison.
        found: What `origins` found in it.
        frame: `Comparison.df`, whose first rows are the pairs.
    """
    later = {phase: [o for o in found if o.phase == phase] for phase in PHASES}
    differs = np.flatnonzero(of.verdicts == DIVERGED)
    own = np.concatenate([each.pairs for each in found]) if found else np.empty(0, np.intp)
    for each in found:
        after = differs[_is_after(of, differs, each.first)]
        after = after[~np.isin(after, own)]
        if later[each.phase][0] is not each:
            after = after[:0]  # they are counted once, under the first of its phase
        yield _divergence(of, each, frame, after)


def _is_after(of: Compared, pairs: Rows, first: int) -> NDArray[np.bool_]:
    places = of.places
    same = places.process[pairs] == places.process[first]
    after: NDArray[np.bool_] = same & (places.order[pairs] > places.order[first])
    return after


def _divergence(of: Compared, origin: Origin, frame: pd.DataFrame, after: Rows) -> Divergence:
    pair = origin.first
    site = of.places.sites[of.places.site[pair]]
    measure = _measure(of, pair)
    place = MEASURES.index(measure)
    at, between = _where(of, pair, site)
    came = float(np.nan_to_num(of.flow.came_in[pair]))
    gain, own = float(of.flow.gain[pair]), float(of.flow.own[pair])
    explained = float(of.found.allowed[place, pair]) * own + gain * came
    share = float(of.flow.share[pair])
    difference = float(of.found.apart[place, pair])
    return Divergence(
        phase=origin.phase,
        step=int(of.places.step[pair]),
        model=at.model,
        module=at.module,
        type=at.type,
        api=at.api,
        role=site.role,
        leaf=site.leaf,
        between=between,
        measure=measure,
        difference=difference,
        explained=explained / share if share else np.inf,
        came_in=came,
        evidence=of.evidence,
        sentence=_sentence(of, origin, at, site, between),
        detail=_detail(of, origin, measure, difference, explained / share if share else np.inf),
        rows=frame.iloc[np.sort(_of_same_call(of, origin))],
        inherited=frame.iloc[after],
    )


def _of_same_call(of: Compared, origin: Origin) -> Rows:
    call = of.tree.of[origin.first]
    if call < 0:
        return origin.pairs
    return np.union1d(np.flatnonzero(of.tree.of == call), origin.pairs)


def _measure(of: Compared, pair: int) -> str:
    return MEASURES[int(of.found.worst()[pair])] if len(of) else "exact"


def _where(of: Compared, pair: int, site: Site) -> tuple[Site, tuple[str, str] | None]:
    """Return the site to name, and the calls between which the difference arose."""
    places, tree = of.places, of.tree
    call = int(tree.of[pair])
    parent = int(tree.parent[call]) if call >= 0 else -1
    if site.role not in ("input", "grad_output") or parent < 0:
        return site, None
    around = places.sites[places.site[tree.first[parent]]]
    before = _last_before(of, call, pair, backward=site.role == "grad_output")
    last = around.module if before < 0 else places.sites[places.site[tree.first[before]]].module
    return around, (last, site.module)


def _last_before(of: Compared, call: int, pair: int, *, backward: bool) -> int:
    """Return the call in the same parent that ended last before a pair, -1 if there is none."""
    tree, places = of.tree, of.places
    siblings = np.flatnonzero((tree.parent == tree.parent[call]) & (np.arange(tree.count) != call))
    if backward:
        ended = tree.latest(places.are("grad_input") & (tree.of >= 0), places.order)
    else:
        begun = np.where(tree.begin < FAR, tree.begin, NONE)  # one whose end was not recorded
        ended = np.where(tree.end < FAR, tree.end, begun)
    known = siblings[(ended[siblings] >= 0) & (ended[siblings] < places.order[pair])]
    return int(known[ended[known].argmax()]) if len(known) else -1


def _sentence(
    of: Compared, origin: Origin, at: Site, site: Site, between: tuple[str, str] | None
) -> str:
    step = int(of.places.step[origin.first])
    several = len({s.model for s in of.places.sites if s.model}) > 1
    name = written(at, several=several)
    kind = f" ({at.type})" if at.type and not at.api else ""
    more = len({int(p) for p in of.places.parameter[origin.pairs]}) - 1
    others = f" and {more:,} more" if more > 0 and origin.phase in ("fed", "optimizer") else ""
    if origin.phase == "fed":
        return f"not fed the same at step {step}: {name} ({tensor(site)}){others}"
    again = f", and again {plural(origin.again, 'time')}" if origin.again else ""
    if between is not None:
        one, other = (shown(each) for each in between)
        way = "before" if one == other or between[0] == at.module else f"between {one} and"
        return f"first diverges in the code of {name}{kind} at step {step}, {way} {other}{again}"
    return f"first diverges at {name}{kind} at step {step}: {tensor(site)}{others}{again}"


def _detail(of: Compared, origin: Origin, measure: str, difference: float, explained: float) -> str:
    pair = origin.first
    reason = of.reasons.texts[of.reasons.codes[pair]]
    came = float(np.nan_to_num(of.flow.came_in[pair]))
    if measure == "exact":
        what = reason or "values differ that rounding does not touch"
    else:
        what = (
            f"{_WORDS.get(measure, measure)} differs by {number(difference)} of the scale, "
            f"{number(difference / max(explained, 1e-300))} times what rounding explains"
        )
    if origin.phase == "fed":
        return f"{what} ({of.evidence})"
    given = (
        "what came in is the same" if came == 0 else f"what came in agrees within {number(came)}"
    )
    return f"{what}; {given} ({of.evidence})"


def direction_of(phase: str) -> str:
    """Return the direction of a phase."""
    return "forward" if phase == "fed" else phase


def check_direction(direction: str | None) -> None:
    """Refuse what is no direction.

    Raises:
        ConfigError: It is none.
    """
    from probe_nb.errors import ConfigError, closest

    if direction is not None and direction not in DIRECTIONS:
        near = closest(str(direction), DIRECTIONS)
        raise ConfigError(
            f"`direction` is {direction!r}.{near} Known: {', '.join(DIRECTIONS)}, or None for all."
        )
