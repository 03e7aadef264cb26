"""Reading beside the user's modes: what we ask of a tensor is not theirs to see."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes


def aside() -> contextlib.AbstractContextManager[Any]:
    """Return a guard under which no function mode, dispatch mode or tensor class sees our calls.

    Without a dispatch mode it is a guard of torch's own, which `with` enters in one instruction.
    """
    functions: contextlib.AbstractContextManager[Any] = torch._C.DisableTorchFunction()
    if not torch._C._len_torch_dispatch_stack():
        return functions
    stack = contextlib.ExitStack()
    stack.enter_context(functions)
    stack.enter_context(_disable_current_modes())
    return stack
