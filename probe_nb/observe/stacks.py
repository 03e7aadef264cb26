"""Which lines of the user's led to a call: `stacks=True`.

A call has the lines between it and the call around it, and then the lines of that one. So few
frames are looked at, and only by where their code stands; what is there is read once for each way
that leads to a call.
"""

from __future__ import annotations

import linecache
from types import CodeType, FrameType
from typing import Final, Protocol

from probe_nb import places
from probe_nb.observe.calls import Call
from probe_nb.terms import Frame, Stack, printable

NONE: Final = -1
"""The row of what has no row, and the stack of what has none."""
_ROOM: Final = 4_096
"""Ways that are remembered, about 2 kB each. More are there only where code is made anew all the
time; a way that was forgotten is read once more, and its stack is found again."""


class Table(Protocol):
    """Takes stacks: the table of calls."""

    def stack(self, frames: Stack) -> int:
        """Return the code of a stack, `NONE` if there is no room."""

    def frames(self, stack: int) -> Stack:
        """Return the frames of a stack, none for `NONE`."""


class Stacks:
    """Finds the code of the stack of a call that begins."""

    def __init__(self, table: Table) -> None:
        """Write stacks into `table`."""
        self._table = table
        self._known: dict[tuple[int, ...], tuple[int, list[CodeType]]] = {}

    def of(self, frame: FrameType, around: Call | None) -> int:
        """Return the stack of a call that is about to run, `NONE` for none.

        `frame` is the frame of torch's, or ours, that runs it; `around` the call that it is in.
        """
        base, end = NONE, 0
        if around is not None and around.stack != NONE:
            base, end = around.stack, around.frame
        way, caller = [base], frame.f_back
        while caller is not None and id(caller) != end:
            way.append(id(caller.f_code))
            way.append(caller.f_lasti)
            caller = caller.f_back
        found = self._known.get(key := tuple(way))
        return self._read(key, frame, end) if found is None else found[0]

    def _read(self, key: tuple[int, ...], frame: FrameType, end: int) -> int:
        if len(self._known) >= _ROOM:
            self._known.clear()
        frames, caller = [], frame.f_back
        while caller is not None and id(caller) != end:
            frames.append(caller)
            caller = caller.f_back
        stack = _lines(frames if end else places.inside(frames))
        code = self._table.stack(stack + self._table.frames(key[0]))
        self._known[key] = code, [each.f_code for each in frames]  # their addresses are in the key
        return code

    def forget(self) -> None:
        """Hold no code of the user's any more."""
        self._known.clear()


def _lines(frames: list[FrameType]) -> Stack:
    return tuple(_line(each) for each in frames if not places.is_machinery(each))


def _line(frame: FrameType) -> Frame:
    name, line = frame.f_code.co_filename, frame.f_lineno or 0
    source = linecache.getline(name, line, frame.f_globals).strip()
    file, function = places.file_name(name), frame.f_code.co_name
    return Frame(printable(file), line, printable(function), printable(source))
