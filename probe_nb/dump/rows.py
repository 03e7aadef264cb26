"""The records of one process in one step: packed as they are read, then put into execution order.

A dump lists calls as they ended. What a call was fed was there before anything that ran inside it,
so its inputs are put before the first of these, and its outputs stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np

from probe_nb.dump.numbers import Numbers
from probe_nb.store.blocks import empty_block
from probe_nb.store.table import ABSENT, DTYPES, Arrays
from probe_nb.terms import COUNTS, STATISTICS, STATUS_CODE

_SAID: Final = ("min", "max", "mean", "l2", "absmax")
"""The statistics that msProbe's tell; all else is kept aside where somebody says it."""

_COUNTED: Final = tuple(f"no_{name}" for name in COUNTS[:3])
_FIELDS: Final[dict[str, str]] = {
    **dict.fromkeys(("begin", "late", "outer", "place"), "i"),
    **dict.fromkeys(("site", "dtype", "shape", "checksum", "call", "backward", "micro_step"), "i"),
    "numel": "q",
    "requires_grad": "b",
    "status": "b",
    **dict.fromkeys(_SAID, "d"),
    **dict.fromkeys(_COUNTED, "b"),
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
    """Rows that wait until all of their step are there; 97 bytes each."""

    def __init__(self) -> None:
        """Start empty."""
        self._packed = bytearray()
        self._places = 0
        self._more: dict[int, Numbers] = {}

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
        low, high, mean, _, l2, absmax = numbers.statistics
        nan, above, below = numbers.counts[:3]
        self._packed += _PACK(
            *(*when, place, *what, STATUS_CODE[numbers.status]),
            *(low, high, mean, l2, absmax, nan == 0, above == 0, below == 0),
        )
        if numbers.has_more:
            self._more[place] = numbers

    def blocks(self, step: int, rank: int | None, order: int, device: int) -> Iterator[Arrays]:
        """Yield them in execution order; the first has the number `order`."""
        rows = np.frombuffer(self._packed, _DTYPE)
        by = np.lexsort([rows[name] for name in reversed(_ORDER)])
        for first in range(0, len(rows), _BLOCK):
            piece = rows[by[first : first + _BLOCK]]
            block = _block(piece) | _same(len(piece), step, rank, order + first, device)
            yield _completed(block, [self._more.get(place) for place in piece["place"].tolist()])

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


def _block(rows: Any) -> Arrays:
    """Return the columns that rows say themselves."""
    block, n = empty_block(), len(rows)
    for name, dtype in DTYPES.items():
        if name in _FIELDS:
            block[name] = rows[name].astype(dtype)
    for name in ("std", "loss_scale"):
        block[name] = np.full(n, np.nan)
    for name in COUNTS:
        block[name] = np.full(n, ABSENT, DTYPES[name])
    for name, none in zip(COUNTS, _COUNTED, strict=False):
        block[name][rows[none] == 1] = 0
    block["hist_size"] = np.zeros(n, block["hist_size"].dtype)
    return block


def _completed(block: Arrays, more: list[Numbers | None]) -> Arrays:
    """Put in what probe_nb measured, of the rows that have it."""
    if not any(more):
        return block
    bins: list[int] = []
    counts: list[int] = []
    for row, numbers in enumerate(more):
        if numbers is None:
            continue
        for name, value in zip(STATISTICS, numbers.statistics, strict=True):
            block[name][row] = value
        for name, count in zip(COUNTS, numbers.counts, strict=True):
            block[name][row] = count
        block["loss_scale"][row] = numbers.loss_scale
        if numbers.bins is not None:
            block["hist_size"][row] = len(numbers.bins[0])
            bins += numbers.bins[0]
            counts += numbers.bins[1]
    block["hist_bins"] = np.array(bins, block["hist_bins"].dtype)
    wide = max(counts, default=0) >= 2**32
    block["hist_counts"] = np.array(counts, np.int64 if wide else np.uint32)
    return block


def _same(n: int, step: int, rank: int | None, order: int, device: int) -> Arrays:
    """Return the columns that are the same in all rows, and the order."""
    number = ABSENT if rank is None else rank
    made: dict[str, Any] = {"step": step, "rank": number, "device": device, "training": ABSENT}
    made |= {"recompute": False, "reused": False}
    found: Arrays = {name: np.full(n, value, DTYPES[name]) for name, value in made.items()}
    return found | {"order": np.arange(order, order + n, dtype=DTYPES["order"])}
