"""Divergences in words, with the rows that speak for them and those that follow from them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.compare.calls import FAR, NONE
from probe_nb.analysis.compare.checksums import UNSURE
from probe_nb.analysis.compare.compared import Compared
from probe_nb.analysis.compare.flow import WHOLE
from probe_nb.analysis.compare.judge import DIVERGED
from probe_nb.analysis.compare.measures import MEASURES
from probe_nb.analysis.compare.parting import (
    PHASES,
    Divergence,
    Origin,
    check_direction,
    direction_of,
    origins,
)
from probe_nb.analysis.words import is_setting, number, plural, tensor
from probe_nb.analysis.words import module as written
from probe_nb.terms import Site, shown

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Divergence", "check_direction", "direction_of", "origins", "told"]

Rows = NDArray[np.intp]
_NAMED: Final = 4

_WORDS: Final = {
    "exact": "",
    "histogram": "share of the values that changed by more than a power of two",
    "tensor": "norm of the difference over the norm",
    "element": "largest difference of two elements over the largest element",
}


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
        one = _divergence(of, each, frame, after)
        kinds = _optimizers(of) if later["optimizer"][:1] == [each] else ""
        if kinds:
            said = f"the optimizers differ: {kinds}; {one.sentence}"
            one = dataclasses.replace(one, sentence=said)
        yield one


def _optimizers(of: Compared) -> str:
    """Return the classes of optimizers that differ; their settings have no counterpart to show."""
    one, other = (
        {
            (name.model, name.api): site.type
            for name, site in zip(side.names, side.sites, strict=False)
            if name.direction == "optimizer" and name.api
        }
        for side in (of.one, of.other)
    )
    pairs = ((kind, other.get(key, kind)) for key, kind in one.items())
    return ", ".join(dict.fromkeys(f"{a} against {b}" for a, b in pairs if a != b))


def _is_after(of: Compared, pairs: Rows, first: int) -> NDArray[np.bool_]:
    places = of.places
    same = places.process[pairs] == places.process[first]
    after: NDArray[np.bool_] = same & (of.arose[pairs] > of.arose[first])
    return after


def _divergence(of: Compared, origin: Origin, frame: pd.DataFrame, after: Rows) -> Divergence:
    pair = origin.first
    site = of.places.sites[of.places.site[pair]]
    place, times = _worst(of, pair)
    measure, difference = MEASURES[place], float(of.found.apart[place, pair])
    at, between = _where(of, pair, site)
    came = float(
        np.nan_to_num((of.flow.came_in_whole if place in WHOLE else of.flow.came_in)[pair])
    )
    explained = difference / times if times > 0 else np.inf
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
        explained=explained,
        came_in=came,
        evidence=of.evidence(pair),
        sentence=_sentence(of, origin, at, site, between),
        detail=_detail(of, origin, measure, difference, explained=explained, came=came),
        rows=frame.iloc[np.sort(_of_same_call(of, origin))],
        inherited=frame.iloc[after],
    )


def _of_same_call(of: Compared, origin: Origin) -> Rows:
    call = of.tree.of[origin.first]
    if call < 0:
        return origin.pairs
    return np.union1d(np.flatnonzero(of.tree.of == call), origin.pairs)


def _worst(of: Compared, pair: int) -> tuple[int, float]:
    """Return the measure that is farthest from what is explained, and how many times it is."""
    times = of.flow.times(of.found, np.array([pair]))[:, 0]
    place = int(np.nan_to_num(times, nan=-1.0, posinf=np.inf).argmax())
    if not times[place] > 0:
        place = int(of.found.worst()[pair])
    return place, float(np.nan_to_num(times[place], nan=0.0, posinf=np.inf))


def _where(of: Compared, pair: int, site: Site) -> tuple[Site, tuple[str, str] | None]:
    """Return the site to name, and the calls between which the difference arose."""
    places, tree = of.places, of.tree
    call = int(tree.of[pair])
    if site.role not in ("input", "grad_output") or call < 0 or of.fed[pair]:
        return site, None
    parent = int(tree.parent[call])
    before = _last_before(of, call, pair, backward=site.role == "grad_output")
    last = places.sites[places.site[tree.first[before]]] if before >= 0 else None
    if parent >= 0:
        around = places.sites[places.site[tree.first[parent]]]
    elif last is not None and last.model == site.model and site.module:
        around = _unrecorded(places.sites, site, last)
    else:
        return site, None
    return around, (around.module if last is None else last.module, site.module)


def _unrecorded(sites: list[Site], one: Site, other: Site) -> Site:
    """Return the module that two calls are in, of which the call was not recorded.

    What has numbered modules in it is a list, and has no code of its own.
    """
    parts = one.module.split(".")
    both = zip(parts[:-1], other.module.split("."), strict=False)
    count = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], both))
    while count and parts[count].isdigit():
        count -= 1
    path = ".".join(parts[:count])
    known = (s.type for s in sites if (s.model, s.module, s.api) == (one.model, path, ""))
    return dataclasses.replace(one, module=path, type=next(known, ""), api="")


def _last_before(of: Compared, call: int, pair: int, *, backward: bool) -> int:
    """Return the call in the same parent that ended last before a pair, -1 if there is none."""
    tree, places = of.tree, of.places
    beside = (tree.parent == tree.parent[call]) & (tree.moment == tree.moment[call])
    siblings = np.flatnonzero(beside & (np.arange(tree.count) != call))
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
        others += _also(of, origin)
        return f"not fed the same at step {step}: {name} ({tensor(site)}){others}"
    again = f", and again in {plural(origin.again, 'later step')}" if origin.again else ""
    if between is not None:
        one, other = (shown(each) for each in between)
        way = "before" if one == other or between[0] == at.module else f"between {one} and"
        return f"first diverges in the code of {name}{kind} at step {step}, {way} {other}{again}"
    return f"first diverges at {name}{kind} at step {step}: {tensor(site)}{others}{again}"


def _also(of: Compared, origin: Origin) -> str:
    """Name the other modules that were not fed the same."""
    sites = [of.places.sites[of.places.site[pair]] for pair in origin.pairs.tolist()]
    found = list(dict.fromkeys(shown(site.module) for site in sites))[1:]
    more = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    return f", also in {', '.join(found[:_NAMED])}{more}" if found else ""


def _doubt(of: Compared, origin: Origin) -> str:
    """Say that what the call was given may have been in another order."""
    places, first = of.places, origin.first
    given = places.are("param", "buffer") & (places.module == places.module[first])
    given[_of_same_call(of, origin)] = True
    given &= of.unsure & (places.order < places.order[first])
    given &= (places.process == places.process[first]) & (places.step == places.step[first])
    many = int(given.sum())
    return f", but of {plural(many, 'row')} of it {UNSURE}" if many else ""


def _detail(
    of: Compared,
    origin: Origin,
    measure: str,
    difference: float,
    *,
    explained: float,
    came: float,
) -> str:
    pair = origin.first
    reason = of.reasons.texts[of.reasons.codes[pair]]
    setting = _setting(of, pair)
    if setting:
        return setting
    explains = "rounding and what came in explain" if came > 0 else "rounding explains"
    if measure == "exact":
        what = reason or "values differ that rounding does not touch"
    else:
        what = f"{_WORDS.get(measure, measure)} differs by {number(difference)} of the scale, "
        times = number(difference / explained) if explained > 0 else ""
        what += f"{times} times what {explains}" if times else "of which rounding explains nothing"
    if origin.phase == "fed":
        return f"{what} ({of.evidence(pair)})"
    given = (
        "what came in is the same" if came == 0 else f"what came in agrees within {number(came)}"
    )
    return f"{what}; {given}{_doubt(of, origin)} ({of.evidence(pair)})"


def _setting(of: Compared, pair: int) -> str:
    """Return both values of a setting of an optimizer: it is chosen, and rounding plays no part."""
    site = of.places.sites[of.places.site[pair]]
    if not is_setting(site) or any(side["numel"][pair] != 1 for side in of.data):
        return ""
    one, other = (float(side["max"][pair]) for side in of.data)
    if one == other or not np.isfinite([one, other]).all():
        return ""
    short = number(one), number(other)
    one_said, other_said = short if short[0] != short[1] else (repr(one), repr(other))
    return f"{one_said} against {other_said}"
