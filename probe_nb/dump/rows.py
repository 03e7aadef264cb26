"""The records of one process in one step: packed as they are read, then put into execution order.

A dump lists calls as they ended. What a call was fed was there before anything that ran inside it,
so its inputs are put before the first of these, and its outputs stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np

from probe_nb.dump.numbers import Bins, Numbers
from probe_nb.store.blocks import empty_block
from probe_nb.store.table import ABSENT, DTYPES, Arrays
from probe_nb.terms import COUNTS, STATISTICS, STATUS_CODE

_FIELDS: Final[dict[str, str]] = {
    **dict.fromkeys(("begin", "late", "outer", "place"), "i"),
    **dict.fromkeys(("site", "dtype", "shape", "checksum", "call", "backward", "micro_step"), "i"),
    "numel": "q",
    "requires_grad": "b",
    "status": "b",
    **dict.fromkeys(STATISTICS, "d"),
    **dict.fromkeys(COUNTS, "q"),
    "loss_scale": "d",
}
_PACK: Final = Struct("=" + "".join(_FIELDS.values())).pack
_DTYPE: Final = np.dtype([(name, f"={code}") for name, code in _FIELDS.items()])
_ORDER: Final = ("begin", "late", "outer", "place")
_BLOCK: Final = 65_536

Order = tuple[int, ...]
"""What rows are sorted by: a `When`, and what came first."""


class When(NamedTuple):
    """Where something belongs in the order of execution, as a key to sort by.

    Attributes:
        begin: The entry that was the first to end of all that was not over yet.
        late: 0 for what a call began with, 1 for what it ended with.
        outer: Smaller for a call around another.
    """

    begin: int
    late: int
    outer: int


class What(NamedTuple):
    """The codes that say of a tensor where and what it is."""

    site: int
    dtype: int
    shape: int
    checksum: int
    call: int
    backward: int
    micro_step: int
    numel: int
    requires_grad: bool


class Rows:
    """Rows that wait until all of their step are there; 178 bytes each."""

    def __init__(self) -> None:
        """Start empty."""
        self._packed = bytearray()
        self._places = 0
        self._bins: dict[int, Bins] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._packed) // _DTYPE.itemsize

    def place(self) -> int:
        """Return the number of what comes next: it keeps its place among its like."""
        self._places += 1
        return self._places

    def add(self, when: When, what: What, numbers: Numbers) -> None:
        """Add one."""
        place = self.place()
        self._packed += _PACK(
            *when,
            place,
            *what,
            STATUS_CODE[numbers.status],
            *numbers.statistics,
            *numbers.counts,
            numbers.loss_scale,
        )
        if numbers.bins is not None:
            self._bins[place] = numbers.bins

    def blocks(self, step: int, rank: int | None, order: int, device: int) -> Iterator[Arrays]:
        """Yield them in execution order; the first has the number `order`."""
        rows = np.frombuffer(self._packed, _DTYPE)
        by = np.lexsort([rows[name] for name in reversed(_ORDER)])
        for first in range(0, len(rows), _BLOCK):
            piece = rows[by[first : first + _BLOCK]]
            bins = [self._bins.get(place, _NO_BINS) for place in piece["place"].tolist()]
            yield _block(piece, bins) | _same(len(piece), step, rank, order + first, device)

    def order(self, when: When) -> Order:
        """Return what rows are sorted by, of something that is no row and has its place here."""
        return (*when, self.place())

    def before(self, orders: list[Order]) -> list[int]:
        """Return of some places how many rows come before each."""
        if not orders:
            return []
        rows = np.frombuffer(self._packed, _DTYPE)
        keys = np.array(orders, np.int64)
        both = [np.concatenate([rows[name], keys[:, at]]) for at, name in enumerate(_ORDER)]
        by = np.lexsort(both[::-1])
        is_row = by < len(rows)
        found = np.empty(len(orders), np.int64)
        found[by[~is_row] - len(rows)] = np.cumsum(is_row)[~is_row]
        counts: list[int] = found.tolist()
        return counts


_NO_BINS: Final[Bins] = ([], [])


def _block(rows: Any, bins: list[Bins]) -> Arrays:
    """Return the columns that a row says itself; a number that does not fit is no number."""
    block = empty_block()
    for name in _FIELDS:
        if name in DTYPES:
            block[name] = rows[name].astype(DTYPES[name])
    block["hist_size"] = np.array([len(each[0]) for each in bins], np.uint16)
    for name, part in (("hist_bins", 0), ("hist_counts", 1)):
        flat = [number for each in bins for number in each[part]]
        block[name] = np.array(flat, block[name].dtype if part == 0 else np.int64)
    if block["hist_counts"].max(initial=0) < 2**32:
        block["hist_counts"] = block["hist_counts"].astype(np.uint32)
    return block


def _same(n: int, step: int, rank: int | None, order: int, device: int) -> Arrays:
    """Return the columns that are the same in all rows, and the order."""
    number = ABSENT if rank is None else rank
    made: dict[str, Any] = {"step": step, "rank": number, "device": device, "training": ABSENT}
    made |= {"recompute": False, "reused": False}
    found: Arrays = {name: np.full(n, value, DTYPES[name]) for name, value in made.items()}
    return found | {"order": np.arange(order, order + n, dtype=DTYPES["order"])}
