"""Where two runs part: the first calls whose inputs agree and whose results do not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.compare.compared import Compared
from probe_nb.analysis.words import plural
from probe_nb.terms import DIRECTIONS, shown

if TYPE_CHECKING:
    import pandas as pd

Rows = NDArray[np.intp]
Phase = Literal["fed", "forward", "backward", "optimizer"]
PHASES: Final[tuple[Phase, ...]] = ("fed", "forward", "backward", "optimizer")
_NAMED: Final = 4
_AGREE: Final = 8.0
"""Sources agree up to so many times what rounding explains: a second divergence is independent
only of such."""


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
        again: In how many later steps the same site does so of itself.
    """

    phase: Phase
    first: int
    pairs: Rows
    again: int


def origins(of: Compared) -> list[Origin]:
    """Return where the runs part, in execution order: each phase's of its first step with any."""
    found: list[Origin] = []
    order, step = of.arose, of.places.step
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
    phases = np.where(of.set, PHASES.index("optimizer"), of.places.direction + 1)
    return np.where(of.fed, 0, phases)


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
        mine = [p for p in suspects.tolist()[:_MANY] if _place(of, p, phase) == key]
        again = len({int(number) for number in step[mine]}) - 1
        found.append(Origin(phase, pairs[0], np.array(pairs), again))
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
