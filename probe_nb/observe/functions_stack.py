"""Our function mode on torch's stack of modes: put at the bottom, found again by what it is.

Modes of the user's come and go in blocks, and leaving a block takes away what is on top, whatever
that is. So ours lies below theirs. Only the mode of a default device is kept at the very bottom by
torch, and looked for there.

What is on the stack is changed by one call into C. Python looks for an interrupt before and after
it and not in between, so that a Ctrl-C can never leave half of the user's modes away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, repeat, starmap
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

_at: Final[Callable[[int], Any]] = torch._C._get_function_stack_at
_length: Final[Callable[[], int]] = torch._C._len_torch_function_stack
_pop: Final[Callable[[], Any]] = torch._C._pop_torch_function_stack
_push: Final[Callable[[Any], None]] = torch._C._push_on_torch_function_stack


def modes() -> list[Any]:
    """Return the modes of this thread, the innermost last."""
    return [_at(place) for place in range(_length())]


def put(mode: TorchFunctionMode) -> None:
    """Put a mode below all others of this thread."""
    before = modes()
    devices = int(bool(before) and isinstance(before[0], DeviceContext))
    _set(len(before), [*before[:devices], mode, *before[devices:]])


def take(mode: TorchFunctionMode) -> bool:
    """Take a mode away, wherever it lies; tell whether it was there. May be repeated."""
    before = modes()
    rest = [each for each in before if each is not mode]
    if len(rest) == len(before):
        return False
    _set(len(before), rest)
    return True


def _set(there: int, modes: Sequence[Any]) -> None:
    """Replace the modes that are there, in one call."""
    deque(chain(starmap(_pop, repeat((), there)), map(_push, modes)), maxlen=0)
