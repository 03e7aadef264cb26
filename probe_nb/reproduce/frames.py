"""The user's lines that led to where we are."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final, NamedTuple

_MACHINERY: Final = frozenset(
    {
        *("IPython", "ipykernel", "traitlets", "tornado", "zmq", "asyncio", "concurrent"),
        *("contextlib", "importlib", "runpy", "random", "secrets"),
        *("multiprocessing", "tempfile", "threading"),
        *("numpy", "probe_nb", "torch"),
    }
)
"""Packages whose frames nobody looks for."""


_TOPS: Final = ("<module>", "<cell line")
"""What the code of a cell itself is called, in newer and older IPython."""


class Line(NamedTuple):
    """A line of code that was running."""

    file: str
    line: int
    function: str
    code: str
    cell: int | None = None
    """The number of the notebook's cell."""

    def __str__(self) -> str:
        place = self.file if self.cell is None else f"cell [{self.cell}]"
        return f"{place}, line {self.line}, in {self.function}: {self.code}"


def outward(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those that led to it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_users(frame: FrameType) -> bool:
    """Tell whether a frame is of none of the packages in between."""
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] not in _MACHINERY


def nearest(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's, else the innermost of all."""
    return next((each for each in outward(frame) if is_users(each)), frame)


def users_lines(frame: FrameType | None) -> list[Line]:
    """Return the lines of the user's that led here, innermost first, out to the notebook's cell."""
    lines = []
    for each in outward(nearest(frame)):
        if is_users(each):
            lines.append(line_of(each))
            if lines[-1].cell is not None and each.f_code.co_name.startswith(_TOPS):
                break
    return lines


def line_of(frame: FrameType) -> Line:
    """Describe the line that a frame is at."""
    code = frame.f_code
    text = linecache.getline(code.co_filename, frame.f_lineno, frame.f_globals).strip()
    return Line(code.co_filename, frame.f_lineno, code.co_name, text, cell(code.co_filename))


def cell(file: str) -> int | None:
    """Return the number of the notebook's cell that is compiled under this name, if it is one."""
    room: Any = sys.modules.get("IPython.core.interactiveshell")
    if room is None or not room.InteractiveShell.initialized():
        return None
    compiler = room.InteractiveShell.instance().compile
    number = getattr(compiler, "_filename_map", {}).get(file)
    return number if isinstance(number, int) else None
