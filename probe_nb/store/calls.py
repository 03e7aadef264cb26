"""What ran inside what: one row per call of a module or function, in the order they began.

Rows only point back: the call around another began before it. Names and stacks are interned.
"""

from __future__ import annotations

import json
import operator
import sys
import threading
from struct import Struct
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa

from probe_nb.errors import notify
from probe_nb.grammar import spelled
from probe_nb.store.table import ABSENT, Interned, category, integers
from probe_nb.store.words import numbers
from probe_nb.terms import Callee, Frame, Stack, printable

__all__ = ["COLUMNS", "Callee", "Calls", "Frame", "Stack", "as_text"]

OF: Final = ("model", "module", "type", "api")
"""The columns that say what was called."""

COLUMNS: Final = (
    *("module", "api", "step", "call", "parent", "stack"),
    *("type", "model", "micro_step", "rank"),
)
"""The columns of `run.calls()`, in order."""

_BUDGET: Final = 2**27
_ROW: Final = Struct("=iiiiiiq")
_SIZE: Final = _ROW.size
_pack: Final = _ROW.pack
_DTYPE: Final = np.dtype(
    [(name, "<i4") for name in ("step", "micro_step", "rank", "site", "call", "stack")]
    + [("parent", "<i8")]
).newbyteorder("=")
_FRAME: Final = 100
"""Bytes that one more frame of an interned stack takes, about: most are shared."""


def as_text(stack: Stack) -> str:
    """Return a stack as Python writes one, the innermost frame first.

    >>> print(as_text((Frame("Cell In[3]", 2, "forward", "return self.fc(x)"),)))
    File Cell In[3], line 2, in forward
        return self.fc(x)
    """
    return "\n".join(
        f"File {each.file}, line {each.line}, in {each.function}"
        + (f"\n    {each.source}" if each.source else "")
        for each in stack
    )


class Calls:
    """The calls of one run.

    Cost: 32 bytes a call, and each stack once. Beyond `budget` bytes calls are refused; that is
    said in `notices`. Several threads may add.
    """

    def __init__(self, budget: int | None = _BUDGET, notices: list[str] | None = None) -> None:
        """Start empty; what the user has to know is written into `notices`."""
        self.budget = budget
        self.notices = [] if notices is None else notices
        self.full = False
        self.callees: Interned[Callee] = Interned()
        self.stacks: Interned[Stack] = Interned()
        self._frames = 0
        self._rows = bytearray()
        self._room = self._rows_that_fit()
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or a pickle holds; it is full where this one is."""
        rows = bytes(self._rows)  # before the names: these know all of their codes
        return {**vars(self), "_rows": bytearray(rows), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Be such a copy, with a lock of its own."""
        vars(self).update(state, _lock=threading.RLock())

    def __len__(self) -> int:
        """Return the number of calls."""
        return len(self._rows) // _SIZE

    # -- writing --------------------------------------------------------------------------------

    def add(
        self,
        callee: int,
        call: int,
        *,
        step: int,
        micro_step: int = 0,
        rank: int = ABSENT,
        parent: int = ABSENT,
        stack: int = ABSENT,
    ) -> int:
        """Add a call and return its row, `ABSENT` if there is no room.

        `callee` and `stack` are codes of `callees` and `stacks`; `parent` is the row of the call
        around it.
        """
        return self.append(step, micro_step, rank, callee, call, stack, parent)

    def append(  # noqa: PLR0917 - each call of the model's pays for keywords
        self, step: int, micro_step: int, rank: int, callee: int, call: int, stack: int, parent: int
    ) -> int:
        """Do what `add` does, with the columns in the order in which they are kept."""
        with self._lock:
            row = len(self._rows) // _SIZE
            if row >= self._room:
                return self._refused(step)
            self._rows += _pack(step, micro_step, rank, callee, call, stack, parent)
        return row

    def callee(self, called: Callee) -> int:
        """Return the code of what is called."""
        return self.callees.code(called)

    def frames(self, stack: int) -> Stack:
        """Return the frames of a stack, none for `ABSENT`."""
        return self.stacks.values[stack] if stack != ABSENT else ()

    def stack(self, frames: Stack) -> int:
        """Return the code of a stack, `ABSENT` for none and where there is no room."""
        if self.full or not frames:
            return ABSENT
        known = len(self.stacks.values)
        code = self.stacks.code(frames)
        if code == known:
            self._frames += len(frames)
            self._room = self._rows_that_fit()
        return code

    def _rows_that_fit(self) -> int:
        """Return how many rows there may be beside the stacks that are there."""
        if self.budget is None:
            return sys.maxsize
        return -((self._frames * _FRAME - self.budget) // _SIZE)

    def _refused(self, step: int) -> int:
        if not self.full:
            self.full, self._room = True, 0
            text = (
                f"{len(self):,} calls took {spelled(self.budget or 0)}: from step {step} on "
                "`run.calls()` has none."
            )
            self.notices.append(text)
            notify(f"probe_nb: {text}")
        return ABSENT

    def take(self, other: Calls, rank: int = ABSENT) -> None:
        """Add all calls of another table, in their order; `rank` is that of those without one."""
        callees = [self.callees.code(each) for each in other.callees.values]
        stacks = [self.stack(each) for each in other.stacks.values]
        rows: dict[int, int] = {ABSENT: ABSENT}
        for row, each in enumerate(_ROW.iter_unpack(bytes(other._rows))):
            step, micro_step, own, callee, call, stack, parent = each
            rows[row] = self.add(
                callees[callee],
                call,
                step=step,
                micro_step=micro_step,
                rank=rank if own == ABSENT else own,
                parent=rows[parent],
                stack=stacks[stack] if stack != ABSENT else ABSENT,
            )

    # -- reading --------------------------------------------------------------------------------

    def columns(self, begin: int = 0) -> Any:
        """Return the rows from one on as an array with a field per column."""
        return np.frombuffer(bytes(self._rows[begin * _SIZE :]), _DTYPE)

    def frame(self) -> pd.DataFrame:
        """Return one row per call; text columns are categoricals."""
        columns = self.columns()
        made: dict[str, Any] = {n: columns[n].copy() for n in ("step", "micro_step", "call")}
        made |= {name: integers(columns[name]) for name in ("rank", "parent")}
        for name in OF:
            words = [getattr(each, name) for each in self.callees.values]
            made[name] = category(words, columns["site"])
        made["stack"] = category([as_text(each) for each in self.stacks.values], columns["stack"])
        return pd.DataFrame({name: made[name] for name in COLUMNS})

    # -- files ----------------------------------------------------------------------------------

    def to_table(self) -> pa.Table:
        """Return the rows as a table for `from_table`.

        A parent is written as its distance, which repeats from step to step: a thousand steps take
        hardly more than one.
        """
        columns = self.columns()
        made = {name: pa.array(columns[name]) for name in columns.dtype.names}
        there = columns["parent"] != ABSENT
        made["parent"] = pa.array(np.where(there, np.arange(len(self)) - columns["parent"], 0))
        about = {"callees": self.callees.values, "stacks": self.stacks.values}
        return pa.table(made, metadata={"about": json.dumps(about)})

    @classmethod
    def from_table(cls, table: pa.Table) -> Calls:
        """Read what `to_table` made.

        Raises:
            ValueError: It is something else; so do LookupError, TypeError and pyarrow's own tell.
        """
        found, about = cls(), json.loads(table.schema.metadata[b"about"])
        found.callees = Interned(Callee(*map(_text, each)) for each in about["callees"])
        found.stacks = Interned(tuple(map(_frame, each)) for each in about["stacks"])
        found._frames = sum(map(len, found.stacks.values))
        found.budget = max(_BUDGET, found._frames * _FRAME + (table.num_rows + 1) * _SIZE)
        found._room = found._rows_that_fit()
        columns = np.empty(table.num_rows, _DTYPE)
        for name in columns.dtype.names:
            columns[name] = numbers(table, name, columns.dtype[name])
        _check(columns, len(found.callees.values), len(found.stacks.values))
        there, rows = columns["parent"] != 0, np.arange(len(columns))
        columns["parent"] = np.where(there, rows - columns["parent"], ABSENT)
        found._rows = bytearray(columns.tobytes())
        return found


def _check(columns: Any, callees: int, stacks: int) -> None:
    """Hold that rows point at what is there; a parent is its distance here."""
    sound = (
        (columns["parent"] >= 0).all()
        and (columns["parent"] <= np.arange(len(columns))).all()
        and (columns["site"] >= 0).all()
        and (columns["site"] < callees).all()
        and (columns["stack"] >= ABSENT).all()
        and (columns["stack"] < stacks).all()
    )
    if not sound:
        raise ValueError("a call points at what is not there")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is not a text")
    return printable(value)


def _frame(value: Any) -> Frame:
    file, line, function, source = value
    return Frame(_text(file), operator.index(line), _text(function), _text(source))
