"""Our function mode on torch's stack of modes: put at the bottom, found again by what it is.

Modes of the user's come and go in blocks, and leaving a block takes away what is on top, whatever
that is. So ours lies below theirs. Only the mode of a default device is kept at the very bottom by
torch, and looked for there.

What is on the stack is changed by one call into C. Python looks for an interrupt before and after
it and not in between, so that a Ctrl-C can never leave half of the user's modes away.

A mode on the stack is part of what compiled code depends on: torch would compile all of it anew.
So the mode is away while a compiled model runs, and hears of that by hooks on all modules.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, repeat, starmap
from types import FrameType
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from probe_nb.observe.compiled import beside

_at: Final[Callable[[int], Any]] = torch._C._get_function_stack_at
_length: Final[Callable[[], int]] = torch._C._len_torch_function_stack
_pop: Final[Callable[[], Any]] = torch._C._pop_torch_function_stack
_task: Final[Callable[[], int]] = torch._C._current_graph_task_id
_push: Final[Callable[[Any], None]] = torch._C._push_on_torch_function_stack


def modes() -> list[Any]:
    """Return the modes of this thread, the innermost last."""
    return [_at(place) for place in range(_length())]


class _Here(threading.local):
    """What a thread does."""

    home = False
    """It is the one that put the mode there."""
    away: tuple[int, int] | None = None
    """The compiled module for which the mode is away, and its frame."""
    visit: tuple[int, int] | None = None
    """The module for which the mode came to another thread, and its frame."""


class Place:
    """The place of one mode on the stack of the thread that put it there.

    It comes to other threads with the forward of a watched module, and goes with it.
    """

    def __init__(self, mode: TorchFunctionMode, knows: Callable[[Any], bool]) -> None:
        """Have none yet; `knows` tells of a module whether it is watched."""
        self._mode = mode
        self._knows = knows
        self._open = False
        self._here = _Here()

    def put(self) -> None:
        """Put the mode below all others of this thread, to stay."""
        self._open, self._here.home = True, True
        self._put()

    def _put(self) -> None:
        self._here.away = None
        before = modes()
        devices = int(bool(before) and isinstance(before[0], DeviceContext))
        _set(len(before), [*before[:devices], self._mode, *before[devices:]])

    def leave(self) -> None:
        """Take the mode away for good; may be repeated."""
        self._open = False
        self._take()

    def _take(self) -> bool:
        """Take the mode away, wherever it lies; tell whether it was there."""
        before = modes()
        rest = [each for each in before if each is not self._mode]
        if len(rest) < len(before):
            _set(len(before), rest)
        return len(rest) < len(before)

    @beside
    def before(self, module: Any, *_: object) -> None:
        """Step aside for a model that is compiled; come to where a watched one runs."""
        if torch.compiler.is_compiling() or not self._open:
            return
        here, frame = self._here, id(sys._getframe(1))
        if here.away is not None and not _runs(here.away[1]):  # left by an interrupt
            self._put()
        if here.away is None and type(module).__name__ == "OptimizedModule" and self._take():
            here.away = id(module), frame
        elif not here.home and self._comes(module):
            here.visit = id(module), frame
            self._put()

    def _comes(self, module: Any) -> bool:
        """Tell whether to come to this thread: not to what autograd repeats in one of its own."""
        here = self._here
        if here.visit is not None and _runs(here.visit[1]):
            return False
        return _task() == -1 and self._knows(module)

    @beside
    def after(self, module: Any, *_: object) -> None:
        """Come back when it is done, or go with it, whatever ended it."""
        here = self._here
        if torch.compiler.is_compiling() or (here.away is None and here.visit is None):
            return
        if here.away is not None and here.away[0] == id(module) and self._open:
            self._put()
        elif here.visit is not None and here.visit[0] == id(module):
            frame = sys._getframe(1)  # torch hands an exception on from one of its own
            if here.visit[1] == id(frame) or frame.f_code.co_name == "_call_impl":
                here.visit = None
                self._take()


def _runs(identity: int) -> bool:
    """Tell whether a frame is among the callers."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and id(frame) != identity:
        frame = frame.f_back
    return frame is not None


def _set(there: int, modes: Sequence[Any]) -> None:
    """Replace the modes that are there, in one call."""
    deque(chain(starmap(_pop, repeat((), there)), map(_push, modes)), maxlen=0)
