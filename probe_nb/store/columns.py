"""Append-only columns: one block per drain, joined when somebody asks."""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

import numpy as np

from probe_nb.exponents import Histogram
from probe_nb.store.table import ABSENT, DTYPES, Arrays, Tables
from probe_nb.terms import COUNTS

HISTOGRAM = ("hist_size", "hist_bins", "hist_counts")
"""A histogram column is ragged: `hist_size` bins per row, laid end to end in the other two."""


_JOINED: Final = 16
_LARGE: Final = 65_536
_WHOLE: Final = 99
"""So many blocks of one level are joined, up to so many rows; the level of what nobody joins."""


class _Block(NamedTuple):
    """Some rows that were added one after the other."""

    first: int
    end: int
    level: int
    columns: Arrays

    def since(self, row: int) -> Arrays:
        """Return the columns from this row of the run on."""
        skip = row - self.first
        if skip <= 0:
            return self.columns
        bins = int(self.columns["hist_size"][:skip].sum(dtype=np.int64))
        ragged = dict.fromkeys(("hist_bins", "hist_counts"), bins)
        return {name: column[ragged.get(name, skip) :] for name, column in self.columns.items()}


def _join(blocks: list[Arrays]) -> Arrays:
    if len(blocks) == 1:
        return blocks[0]
    return {name: np.concatenate([each[name] for each in blocks]) for name in blocks[0]}


def empty_block() -> Arrays:
    """Return a block of no rows, with every column in its dtype."""
    block: Arrays = {name: np.empty(0, dtype) for name, dtype in DTYPES.items()}
    block["hist_size"] = np.empty(0, np.uint16)
    block["hist_bins"] = np.empty(0, np.uint16)
    block["hist_counts"] = np.empty(0, np.uint32)
    return block


class Columns:
    """The records of one run, column by column, with the tables that their codes refer to.

    Cost: at most 200 bytes per record, plus 6 bytes per non-empty histogram bin. There is no
    budget: they stay in memory until the run is dropped.
    """

    def __init__(self, tables: Tables | None = None) -> None:
        """Start empty."""
        self.tables = tables or Tables()
        self._blocks: list[_Block] = []  # the one place of truth: an interrupt leaves it whole
        self._starts: np.ndarray | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of records."""
        blocks = self._blocks
        return blocks[-1].end if blocks else 0

    def append(self, block: Arrays) -> None:
        """Add a block: every column of `DTYPES` and of `HISTOGRAM`."""
        rows = len(block["step"])
        if not rows:
            return
        with self._lock:
            first = len(self)
            self._blocks.append(_Block(first, first + rows, 0, block))
            self._merge()

    def _merge(self) -> None:
        """Join blocks that are small: forty arrays of a few numbers are more header than number."""
        while len(last := self._blocks[-_JOINED:]) == _JOINED:
            rows = last[-1].end - last[0].first
            if any(each.level != last[0].level for each in last) or rows > _LARGE:
                return
            level = last[0].level + 1
            joined = _Block(last[0].first, last[-1].end, level, _join([b.columns for b in last]))
            self._blocks[-_JOINED:] = [joined]

    def arrays(self) -> Arrays:
        """Return all columns, joined; cheap when nothing was added since the last time."""
        with self._lock:
            if not self._blocks:
                return empty_block()
            if len(self._blocks) > 1:
                joined = _join([each.columns for each in self._blocks])
                self._blocks = [_Block(0, len(self), _WHOLE, joined)]
            return self._blocks[0].columns

    def tail(self, first: int) -> Arrays:
        """Return the columns from row `first` on, such as an earlier `len(columns)`."""
        with self._lock:
            if not 0 <= first <= len(self):
                raise IndexError(first)
            blocks = [each.since(first) for each in self._blocks if each.end > first]
        return _join(blocks) if blocks else empty_block()

    def histogram(self, row: int) -> Histogram | None:
        """Return the histogram of one record, None if it has none."""
        whole = self.arrays()
        if self._starts is None or len(self._starts) != len(whole["step"]) + 1:
            sizes = whole["hist_size"].astype(np.int64)
            self._starts = np.concatenate([[0], np.cumsum(sizes)])
        counts = {name: int(whole[name][row]) for name in COUNTS}
        if counts["zero_count"] == ABSENT:
            return None
        cut = slice(self._starts[row], self._starts[row + 1])
        found = Histogram(
            whole["hist_bins"][cut].astype(np.int64),
            whole["hist_counts"][cut].astype(np.int64),
            counts["zero_count"],
            counts["nan_count"],
            counts["posinf_count"],
            counts["neginf_count"],
        )
        there = len(found.bins) or found.total == whole["numel"][row]
        return found if there else None  # under a loss scale bins cannot always be kept
