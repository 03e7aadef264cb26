"""What runs inside what: one row for each call that begins.

Calls of one thread lie inside one another. So of those that still run, the one that began last is
the one around: a module of the model, or a function that the user registered.
"""

from __future__ import annotations

import threading
from types import FrameType
from typing import Protocol

from probe_nb.observe.calls import Call
from probe_nb.observe.stacks import NONE, Stacks, Table
from probe_nb.terms import Callee


class CallTable(Table, Protocol):
    """Takes calls."""

    def callee(self, called: Callee) -> int:
        """Return the code of what is called."""

    def append(  # noqa: PLR0917 - each call of the model's pays for keywords
        self, step: int, micro_step: int, rank: int, callee: int, call: int, stack: int, parent: int
    ) -> int:
        """Add a call and return its row, `NONE` if there is no room."""


class Hierarchy:
    """Writes the table of calls."""

    def __init__(self, table: CallTable, rank: int | None, *, stacks: bool) -> None:
        """Write into `table`, and with `stacks` also which lines led to a call."""
        self._table, self._append = table, table.append
        self._rank = NONE if rank is None else rank
        self._stacks = Stacks(table) if stacks else None
        self.functions: dict[int, int] = {}
        """Of each thread that runs a registered function, the row of its call."""

    def begin(self, call: Call, around: Call | None, frame: FrameType) -> None:
        """Take note of a call that is about to run, in `frame`; it remembers its row."""
        watched = call.watched
        if (callee := watched.callee) == NONE:
            called = Callee(watched.model, watched.path, watched.type, watched.api)
            callee = watched.callee = self._table.callee(called)
        if self._stacks is not None:
            call.stack = self._stacks.of(frame, around)
        parent = NONE if around is None else around.row
        if self.functions:
            parent = max(parent, self.functions.get(threading.get_ident(), NONE))
        call.row = self._append(
            call.step, call.micro_step, self._rank, callee, call.number, call.stack, parent
        )

    def passed_over(self, call: Call, around: Call | None) -> None:
        """Take what runs inside a call that has no row for a part of what is around."""
        call.row = NONE if around is None else around.row
        if self.functions:
            call.row = max(call.row, self.functions.get(threading.get_ident(), NONE))

    def forget(self) -> None:
        """Hold nothing of the user's any more."""
        if self._stacks is not None:
            self._stacks.forget()
