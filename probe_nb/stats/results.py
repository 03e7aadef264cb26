"""Where results wait for the drain: rows of plain memory, which compiled code can write.

A row is 16 words of 8 bytes: six statistics as float64, then integers, as the names below number
them. The filled bins of all rows lie end to end beside them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.exponents import BINS
from probe_nb.stats.numbers import Numbers
from probe_nb.terms import COUNTS, STATISTICS

ROWS: Final = 1024
"""Rows per chunk. Its bins are memory that is reserved, and taken only where it is written."""

WORDS: Final = 16
FINITE: Final = len(STATISTICS)
FIRST_COUNT: Final = FINITE + 1
FILLED: Final = FIRST_COUNT + len(COUNTS)
START: Final = FILLED + 1

NUMBERS, VALUES, CURSOR = range(3)
"""What a chunk's header holds: where its bins lie, and how many are filled so far."""

LOST: Final = -1
"""A count in a row whose numbers a device has not given back."""


@dataclass
class Drained:
    """The results of one drain, row `i` belonging to result `i`.

    Shapes: statistics (n, 6), counts (n, 6), sizes and starts (n,). The bins of a result are
    `sizes` many from `starts` on, in `bins` and `values`.
    """

    statistics: NDArray[np.float64]
    counts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    starts: NDArray[np.int64]
    bins: NDArray[np.uint16]
    values: NDArray[np.int64]


class Chunk:
    """A number of rows, and the memory for as many histograms."""

    def __init__(self, before: int = 0) -> None:
        """Reserve the memory; most of it is never touched. `before` rows lie in other chunks."""
        self.before = before
        self.rows = np.empty((ROWS, WORDS), np.float64)
        self.words = self.rows.view(np.int64)
        self.bins = np.empty(ROWS * BINS, np.uint16)
        self.values = np.empty(ROWS * BINS, np.int64)
        self.header = np.zeros(3, np.int64)
        self.header[NUMBERS], self.header[VALUES] = self.bins.ctypes.data, self.values.ctypes.data
        self.head: int = self.header.ctypes.data
        self.first: int = self.rows.ctypes.data
        self.used = 0

    def clear(self) -> None:
        """Begin anew."""
        self.used = 0
        self.header[CURSOR] = 0

    def reserve(self) -> int:
        """Take the next row; until it is filled its numbers are lost."""
        row, self.used = self.used, self.used + 1
        self.rows[row, :FINITE] = math.nan
        self.words[row, FINITE:] = LOST
        self.words[row, FILLED:] = 0
        return row

    def fill(self, row: int, numbers: Numbers) -> None:
        """Write the numbers of a row that was reserved."""
        self.rows[row, :FINITE] = numbers.statistics()
        self.words[row, FINITE] = numbers.finite
        self.words[row, FIRST_COUNT:FILLED] = numbers.counts()
        filled = numbers.bins.nonzero()[0]
        start = int(self.header[CURSOR])
        end = start + len(filled)
        self.bins[start:end], self.values[start:end] = filled, numbers.bins[filled]
        self.words[row, FILLED], self.words[row, START] = len(filled), start
        self.header[CURSOR] = end

    def add_zeros(self, row: int, zeros: int) -> None:
        """Take in the zeros that a sparse tensor does not store; they have no bin."""
        numbers = self.numbers(row)
        numbers.add_zeros(zeros)
        self.rows[row, :FINITE] = numbers.statistics()
        self.words[row, FINITE] = numbers.finite
        self.words[row, FIRST_COUNT:FILLED] = numbers.counts()

    def numbers(self, row: int) -> Numbers:
        """Return what a row holds, in the form in which it can be merged."""
        finite, *counts = self.words[row, FINITE:FILLED].tolist()
        low, high, mean, std, _, _ = self.rows[row, :FINITE].tolist()
        start, filled = int(self.words[row, START]), int(self.words[row, FILLED])
        bins = np.zeros(BINS, np.int64)
        bins[self.bins[start : start + filled]] = self.values[start : start + filled]
        if not finite:
            low, high, mean, std = math.inf, -math.inf, 0.0, 0.0
        nan, posinf, neginf, zero, subnormal, at_max = counts
        infinite = nan, posinf, neginf
        return Numbers(finite, low, high, mean, std, *infinite, zero, subnormal, at_max, bins)


class Results:
    """The results since the last drain, numbered from 0. One thread at a time may use them."""

    def __init__(self) -> None:
        """Start with one chunk, which is kept."""
        self.chunk = Chunk()
        self._full: list[Chunk] = []

    def __len__(self) -> int:
        """Return the number of results."""
        return self.chunk.before + self.chunk.used

    def room(self) -> Chunk:
        """Return a chunk with a free row."""
        if self.chunk.used == ROWS:
            self._full.append(self.chunk)
            self.chunk = Chunk(ROWS * len(self._full))
        return self.chunk

    def reserve(self) -> int:
        """Take a row for numbers that come later, and return its number."""
        chunk = self.room()
        return chunk.before + chunk.reserve()

    def put(self, numbers: Numbers) -> int:
        """Write numbers down and return the number of their row."""
        row = self.reserve()
        self.fill(row, numbers)
        return row

    def fill(self, row: int, numbers: Numbers) -> None:
        """Write the numbers of a row that was reserved."""
        self._chunk_of(row).fill(row % ROWS, numbers)

    def add_zeros(self, row: int, zeros: int) -> None:
        """Take in the zeros that a sparse tensor does not store."""
        self._chunk_of(row).add_zeros(row % ROWS, zeros)

    def _chunk_of(self, row: int) -> Chunk:
        return [*self._full, self.chunk][row // ROWS]

    def taken(self) -> Drained:
        """Copy everything out and start empty."""
        chunks = [*self._full, self.chunk]
        rows = np.concatenate([c.rows[: c.used] for c in chunks])
        words = rows.view(np.int64)
        ends = np.cumsum([int(c.header[CURSOR]) for c in chunks])
        starts = words[:, START].copy()
        for place in range(1, len(chunks)):
            starts[place * ROWS : (place + 1) * ROWS] += ends[place - 1]
        bins = np.concatenate([c.bins[: c.header[CURSOR]] for c in chunks])
        values = np.concatenate([c.values[: c.header[CURSOR]] for c in chunks])
        self.forget()
        counts = words[:, FIRST_COUNT:FILLED]
        return Drained(rows[:, :FINITE], counts, words[:, FILLED], starts, bins, values)

    def forget(self) -> None:
        """Start empty, with the first chunk: its memory is there already."""
        if self._full:
            self.chunk = self._full[0]
            self._full.clear()
        self.chunk.clear()
