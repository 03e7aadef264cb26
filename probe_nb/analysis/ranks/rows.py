"""Records of several ranks, those of the same moment laid together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.store.columns import Columns, Filter
from probe_nb.terms import COUNTS, Site

_AT: Final = ("step", "micro_step", "call", "backward", "site")
_EXACT: Final = ("shape", "dtype", "numel", "min", "max", "absmax", *COUNTS, "checksum")
_SUMS: Final = {"mean": ("absmax", 1e-6), "std": ("std", 1e-5), "l2": ("l2", 1e-5)}
"""What is a sum, and how exact it is: kernels add in different orders, and a process changes to the
compiled one as soon as that is ready. Of what, and which share of it."""

NEEDED: Final = (*_AT, "rank", "order", "device", "status", *_EXACT, *_SUMS)

Ints = NDArray[np.int64]
Partition = tuple[tuple[int, ...], ...]
"""Ranks that agree, together; the largest part first."""


class Rows:
    """Measured records of some sites, in the order in which they were recorded.

    Attributes:
        sites: What the codes in `site` stand for.
        rows: Their numbers in the run.
        data: Their columns.
        moment: Which are of the same moment on different ranks have the same number.
        print: Which of one moment have the same numbers have the same number.
    """

    def __init__(self, columns: Columns, wanted: Callable[[Site], bool]) -> None:
        """Read the records of the sites that are wanted."""
        self.sites = columns.tables.sites.values
        codes = [code for code, site in enumerate(self.sites) if wanted(site)]
        filters = [
            Filter("site", lambda values: np.isin(values, codes)),
            Filter("rank", lambda values: values >= 0),
            Filter("nan_count", lambda values: values >= 0),
            Filter("numel", lambda values: values > 0),
        ]
        self.rows, self.data = columns.where(filters, NEEDED)
        kinds = [name.partition(":")[0] for name in columns.tables.devices.values]
        known = {kind: code for code, kind in enumerate(dict.fromkeys(kinds))}
        self.kind = np.array([*(known[kind] for kind in kinds), -1])[self.data["device"]]
        self.moment = self._moments()
        self._exact = _numbered([self._plain(name) for name in _EXACT])
        self.print = _numbered([self._exact, *map(self._clusters, _SUMS)])

    def __len__(self) -> int:
        """Return their number."""
        return len(self.rows)

    def _plain(self, name: str) -> NDArray[np.float64]:
        """Return a column in which equal values have equal bits."""
        values = self.data[name].astype(np.float64) + 0.0  # -0 is 0
        return np.where(np.isnan(values), np.nan, values)

    @cached_property
    def _sums(self) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """The sums, and how far two of the same numbers can be apart."""
        known = {name: np.nan_to_num(self.data[name]) for name in (*_SUMS, "absmax")}
        return {name: (known[name], share * known[of]) for name, (of, share) in _SUMS.items()}

    def _clusters(self, name: str) -> Ints:
        """Return which sums of one moment are the same, as far as can be told."""
        values, apart = self._sums[name]
        by = np.lexsort((values, self.moment))
        new = np.diff(self.moment[by], prepend=-1) > 0
        new[1:] |= np.diff(values[by]) > apart[by][1:]
        found = np.empty(len(by), np.int64)
        found[by] = np.cumsum(new)
        return found

    def equal(self, one: int, other: int) -> bool:
        """Tell whether two records have the same numbers, at whatever moment they were taken."""
        sums = self._sums.values()
        near = all(abs(values[one] - values[other]) <= apart[one] for values, apart in sums)
        return near and bool(self._exact[one] == self._exact[other])

    def _moments(self) -> Ints:
        at = [self.data[name] for name in _AT]
        key = _numbered([*at, self.data["rank"]])
        by = np.lexsort((self.data["order"], key))
        begins = np.flatnonzero(np.diff(key[by], prepend=-1))
        nth = np.empty(len(key), np.int64)
        lengths = np.diff(np.append(begins, len(key)))
        nth[by] = np.arange(len(key)) - np.repeat(begins, lengths)
        return _numbered([*at, nth])

    def site(self, place: int) -> Site:
        """Return where a record was taken."""
        return self.sites[int(self.data["site"][place])]

    def differing(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Tell of each record whether ranks differ at its moment, and whether they can be compared.

        They cannot where one has a record alone, or where their devices are of different kinds:
        the last bit of a statistic may be another there.
        """
        number = int(self.moment.max(initial=-1)) + 1
        spans = [_span(self.moment, each, number) for each in (self.print, self.kind)]
        ranks = _span(self.moment, self.data["rank"].astype(np.int64), number)
        compared = (spans[1][0] == spans[1][1]) & (ranks[0] != ranks[1])
        differ = compared & (spans[0][0] != spans[0][1])
        return differ[self.moment], compared[self.moment]

    def parted(self, chosen: NDArray[np.bool_]) -> Partition:
        """Return which ranks agree in all of the chosen records."""
        signs: dict[int, list[tuple[int, int]]] = {}
        for place in np.flatnonzero(chosen).tolist():
            rank = int(self.data["rank"][place])
            sign = int(self.moment[place]), int(self.print[place])
            signs.setdefault(rank, []).append(sign)
        parts: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for rank in sorted(signs):
            parts.setdefault(tuple(sorted(signs[rank])), []).append(rank)
        return tuple(sorted(map(tuple, parts.values()), key=lambda part: (-len(part), part)))


def odd(parts: Partition) -> tuple[int, ...]:
    """Return the ranks that are not as most are; none where there are no most.

    >>> odd(((0, 2, 3), (1,))), odd(((0,), (1,)))
    ((1,), ())
    """
    if len(parts) < 2 or len(parts[0]) == len(parts[1]):  # noqa: PLR2004 - two that differ
        return ()
    return tuple(sorted(rank for part in parts[1:] for rank in part))


def _span(groups: Ints, values: Ints, number: int) -> tuple[Ints, Ints]:
    """Return the smallest and the largest value of each group."""
    low = np.full(number, np.iinfo(np.int64).max)
    high = np.full(number, np.iinfo(np.int64).min)
    np.minimum.at(low, groups, values)
    np.maximum.at(high, groups, values)
    return low, high


def _numbered(columns: Sequence[NDArray[Any]]) -> Ints:
    """Return a number for each row, equal where all columns are."""
    key = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values = np.unique(column, return_inverse=True, equal_nan=True)[1].astype(np.int64)
        key = np.unique(key * (int(values.max(initial=0)) + 1) + values, return_inverse=True)[1]
    return key.astype(np.int64)
