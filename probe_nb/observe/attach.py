"""Attaches every hook through one ExitStack, so that a failure half-way leaves none."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack

from torch.nn.modules import module as torch_module

from probe_nb.observe.modules import ModuleHooks


def attach(modules: ModuleHooks, *others: Callable[[ExitStack], None], compiled: bool) -> ExitStack:
    """Register the process-wide hooks, then let the others register theirs.

    Returns the stack that takes everything away again, in reverse order, when it is closed.
    """
    with ExitStack() as stack:
        if compiled:
            _quiet_about_global_hooks(stack)
        for other in others:
            other(stack)
        before = torch_module.register_module_forward_pre_hook(modules.before)
        stack.callback(before.remove)
        after = torch_module.register_module_forward_hook(modules.after, always_call=True)
        stack.callback(after.remove)
        return stack.pop_all()


def _quiet_about_global_hooks(stack: ExitStack) -> None:
    """Keep one warning of torch's from the user while our hooks are there.

    Every call of a compiled module says that process-wide hooks fire once more for it. Ours do
    not: the wrapper that torch.compile makes is not watched.
    """
    filters = warnings.filters
    before = list(filters)
    mine = f"(?#{id(stack)})"  # each session its own: equal filters would be merged
    message = f"Using `torch.compile\\(module\\)` when there are{mine}"
    warnings.filterwarnings("ignore", message=message)
    added = [each for each in filters if each not in before]

    def remove() -> None:
        for each in added:
            for lists in (filters, warnings.filters):  # two, inside a `catch_warnings`
                if each in lists:
                    lists.remove(each)  # type: ignore[attr-defined]

    stack.callback(remove)
