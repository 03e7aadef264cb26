"""Append-only columns: one block per drain, joined when somebody asks."""

from __future__ import annotations

import threading

import numpy as np

from probe_nb.exponents import Histogram
from probe_nb.store.table import ABSENT, DTYPES, Arrays, Tables
from probe_nb.terms import COUNTS

HISTOGRAM = ("hist_size", "hist_bins", "hist_counts")
"""A histogram column is ragged: `hist_size` bins per row, laid end to end in the other two."""


def empty_block() -> Arrays:
    """Return a block of no rows, with every column in its dtype."""
    block: Arrays = {name: np.empty(0, dtype) for name, dtype in DTYPES.items()}
    block["hist_size"] = np.empty(0, np.uint16)
    block["hist_bins"] = np.empty(0, np.uint16)
    block["hist_counts"] = np.empty(0, np.uint32)
    return block


class Columns:
    """The records of one run, column by column, with the tables that their codes refer to.

    Cost: at most 200 bytes per record, plus 6 bytes per non-empty histogram bin.
    """

    def __init__(self, tables: Tables | None = None) -> None:
        """Start empty."""
        self.tables = tables or Tables()
        self._blocks: list[Arrays] = []
        self._starts: np.ndarray | None = None
        self._rows = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of records."""
        return self._rows

    def append(self, block: Arrays) -> None:
        """Add a block: every column of `DTYPES` and of `HISTOGRAM`."""
        rows = len(block["step"])
        if not rows:
            return
        with self._lock:
            self._blocks.append(block)
            self._rows += rows

    def arrays(self) -> Arrays:
        """Return all columns, joined; cheap when nothing was added since the last time."""
        with self._lock:
            if not self._blocks:
                return empty_block()
            if len(self._blocks) > 1:
                names = self._blocks[0].keys()
                joined = {n: np.concatenate([b[n] for b in self._blocks]) for n in names}
                self._blocks = [joined]
                self._starts = None
            return self._blocks[0]

    def tail(self, first: int) -> Arrays:
        """Return the blocks that begin at row `first` or later, joined (for live views).

        `first` must be a block border, such as an earlier `len(columns)`.
        """
        with self._lock:
            blocks, row = [], self._rows
            for block in reversed(self._blocks):
                if row <= first:
                    break
                row -= len(block["step"])
                blocks.append(block)
        if row > first:
            raise IndexError(first)
        if row < first:
            return {name: self._cut(name, first) for name in (*DTYPES, *HISTOGRAM)}
        if not blocks:
            return empty_block()
        if len(blocks) == 1:
            return blocks[0]
        blocks.reverse()
        return {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}

    def _cut(self, name: str, first: int) -> np.ndarray:
        """Return one column from row `first` on, after the blocks were joined."""
        whole = self.arrays()
        if name in ("hist_bins", "hist_counts"):
            return whole[name][int(whole["hist_size"][:first].sum(dtype=np.int64)) :]
        return whole[name][first:]

    def histogram(self, row: int) -> Histogram | None:
        """Return the histogram of one record, None if it has none."""
        whole = self.arrays()
        if self._starts is None or len(self._starts) != self._rows + 1:
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
