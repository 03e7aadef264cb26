"""Compiled code, opened while a session asks for it: `compiled="eager"`.

Torch has a switch for this, the stance of its compiler. Sessions may end in any order, in the
middle of a block of the user's that sets a stance too. So what a session puts there becomes, when
it closes, a copy of what was there before: whoever puts it back later puts back the right thing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import torch

_Hook = TypeVar("_Hook", bound=Callable[..., Any])

NOTICE: Final = (
    "everything that torch.compile made ran uncompiled while this was watched, as asked for by "
    '`compiled="eager"`: slower, and with the rounding of eager code'
)


def beside(hook: _Hook) -> _Hook:
    """Keep torch.compile from compiling a hook of ours that runs beside the user's compiled code.

    What it calls stays uncompiled too. Where the hook lies inside a graph this does not matter: it
    is traced into the graph there, and leaves at once.
    """
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):  # in torch 2.6 not yet
        skip = frames._FrameAction.SKIP
        strategy = frames._FrameExecStrategy(skip, skip)
        frames.set_code_exec_strategy(hook.__code__, strategy)
    return hook


class Uncompiled:
    """Makes torch run compiled code eagerly, in the whole process."""

    def __init__(self) -> None:
        """Change nothing yet."""
        self._ours: Any = None
        self._before: Any = None

    def open(self) -> None:
        """Run everything eagerly from here on."""
        from torch._dynamo import eval_frame  # takes a second to load, where it is not needed

        self._before = eval_frame._stance
        self._ours = eval_frame.DynamoStance("force_eager")
        eval_frame._set_stance(self._ours)

    def close(self) -> None:
        """Let compiled code be compiled again; closing twice is harmless."""
        if self._ours is None:
            return
        from torch._dynamo import eval_frame

        vars(self._ours).update(vars(self._before))
        if eval_frame._stance is self._ours:
            eval_frame._stance = self._before
