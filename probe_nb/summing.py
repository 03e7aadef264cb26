"""The recorder of a watch that asks for checksums: each row gets that of its tensor's bytes.

It is taken in the hook, before anything can overwrite the tensor: from an accelerator the bytes are
copied to the host, one tensor at a time, and waited for. A recorder without checksums has no part
in it.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final

import numpy as np
from torch import Tensor

from probe_nb.block import ROW
from probe_nb.observe.calls import Call
from probe_nb.observe.shards import held
from probe_nb.observe.sink import Facts, Where
from probe_nb.recorder import Recorder
from probe_nb.stats.results import Drained
from probe_nb.stats.waiting import Flight
from probe_nb.store.table import ABSENT, DTYPES, Arrays
from probe_nb.terms import Status

_fields: Final[Any] = ROW.fields
_RESULT: Final = _fields["result"][1] - ROW.itemsize, Struct("=i").unpack_from
_REUSED: Final = _fields["reused"][1] - ROW.itemsize
"""Where these stand, counted from the end of a row."""


class Summing(Recorder):
    """Takes observations and writes rows with checksums."""

    def __init__(self, sum_of: Callable[[Tensor], str | None], *recorder: Any) -> None:
        """Take checksums with `sum_of`; what follows is the recorder's."""
        super().__init__(*recorder)
        self._sum_of = sum_of
        self._sums: list[int] = []
        self._landing: list[int] = []
        self._known: dict[int, int] = {}
        """Of a tensor that was seen in this step the checksum, by the number of its result."""

    def tensor(
        self,
        call: Call,
        where: Where,
        t: Tensor,
        backward: int = -1,
        scale: Tensor | None = None,
    ) -> None:
        """Reduce a tensor and write its row, with its checksum."""
        with self._lock:
            self._align()
            super().tensor(call, where, t, backward, scale)
            rows = self._rows
            result = _RESULT[1](rows, len(rows) + _RESULT[0])[0]
            reused = bool(rows[len(rows) + _REUSED])
            found = self._known.get(result, ABSENT) if reused else ABSENT
            if found == ABSENT:
                found = self._known[result] = self._code(call, where, t)
            self._sums.append(found)

    def _code(self, call: Call, where: Where, t: Tensor) -> int:
        try:
            found = self._sum_of(held(t)[0])
        except Exception as error:  # a fault of ours is never the user's
            self.fault(call.watched, f"{where[0]}, its checksum", error)
            return ABSENT
        return ABSENT if found is None else self._columns.tables.checksums.code(found)

    def absent(
        self, call: Call, where: Where, facts: Facts, status: Status, backward: int = -1
    ) -> None:
        """Write a row without numbers, and without a checksum."""
        with self._lock:
            self._align()
            super().absent(call, where, facts, status, backward)
            self._sums.append(ABSENT)

    def _align(self, landing: int = 0) -> None:
        """Have one checksum for each row that waits: a Ctrl-C may have come between the two.

        What it left without one is the newest row; what it left over belongs to the oldest.
        """
        waiting = sum(len(rows) for rows, _ in self._under_way) + len(self._rows)
        missing = landing + waiting // ROW.itemsize - len(self._sums)
        if missing > 0:
            self._sums += [ABSENT] * missing
        elif missing:
            del self._sums[:-missing]

    # -- the drain ----------------------------------------------------------------------------

    def drain(self, *, wait: bool = True) -> list[str]:
        """Append the rows whose results are on the host; with `wait`, all rows."""
        with self._lock:
            self._known.clear()
            return super().drain(wait=wait)

    def rewrote(self) -> None:
        """Take no tensor as seen: something was written that no version tells of."""
        with self._lock:
            self._known.clear()
            super().rewrote()

    def _land(self, rows: bytearray, flight: Flight) -> None:
        n = len(rows) // ROW.itemsize
        self._align(n)
        self._landing, self._sums = self._sums[:n], self._sums[n:]
        super()._land(rows, flight)

    def _joined(self, rows: bytearray, drained: Drained, first: int) -> Arrays:
        block = super()._joined(rows, drained, first)
        block["checksum"] = np.array(self._landing, DTYPES["checksum"])
        return block

    def forget(self) -> None:
        """Drop what waits."""
        with self._lock:
            self._sums.clear()
            self._known.clear()
            super().forget()
