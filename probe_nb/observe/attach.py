"""Attaches every hook through one ExitStack, so that a failure half-way leaves none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from torch.nn.modules import module as torch_module

from probe_nb.observe.modules import ModuleHooks


def attach(modules: ModuleHooks, *others: Callable[[ExitStack], None]) -> ExitStack:
    """Register the process-wide hooks, then let the others register theirs.

    Returns the stack that takes everything away again, in reverse order, when it is closed.
    """
    with ExitStack() as stack:
        for other in others:
            other(stack)
        before = torch_module.register_module_forward_pre_hook(modules.before)
        stack.callback(before.remove)
        after = torch_module.register_module_forward_hook(modules.after, always_call=True)
        stack.callback(after.remove)
        return stack.pop_all()
