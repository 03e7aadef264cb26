"""The user's own lines: where in their code something happened."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch

_STANDARD: Final = tuple({*map(sysconfig.get_path, ("stdlib", "platstdlib"))})
_INSTALLED: Final = tuple({*map(sysconfig.get_path, ("purelib", "platlib"))})
_OURS: Final = tuple(f"{Path(each).parent}{os.sep}" for each in (torch.__file__, __file__))
_LIBRARIES: Final = (*_STANDARD, *_INSTALLED, sysconfig.get_path("scripts"), *_OURS)
"""Folders in which nobody's own code lies."""

_FROZEN: Final = "<frozen "
_SHELLS: Final = tuple(
    f"{folder}{os.sep}{name}"
    for folder in _INSTALLED
    for name in (
        *(f"{each}{os.sep}" for each in ("IPython", "ipykernel", "traitlets")),
        "decorator.py",
    )
)
"""What lies between two cells of a notebook, or a magic and its cell."""
_COMMAND: Final = "<string>"
"""What `python -c` runs: around a program, as process pools start theirs, nobody's line."""
_BACKWARD: Final = "_engine_run_backward"


def own_lines(frame: FrameType | None = None) -> str:
    """Say which line of the user's runs: the innermost, and from where it was called at first.

    A backward on a device runs in a thread of torch's own, in which there is none; then it is the
    line of the thread that waits for it.
    """
    here = frame or sys._getframe(1)  # noqa: SLF001 - there is no other way to the line
    found = list(_own(here)) or _waiting()
    if not found:
        return ""
    while len(found) > 1 and found[-1].f_code.co_filename == _COMMAND:
        found.pop()
    inner, outer = found[0], found[-1]
    said = _place(inner)
    return said if outer is inner else f"{said}, called from {_place(outer)}"


def is_machinery(frame: FrameType) -> bool:
    """Tell whether a frame says nothing to the user: torch's, Python's, a notebook's or ours."""
    name = frame.f_code.co_filename
    if name.startswith(_INSTALLED):
        return name.startswith((*_OURS, *_SHELLS))
    return name.startswith((_FROZEN, *_STANDARD, *_OURS))


def inside(frames: list[FrameType]) -> list[FrameType]:
    """Leave out what runs around the user's outermost line: what started the program."""
    own = [place for place, each in enumerate(frames) if _is_own(each)]
    while len(own) > 1 and frames[own[-1]].f_code.co_filename == _COMMAND:
        own.pop()
    return frames[: own[-1] + 1] if own else frames


def _own(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        if _is_own(frame):
            yield frame
        frame = frame.f_back


def _is_own(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith((_FROZEN, *_LIBRARIES))


def _waiting() -> list[FrameType]:
    """Return the user's frames of the one thread that waits for a backward, if it is one."""
    found = []
    for frame in sys._current_frames().values():  # noqa: SLF001 - nor to other threads'
        around: FrameType | None = frame
        while around is not None and around.f_code.co_name != _BACKWARD:
            around = around.f_back
        if around is not None:
            found.append(list(_own(around)))
    return found[0] if len(found) == 1 else []


def _place(frame: FrameType) -> str:
    code = frame.f_code
    name = "" if code.co_name == "<module>" else f" in {code.co_name}"
    return f"{file_name(code.co_filename)}:{frame.f_lineno}{name}"


def file_name(name: str) -> str:
    """Return the name of a file as a person knows it: that of a cell is its number."""
    shell: Any = sys.modules.get("IPython.core.interactiveshell")
    if shell is not None and shell.InteractiveShell.initialized():
        compiler: Any = shell.InteractiveShell.instance().compile
        cell = getattr(compiler, "format_code_name", lambda _: None)(name)
        if cell is not None:
            return " ".join(cell)
    return name
