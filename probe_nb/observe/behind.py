"""Hooks behind a module's own hooks, for the few modules that have some.

Process-wide hooks run before a module's own, which may still replace its arguments or its
result. On such a module a hook of ours is put at the end of its own. It is on the module, so it
would travel with copies: a deep copy drops it again, a pickle carries a function that does
nothing.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

from probe_nb.observe.compiled import beside
from probe_nb.observe.replicas import is_replica

_BEFORE: Final[Any] = torch_module._global_forward_pre_hooks
_AFTER: Final[Any] = torch_module._global_forward_hooks
_TABLES = (
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
    *("_forward_hooks", "_forward_hooks_with_kwargs"),
)


class Behind:
    """One hook at the end of a module's own; call `last` before relying on it."""

    def __init__(
        self,
        module: nn.Module,
        act: Callable[..., None],
        fault: Callable[[Exception], None],
        *,
        pre: bool,
    ) -> None:
        """Put `act` behind the pre hooks (`pre`) or the forward hooks of the module."""
        self._module = weakref.ref(module)
        self._act: Callable[..., None] | None = act
        self._fault: Callable[[Exception], None] | None = fault
        self._pre = pre
        self._handle: RemovableHandle | None = None

    def last(self) -> bool:
        """Go to the end of the module's hooks; True if it was there already."""
        module = self._module()
        if module is None:
            return False
        table: Any = module._forward_pre_hooks if self._pre else module._forward_hooks
        if self._handle is not None and next(reversed(table), None) == self._handle.id:
            return True
        if self._handle is not None and self._handle.id in table:
            table.move_to_end(self._handle.id)
            return False
        if self._handle is not None:  # somebody cleared the table, but not that of its flags
            self._handle.remove()
        if self._pre:
            self._handle = module.register_forward_pre_hook(self, with_kwargs=True)
        else:
            self._handle = module.register_forward_hook(self)
        return False

    def remove(self) -> None:
        """Leave the module as it was, and do nothing wherever else this may have got to."""
        self._act = self._fault = None
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    @beside
    def __call__(self, module: nn.Module, args: Any, *rest: Any) -> None:
        """Run as torch's hook."""
        try:
            if torch.compiler.is_compiling():
                return
            if module is not self._module() and not is_replica(module):
                self._leave(module)
            elif self._act is not None and rest:
                self._act(module, args, *rest)
        except Exception as error:  # a fault of ours is never the user's
            if self._fault is not None:
                self._fault(error)

    def _leave(self, module: nn.Module) -> None:
        """Go away from a module that this was moved to, by code that fuses modules for example."""
        for name in _TABLES[:2] if self._pre else _TABLES[2:]:
            table = module.__dict__.get(name, {})
            for key in [key for key, hook in list(table.items()) if hook is self]:
                table.pop(key, None)

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        """Let the copy of the module forget this hook as soon as the copying is over."""
        cleaner = memo.setdefault("probe_nb", _Cleaner())
        copied = memo.get(id(self._module()))
        if copied is not None and self._handle is not None:
            cleaner.todo.append((copied, self._handle.id))
        return _inert()

    def __reduce__(self) -> tuple[Any, ...]:
        """Be nothing in a pickle, readable without probe_nb."""
        return (getattr, (contextlib.nullcontext(), "__exit__"))


class Behinds:
    """Such hooks, put on modules that are seen to have some of their own."""

    def __init__(
        self,
        before: Callable[..., None],
        after: Callable[..., None],
        fault: Callable[[Exception], None],
    ) -> None:
        """Put on nothing yet."""
        self._before, self._after, self._fault = before, after, fault
        self._known: dict[tuple[int, bool], Behind] = {}

    def waits(self, module: nn.Module, *, pre: bool) -> bool:
        """Tell whether a hook of ours runs behind the module's own in this very call.

        Where torch runs hooks it has chosen them all: one that must be added then, or has to go
        behind another, comes too late for this call.
        """
        key = (id(module), pre)
        behind = self._known.get(key)
        if behind is None:
            act = self._before if pre else self._after
            behind = self._known[key] = Behind(module, act, self._fault, pre=pre)
        return behind.last()

    def remove(self) -> None:
        """Take all away."""
        for behind in self._known.values():
            behind.remove()
        self._known.clear()


def overtaken(ours: object, kind: type) -> bool:
    """Go behind process-wide hooks that were put on after ours; True if one was in time.

    Torch chooses those before the forward of a call when it begins, and the others after it. Hooks
    of a `kind` are those of sessions: they need not be overtaken.
    """
    late = False
    for table in (_BEFORE, _AFTER):
        passed = False
        for key, hook in reversed(list(table.items())):
            owner = getattr(hook, "__self__", None)
            if owner is ours and passed:
                table.move_to_end(key)
                late |= table is _BEFORE
            passed |= not isinstance(owner, kind)
    return late


def _inert() -> Callable[..., None]:
    """Return a function of the standard library that takes anything and does nothing."""
    return contextlib.nullcontext().__exit__


class _Cleaner:
    """Lives in the memo of one deep copy and dies with it, when the copies are complete."""

    def __init__(self) -> None:
        self.todo: list[tuple[nn.Module, int]] = []

    def __del__(self) -> None:
        for module, key in self.todo:
            for table in _TABLES:
                getattr(module, table, {}).pop(key, None)
