"""Which record of one run belongs to which of the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.compare.naming import Mapping_, Name, Tensor, names_of
from probe_nb.errors import SelectionError
from probe_nb.store.columns import Columns, Filter
from probe_nb.store.table import ABSENT, DTYPES, Arrays
from probe_nb.terms import Site

Rows = NDArray[np.intp]
_FIT: Final = 2**62


@dataclass(eq=False)
class Side:
    """One of the two runs, or of the two ranks of one.

    Attributes:
        columns: Its run's.
        rows: The numbers of its records in the run, rising.
        data: The columns of these records, without histograms.
        names: What each site is called in both runs.
        ranks: The rank of each record, also where ranks do not count.
    """

    columns: Columns
    rows: Rows
    data: Arrays
    names: list[Name]
    ranks: NDArray[np.generic]

    @classmethod
    def of(cls, columns: Columns, names: list[Name], rank: int | None) -> Side:
        """Read a run, or one rank of it.

        Raises:
            SelectionError: No record is of this rank.
        """
        filters = [] if rank is None else [Filter("rank", lambda ranks: ranks == rank)]
        rows, data = columns.where(filters, tuple(DTYPES))
        ranks = data["rank"]
        if rank is not None:
            if not len(rows):
                raise SelectionError(f"No record of this run is of rank {rank}.")
            data = {**data, "rank": np.full(len(rows), ABSENT, ranks.dtype)}
        return cls(columns, rows, data, names, ranks)

    @property
    def sites(self) -> list[Site]:
        """What the codes in `site` stand for."""
        return self.columns.tables.sites.values

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.rows)


class Pairs(NamedTuple):
    """The places, in both sides, of what belongs together, and of what is alone."""

    baseline: Rows
    candidate: Rows
    only_baseline: Rows
    only_candidate: Rows


class Alike(NamedTuple):
    """How records are told to be of one call.

    Attributes:
        fuzzy: Calls count in the order in which they came, whatever their numbers are.
        shifted: Steps count in their order: the runs have no step in common.
        alone: One run has one rank and the other another: ranks do not count.
    """

    fuzzy: bool
    shifted: bool
    alone: bool


def sides(
    baseline: Columns,
    candidate: Columns,
    mapping: Mapping_,
    ranks: tuple[int | None, int | None] = (None, None),
) -> tuple[Side, Side]:
    """Read both runs, with one name for what is the same site."""
    both = (baseline, candidate)
    several = [len({s.model for s in each.tables.sites.values if s.model}) > 1 for each in both]
    names = [
        names_of(each.tables.sites.values, path, models=all(several))
        for each, path in ((baseline, str), (candidate, mapping.path))
    ]
    return Side.of(baseline, names[0], ranks[0]), Side.of(candidate, names[1], ranks[1])


def paired(one: Side, other: Side, alike: Alike, tensors: dict[Tensor, Tensor]) -> Pairs:
    """Return what belongs together, in the order of the baseline."""
    first, second = _keys(one, other, alike, tensors)
    by_first, by_second = np.argsort(first, kind="stable"), np.argsort(second, kind="stable")
    a, b = first[by_first], second[by_second]
    place = np.searchsorted(b, a)
    there = np.zeros(len(a), np.bool_)
    inside = place < len(b)
    there[inside] = b[place[inside]] == a[inside]
    left, right = by_first[there], by_second[place[there]]
    order = np.argsort(one.data["order"][left], kind="stable")
    rest = np.ones(len(b), np.bool_)
    rest[place[there]] = False
    alone = by_first[~there]
    return Pairs(left[order], right[order], np.sort(alone), np.sort(by_second[rest]))


def _keys(
    one: Side, other: Side, alike: Alike, tensors: dict[Tensor, Tensor]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a number for each record of both sides; no two of one side have the same."""
    codes: dict[Name, int] = {}
    for name in (*one.names, *other.names):
        codes.setdefault(name, len(codes))
    parts = [_parts(side, codes, alike) for side in (one, other)]
    if tensors:
        _rename(other, parts[1], codes, tensors)
    cut = len(one)
    key = np.zeros(cut + len(other), np.int64)
    limit = 1
    for values in zip(*parts, strict=True):
        key, limit = _joined(key, limit, np.concatenate(values))
    orders = np.concatenate([one.data["order"], other.data["order"]])
    key, _ = _joined(key, limit, _occurrence(key, orders, cut))
    return key[:cut], key[cut:]


def _parts(side: Side, codes: dict[Name, int], alike: Alike) -> list[NDArray[np.int64]]:
    data = side.data
    step = np.unique(data["step"], return_inverse=True)[1] if alike.shifted else data["step"]
    found = [np.array([codes[name] for name in side.names], np.int64)[data["site"]], step]
    if not alike.alone:
        found.append(data["rank"] + 1)
    found.append(data["recompute"])
    if not alike.fuzzy:
        found += [data["micro_step"], data["call"]]
    return [each.astype(np.int64) for each in found]


def _rename(
    side: Side, parts: list[Any], codes: dict[Name, int], tensors: dict[Tensor, Tensor]
) -> None:
    """Give single tensors the names and calls that a data mapping says."""
    call = side.data["call"]
    for of, to in tensors.items():
        sites = [code for code, name in enumerate(side.names) if name == of.name]
        there = np.isin(side.data["site"], sites) & (call == of.call)
        parts[0][there] = codes.setdefault(to.name, len(codes))
        if len(parts) > 3:  # noqa: PLR2004 - the number of the call is the last part, if any
            parts[-1][there] = to.call


def _joined(
    key: NDArray[np.int64], limit: int, values: NDArray[np.int64]
) -> tuple[NDArray[np.int64], int]:
    """Add a digit to numbers below `limit`; return them and their new limit."""
    if not len(values):
        return key, limit
    low, high = int(values.min()), int(values.max())
    size = high - low + 1
    if limit * size >= _FIT:
        key = np.unique(key, return_inverse=True)[1].astype(np.int64)
        limit = len(key)
    return key * size + (values - low), limit * size


def _occurrence(key: NDArray[np.int64], order: NDArray[np.int64], cut: int) -> NDArray[np.int64]:
    """Return how many records of the same key came before each on its side."""
    place = np.arange(len(key))
    second = place >= cut
    by = np.lexsort((order, second, key))
    key, second = key[by], second[by]
    new = np.append([True], (key[1:] != key[:-1]) | (second[1:] != second[:-1]))[: len(key)]
    begins = np.maximum.accumulate(np.where(new, place, 0))
    found = np.empty(len(key), np.int64)
    found[by] = place - begins
    return found
