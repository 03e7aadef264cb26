"""What runs inside what: one row for each call that begins.

Calls of one thread lie inside one another. So of those that still run, the one that began last is
the one around: a module of the model, or a function that the user registered.
"""

from __future__ import annotations

import threading
from types import FrameType
from typing import Protocol

from probe_nb.observe.calls import Call
from probe_nb.observe.select import Watched
from probe_nb.observe.stacks import NONE, Stacks, Table
from probe_nb.terms import Callee


class CallTable(Table, Protocol):
    """Takes calls."""

    def callee(self, called: Callee) -> int:
        """Return the code of what is called."""

    def add(
        self,
        callee: int,
        call: int,
        *,
        step: int,
        micro_step: int,
        rank: int,
        parent: int,
        stack: int,
    ) -> int:
        """Add a call and return its row, `NONE` if there is no room."""


class Hierarchy:
    """Writes the table of calls."""

    def __init__(self, table: CallTable, rank: int | None, *, stacks: bool) -> None:
        """Write into `table`, and with `stacks` also which lines led to a call."""
        self._table = table
        self._rank = NONE if rank is None else rank
        self._stacks = Stacks(table) if stacks else None
        self._callees: dict[Watched, tuple[str, type, int]] = {}
        self.functions: dict[int, int] = {}
        """Of each thread that runs a registered function, the row of its call."""

    def begin(
        self, call: Call, around: Call | None, frame: FrameType, *, silenced: bool = False
    ) -> None:
        """Take note of a call that is about to run, in `frame`; it remembers its row.

        One that is silenced has none, and what runs inside it is a part of what is around.
        """
        parent = NONE if around is None else around.row
        if self.functions:
            parent = max(parent, self.functions.get(threading.get_ident(), NONE))
        if silenced:
            call.row = parent
            return
        if self._stacks is not None:
            call.stack = self._stacks.of(frame, around)
        call.row = self._table.add(
            self._callee(call.watched),
            call.number,
            step=call.step,
            micro_step=call.micro_step,
            rank=self._rank,
            parent=parent,
            stack=call.stack,
        )

    def _callee(self, watched: Watched) -> int:
        found = self._callees.get(watched)
        if found is not None and found[0] == watched.path and found[1] is watched.cls:
            return found[2]
        called = Callee(watched.model, watched.path, watched.type, watched.api)
        code = self._table.callee(called)
        self._callees[watched] = watched.path, watched.cls, code
        return code

    def forget(self) -> None:
        """Hold nothing of the user's any more."""
        self._callees.clear()
        if self._stacks is not None:
            self._stacks.forget()
