"""Append-only columns: one block per drain, in memory up to a budget, the older ones on disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probe_nb.errors import notify
from probe_nb.exponents import Histogram
from probe_nb.grammar import spelled
from probe_nb.store.blocks import (
    ALL,
    HISTOGRAM,
    Block,
    Folder,
    Part,
    Rows,
    empty_block,
    join,
)
from probe_nb.store.missing import Refused, gone
from probe_nb.store.table import ABSENT, Arrays, Tables
from probe_nb.terms import COUNTS

_JOINED: Final = 16
_LARGE: Final = 65_536
"""So many blocks of one level are joined, up to so many rows."""

_CHUNK: Final = 2**25
"""Bytes that are written, or read, at one time."""


class Filter(NamedTuple):
    """What a column's value must pass for a row to be chosen."""

    column: str
    passes: Callable[[NDArray[Any]], NDArray[np.bool_]]


class Columns:
    """The records of one run, column by column, with the tables that their codes refer to.

    Cost: at most 200 bytes per record, plus 6 bytes per non-empty histogram bin. What exceeds
    `budget` bytes is moved to files in a temporary folder, oldest records first; the rows of the
    newest drain stay in memory in any case. Without a budget everything does.

    Where a file cannot be written, rows are refused until one can: what is held stays whole.
    """

    def __init__(
        self,
        tables: Tables | None = None,
        budget: int | None = None,
        notices: list[str] | None = None,
    ) -> None:
        """Start empty; what the user has to know is written into `notices`."""
        self.tables = tables or Tables()
        self.budget = budget
        self.notices = [] if notices is None else notices
        self._blocks: list[Block | Part] = []  # the truth: an interrupt leaves it whole
        self._folder: Folder | None = None
        self._refused: Refused | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Be copied and pickled with the rows of now; what a copy takes in is its own."""
        blocks = self._held()  # before the tables: these know all of their codes
        return type(self), (self.tables, self.budget, self.notices), {"_blocks": blocks}

    def __len__(self) -> int:
        """Return the number of records."""
        blocks = self._blocks
        return blocks[-1].end if blocks else 0

    @property
    def spilled(self) -> int:
        """Number of records that are in files; they are the oldest ones."""
        return max((each.end for each in self._held() if isinstance(each, Part)), default=0)

    @property
    def memory(self) -> int:
        """Bytes that the records take in memory."""
        return sum(each.bytes for each in self._held() if isinstance(each, Block))

    # -- writing --------------------------------------------------------------------------------

    def append(self, block: Arrays) -> None:
        """Add a block: every column of `DTYPES` and of `HISTOGRAM`."""
        if not len(block["step"]):
            return
        with self._lock:
            warning = self._take_in(block)
        if warning:  # not under the lock: who hears of it may ask for rows
            notify(f"probe_nb: {warning} Recording goes on as soon as there is room.")

    def _take_in(self, block: Arrays) -> str:
        """Add a block where there is room; return what the user must be warned of."""
        first, warned = len(self), self._refused is not None
        new = Block(first, block)
        try:
            taken = self._make_room(new)
        except Exception as error:
            taken = False
            self._refused = self._refused or Refused(self.notices, self.budget or 0, error)
        if taken:
            self._refused = None
            self._blocks.append(new)
            self._merge()
        elif self._refused is not None:
            self._refused.add(new)
            return "" if warned else self._refused.text
        return ""

    def _merge(self) -> None:
        """Join blocks that are small: forty arrays of a few numbers are more header than number."""
        while len(last := [e for e in self._blocks[-_JOINED:] if isinstance(e, Block)]) == _JOINED:
            rows = last[-1].end - last[0].first
            if any(each.level != last[0].level for each in last) or rows > _LARGE:
                return
            columns = join([each.columns for each in last])
            self._blocks[-_JOINED:] = [Block(last[0].first, columns, last[0].level + 1)]

    def _make_room(self, new: Block) -> bool:
        """Move the oldest rows to disk until these fit; tell whether they may be taken in."""
        if self.budget is None:
            return True
        portion = min(_CHUNK, self.budget // 4)
        if self._refused is not None and not self._refused.worth_a_try(portion):
            return False
        held = [each for each in self._blocks if isinstance(each, Block)]
        excess = sum(each.bytes for each in held) + new.bytes - self.budget
        while held and excess > 0:
            taken = [held.pop(0)]
            while held and sum(each.bytes for each in taken) < portion:
                taken.append(held.pop(0))
            self._spill(taken, self.budget)
            excess -= sum(each.bytes for each in taken)
        return True

    def _spill(self, taken: list[Block], budget: int) -> None:
        """Write the oldest blocks in memory into one file, which takes their place."""
        if self._folder is None or not self._folder.can_be_written():
            self._folder = Folder()
            self.notices.append(
                f"At step {taken[-1].columns['step'].max()} the records filled "
                f"memory={spelled(budget)}. From then on the oldest were moved to "
                f"`{self._folder.path}`, which is removed with the run; `run.save(path)` keeps all."
            )
        part = self._folder.write(taken[0].first, join([each.columns for each in taken]))
        start = sum(isinstance(each, Part) for each in self._blocks)
        self._blocks[start : start + len(taken)] = [part]

    # -- reading --------------------------------------------------------------------------------

    def chunks(self, first: int = 0, names: Sequence[str] = ALL) -> Iterator[tuple[int, Arrays]]:
        """Yield the columns from row `first` on, piece by piece, each with its first row.

        What is there now is yielded, even if more is added meanwhile. No more than one piece is in
        memory at a time, besides what is there anyway. Pieces end where a drain ended.
        """
        return _pieces([each for each in self._held() if each.end > first], first, names)

    def tail(self, first: int, names: Sequence[str] = ALL) -> Arrays:
        """Return the columns from row `first` on, in one piece."""
        if not 0 <= first <= len(self):
            raise IndexError(first)
        held = [each for each in self._held() if each.end > first]
        found = [each.pick(each.since(first), names) for each in held]
        return join(found) if found else _nothing(names)

    def arrays(self) -> Arrays:
        """Return all columns, in memory, in one piece."""
        return self.tail(0)

    def where(self, filters: Sequence[Filter], names: Sequence[str]) -> tuple[Rows, Arrays]:
        """Return the numbers of the rows that pass all filters, and these columns of them.

        Of what is on disk only the columns of the filters are read, and of the rows that pass only
        the row groups in which they are.
        """
        rows, found = [], []
        for each in self._held():
            passed = _passed(each, filters)
            if len(passed):
                rows.append(passed + each.first)
                found.append(each.pick(passed, names))
        return (np.concatenate(rows), join(found)) if rows else (_NONE, _nothing(names))

    def take(self, rows: Any, names: Sequence[str]) -> Arrays:
        """Return these columns of some rows, whose numbers must rise."""
        wanted, found = np.asarray(rows, np.intp), []
        for each in self._held():
            low, high = np.searchsorted(wanted, (each.first, each.end))
            if low < high:
                found.append(each.pick(wanted[low:high] - each.first, names))
        return join(found) if found else _nothing(names)

    def highest(self, name: str) -> int:
        """Return the largest value of a column, -1 without rows."""
        return max((int(each[name].max()) for _, each in self.chunks(names=(name,))), default=-1)

    def histograms(self, rows: Any) -> list[Histogram | None]:
        """Return the histogram of each of some records, whose numbers must rise."""
        found = self.take(rows, (*HISTOGRAM, "numel", *COUNTS))
        ends = np.cumsum(found["hist_size"].astype(np.int64))
        return [
            _histogram({n: found[n][row] for n in ("numel", *COUNTS)}, found, slice(*cut))
            for row, cut in enumerate(zip(ends - found["hist_size"], ends, strict=True))
        ]

    def histogram(self, row: int) -> Histogram | None:
        """Return the histogram of one record, None if it has none."""
        return self.histograms([row])[0]

    def there(self) -> tuple[Columns, str]:
        """Return what can be read, under the same row numbers, and what cannot, in words.

        All can, unless somebody removed files of the run.
        """
        held = self._held()
        lost = [each for each in held if isinstance(each, Part) and not each.path.exists()]
        if not lost:
            return self, ""
        left = Columns(self.tables)
        left._blocks = [each for each in held if each not in lost]
        return left, gone(lost)

    def _held(self) -> list[Block | Part]:
        return list(self._blocks)  # one act: who reads waits for nobody who writes


_NONE: Final[Rows] = np.empty(0, np.intp)


def _nothing(names: Sequence[str]) -> Arrays:
    empty = empty_block()
    return {name: empty[name] for name in names}


def _pieces(
    held: list[Block | Part], first: int, names: Sequence[str]
) -> Iterator[tuple[int, Arrays]]:
    waiting: list[Block] = []
    for each in held:
        if isinstance(each, Part):
            yield max(first, each.first), each.pick(each.since(first), names)
            continue
        if waiting and sum(block.bytes for block in waiting) + each.bytes > _CHUNK:
            yield _piece(waiting, first, names)
            waiting = []
        waiting.append(each)
    if waiting:
        yield _piece(waiting, first, names)


def _piece(blocks: list[Block], first: int, names: Sequence[str]) -> tuple[int, Arrays]:
    rows = [each.pick(each.since(first), names) for each in blocks]
    return max(first, blocks[0].first), join(rows)


def _passed(held: Block | Part, filters: Sequence[Filter]) -> Rows:
    """Return the rows that pass, counted from the first one of the block."""
    if not filters:
        return np.arange(held.end - held.first)
    if not all(held.may_pass(*each) for each in filters):
        return _NONE
    columns = held.read([*dict.fromkeys(each.column for each in filters)])
    passed = np.ones(held.end - held.first, np.bool_)
    for each in filters:
        passed &= each.passes(columns[each.column])
    return np.flatnonzero(passed)


def _histogram(numbers: dict[str, Any], columns: Arrays, cut: slice) -> Histogram | None:
    counts = {name: int(numbers[name]) for name in COUNTS}
    if counts["zero_count"] == ABSENT:
        return None
    found = Histogram(
        columns["hist_bins"][cut].astype(np.int64),
        columns["hist_counts"][cut].astype(np.int64),
        counts["zero_count"],
        counts["nan_count"],
        counts["posinf_count"],
        counts["neginf_count"],
    )
    there = len(found.bins) or found.total == numbers["numel"]
    return found if there else None  # under a loss scale bins cannot always be kept
