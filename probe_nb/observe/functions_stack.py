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
_push: Final[Callable[[Any], None]] = torch._C._push_on_torch_function_stack


def modes() -> list[Any]:
    """Return the modes of this thread, the innermost last."""
    return [_at(place) for place in range(_length())]


class Place:
    """The place of one mode on the stack of the thread that put it there."""

    def __init__(self, mode: TorchFunctionMode) -> None:
        """Have none yet."""
        self._mode = mode
        self._open = False
        self._away: tuple[int, int] | None = None

    def put(self) -> None:
        """Put the mode below all others of this thread."""
        self._open, self._away = True, None
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
        """Step aside for a model that is compiled."""
        if torch.compiler.is_compiling() or not self._open:
            return
        if self._away is not None and not _runs(self._away[1]):  # left by an interrupt
            self.put()
        if self._away is None and type(module).__name__ == "OptimizedModule" and self._take():
            self._away = id(module), id(sys._getframe(1))

    @beside
    def after(self, module: Any, *_: object) -> None:
        """Come back when it is done, whatever ended it."""
        if torch.compiler.is_compiling() or not self._open or self._away is None:
            return
        if self._away[0] == id(module):
            self.put()


def _runs(identity: int) -> bool:
    """Tell whether a frame is among the callers."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and id(frame) != identity:
        frame = frame.f_back
    return frame is not None


def _set(there: int, modes: Sequence[Any]) -> None:
    """Replace the modes that are there, in one call."""
    deque(chain(starmap(_pop, repeat((), there)), map(_push, modes)), maxlen=0)
