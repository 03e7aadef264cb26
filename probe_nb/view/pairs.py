"""The pairs of a comparison, one row per site: the record of each that says most.

`Comparison.df` has a row per pair, so a training of many steps has the same site over and over. A
table to read has it once, with the record where a run parts from the other, else where it diverged
first, else where the difference is largest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.compare.align import Side
from probe_nb.analysis.compare.compared import Compared
from probe_nb.analysis.compare.judge import CLOSE, DIVERGED, ONLY_BASELINE, VERDICTS
from probe_nb.analysis.tally import cut
from probe_nb.store.table import ABSENT

if TYPE_CHECKING:
    from probe_nb.comparison import Comparison

Rows = NDArray[np.intp]
Floats = NDArray[np.float64]
WINDOW: Final = 64
"""Steps that a trend has room for; where there are more, neighbours share a place."""

_WEIGHT: Final = {
    "diverged": 4, "not_comparable": 3, "close": 2, "same": 1,
    "only_in_baseline": 0, "only_in_candidate": 0,
}  # fmt: skip
_WEIGHTS: Final = np.array([_WEIGHT[name] for name in VERDICTS])
_ORIGIN: Final = 2
_NOT_FINITE: Final = ("nan_count", "posinf_count", "neginf_count")


@dataclass(eq=False)
class Half:
    """One side of all entries.

    Attributes:
        side: Its records.
        at: Their places in it, by entry; -1 where it has none.
    """

    side: Side
    at: Rows

    def pick(self, name: str, rows: Rows, absent: float = np.nan) -> Any:
        """Return a column of some entries."""
        column, at = self.side.data[name], self.at[rows]
        if not len(column):
            return np.full(len(rows), absent)
        return np.where(at >= 0, column[np.maximum(at, 0)], absent)

    def histograms(self, rows: Rows) -> tuple[Rows, Any, Any]:
        """Return sizes, bins and counts of the histograms of some entries."""
        sizes = np.zeros(len(rows), np.int64)
        there = np.flatnonzero(self.at[rows] >= 0)
        wanted, place = np.unique(self.side.rows[self.at[rows[there]]], return_inverse=True)
        taken = self.side.columns.take(wanted, ("hist_size", "hist_bins", "hist_counts"))
        size = taken["hist_size"].astype(np.int64)
        sizes[there] = size[place]
        index, _ = cut((np.cumsum(size) - size)[place], size[place])
        return sizes, taken["hist_bins"][index], taken["hist_counts"][index]


class SitePairs:
    """A comparison, one row per site in execution order.

    Attributes:
        halves: Baseline and candidate.
        site: The row of each entry; entries are the rows of `Comparison.df`.
        shown: The entry that each row shows.
        verdict, step: Of each entry.
        origin: Of each entry the number of the divergence that it is, from 1; 0 if it is none.
        follows: The number of the divergence it follows from; 0 if it does not.
    """

    def __init__(self, comparison: Comparison) -> None:
        """Find what belongs to one site, and what to show of it."""
        self.comparison = comparison
        self.found: Compared = comparison._of  # noqa: SLF001 - read here, changed nowhere
        self.frame = comparison._frame  # noqa: SLF001
        pairs = self.found.pairs
        alone = [len(pairs.only_baseline), len(pairs.only_candidate)]
        nothing = [np.full(size, ABSENT, np.intp) for size in alone]
        self.halves = (
            Half(self.found.one, np.concatenate([pairs.baseline, pairs.only_baseline, nothing[1]])),
            Half(
                self.found.other,
                np.concatenate([pairs.candidate, nothing[0], pairs.only_candidate]),
            ),
        )
        self.verdict = self.frame["verdict"].cat.codes.to_numpy().astype(np.int64)
        self.step = self.frame["step"].to_numpy(np.int64)
        self.origin, self.follows = self._marks()
        place = _places(self.halves, len(pairs.baseline), self.step)
        self.site = self._sites(place)
        self.shown = self._chosen(place)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.shown)

    def _marks(self) -> tuple[Rows, Rows]:
        origin, follows = (np.zeros(len(self.verdict), np.int64) for _ in range(2))
        both = zip(self.comparison.divergences, self.comparison._origins, strict=True)  # noqa: SLF001
        for number, (each, pairs) in reversed(list(enumerate(both, 1))):  # the first one counts
            follows[each.inherited.index.to_numpy(np.intp)] = number
            origin[pairs.pairs] = number
        return origin, np.where(origin > 0, 0, follows)

    def _sites(self, place: Floats) -> Rows:
        """Number the sites by where they first ran."""
        codes: dict[Any, int] = {}
        found = np.full(len(self.verdict), ABSENT, np.int64)
        for half in self.halves:
            names = np.array([codes.setdefault(n, len(codes)) for n in half.side.names], np.int64)
            there = (half.at >= 0) & (found < 0)
            found[there] = names[half.side.data["site"][half.at[there]]]
        first = np.lexsort((place, self.step))
        known, begins = np.unique(found[first], return_index=True)
        rank = np.empty(len(codes), np.int64)
        rank[known[np.argsort(place[first][begins], kind="stable")]] = np.arange(len(known))
        ranked: Rows = rank[found]
        return ranked

    def _chosen(self, place: Floats) -> Rows:
        weight = _WEIGHTS[self.verdict] + _ORIGIN * (self.origin > 0)
        difference = np.nan_to_num(self.numbers("difference"))
        size = np.where(self.verdict == CLOSE, -difference, 0.0)
        order = np.lexsort((place, self.step, size, -weight, self.site))
        _, first = np.unique(self.site[order], return_index=True)
        chosen: Rows = order[first]
        return chosen

    def numbers(self, name: str) -> Floats:
        """Return a column of `Comparison.df` as floats, NaN where it has nothing."""
        return self.frame[name].to_numpy(np.float64, na_value=np.nan)

    @cached_property
    def beyond(self) -> Floats:
        """How many times each entry differs by more than is explained; NaN without a pair.

        NaN also for settings of an optimizer, of which rounding explains nothing.
        """
        whole = np.full(len(self.verdict), np.nan)
        whole[: len(self.found)] = np.where(self.found.chosen, np.nan, self.found.beyond)
        return whole

    def counted(self, which: NDArray[np.bool_]) -> Rows:
        """Count entries by row."""
        return np.bincount(self.site[which], minlength=len(self))

    @property
    def one_sided(self) -> NDArray[np.bool_]:
        """Tell which entries only one run has."""
        return (self.verdict >= ONLY_BASELINE) & (self.verdict <= ONLY_BASELINE + 1)

    @property
    def diverged(self) -> NDArray[np.bool_]:
        """Tell which entries diverged."""
        found: NDArray[np.bool_] = self.verdict == DIVERGED
        return found

    @cached_property
    def places_of_steps(self) -> Rows:
        """The place of each entry's step in a trend."""
        steps, place = np.unique(self.step, return_inverse=True)
        found: Rows = place if len(steps) <= WINDOW else place * WINDOW // len(steps)
        return found

    @property
    def trend_steps(self) -> Rows:
        """The step that each place of a trend begins with."""
        place = self.places_of_steps
        steps = np.full(int(place.max(initial=-1)) + 1, np.iinfo(np.int64).max)
        np.minimum.at(steps, place, self.step)
        return steps

    def trend(self, half: Half) -> Floats:
        """Return the largest magnitude per row and step; +Inf where it was not finite."""
        every = np.arange(len(self.verdict))
        value = np.asarray(half.pick("absmax", every), np.float64)
        value = np.where(self._bad(half, every), np.inf, value)
        width = int(self.places_of_steps.max(initial=-1)) + 1
        found = np.full((len(self), width), np.nan)
        there = ~np.isnan(value)
        np.fmax.at(found, (self.site[there], self.places_of_steps[there]), value[there])
        return found

    def first_bad(self, half: Half) -> Floats:
        """Return the first step in which each row was not finite, -1 if there is none."""
        bad = self._bad(half, np.arange(len(self.verdict)))
        first = np.full(len(self), np.inf)
        np.minimum.at(first, self.site[bad], self.step[bad].astype(np.float64))
        return np.where(np.isinf(first), -1.0, first)

    @staticmethod
    def _bad(half: Half, rows: Rows) -> NDArray[np.bool_]:
        found = np.zeros(len(rows), np.bool_)
        for name in _NOT_FINITE:
            found |= half.pick(name, rows, 0) > 0
        return found


def _places(halves: tuple[Half, Half], pairs: int, step: Rows) -> Floats:
    """Return where each entry stands in its step; what only one has, between its pairs."""
    every = np.arange(len(step))
    order, other = (half.pick("order", every).astype(np.float64) for half in halves)
    alone = halves[0].at < 0
    if pairs and alone.any():
        by = np.argsort(other[:pairs], kind="stable")
        order[alone] = np.interp(other[alone], other[:pairs][by], order[:pairs][by])
    else:
        order[alone] = other[alone]
    steps, which = np.unique(step, return_inverse=True)
    begins = np.full(len(steps), np.inf)
    np.minimum.at(begins, which, order)
    place: Floats = order - begins[which]
    return place
