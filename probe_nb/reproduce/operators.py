"""The operators of torch that draw, told by what they do to the generators."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from probe_nb.devices import generators
from probe_nb.reproduce import frames
from probe_nb.reproduce.finding import Draw, Seen

UNKNOWN: Final = "unknown"
_BETWEEN = ("torch._compile", "torch._dynamo.eval_frame", "torch._ops")
"""Modules whose frames lie between a function of torch's and us."""


class Operators(TorchDispatchMode):
    """Sees every operator of a thread, also inside composite functions and compiled code."""

    def __init__(self, seen: Seen, native: Callable[[FrameType], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen = seen
        self._native = native
        self._is_open = True
        self.supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let `torch.compile` compile as it would without us."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the operator, and tell of it if it drew."""
        kwargs = kwargs or {}
        if not self._is_open or not _may_draw(func):
            return func(*args, **kwargs)
        positions = Positions([*args, *kwargs.values()])
        result = func(*args, **kwargs)
        frame = sys._getframe(1)  # noqa: SLF001 - there is no other way to the line
        self._seen(lambda: self._drawn(func, positions.moved(), frame))
        return result

    def _drawn(self, func: Any, whose: str | None, frame: FrameType) -> Draw | None:
        if whose is None or (whose == UNKNOWN and not _is_tagged(func)):
            return None
        caller = _caller(frame)
        name = _name(func, caller, None if caller is None else self._native(caller))
        return Draw(name, "torch", whose, caller)

    def __exit__(self, *exception: object) -> None:
        """Leave, also where modes of the user's were entered since and are still there."""
        self._is_open = False
        modes = list(_python_dispatch._get_current_dispatch_mode_stack())  # noqa: SLF001
        if not any(each is self for each in modes):
            return  # of another thread; all we still do there is to pass on
        above = []
        while (top := modes.pop()) is not self:
            _python_dispatch._pop_mode(_key(top))  # noqa: SLF001 - modes are a stack of torch's
            above.append(top)
        super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for each in reversed(above):
            _python_dispatch._push_mode(each)  # noqa: SLF001


def _key(mode: Any) -> Any:
    return vars(mode).get("_dispatch_key") or vars(mode).get("_mode_key")


def _may_draw(func: Any) -> bool:
    """Tell whether to look closer: torch tags those of its operators that draw."""
    return getattr(func, "namespace", "") != "aten" or _is_tagged(func)


def _is_tagged(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())


class Positions:
    """Where the generators are that an operator could draw from, before it runs."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        self._given = [each for each in arguments if isinstance(each, torch.Generator)]
        self._before = self._read()

    def moved(self) -> str | None:
        """Tell whose numbers were drawn since, None if none were."""
        before, after = self._before, self._read()
        for whose in ("global", "own"):
            if before[whose] != after[whose]:
                return whose
        return UNKNOWN if None in [each for places in after.values() for each in places] else None

    def _read(self) -> dict[str, list[bytes | None]]:
        """Read them; None where torch does not tell: while a graph is captured, for example."""
        return {
            "global": list(generators.positions().values()),
            "own": [generators.position(each) for each in self._given],
        }


def _caller(frame: FrameType) -> FrameType | None:
    """Return the frame that called the function of torch's in which an operator runs."""
    for each in frames.outward(frame):
        module = each.f_globals.get("__name__") or ""
        if module not in _BETWEEN and not module.startswith("probe_nb."):
            return each
    return None


def _full_name(func: Any) -> str:
    """Return `aten::rand`; operators of a higher order, such as `cond`, have no schema."""
    schema = getattr(func, "_schema", None)
    return f"higher_order::{func.name()}" if schema is None else str(schema.name)


def _name(func: Any, caller: FrameType | None, native: Any) -> str:
    """Return the name under which people know what drew."""
    module = caller.f_globals.get("__name__") if caller else None
    space, _, operator = _full_name(func).partition("::")
    if str(module).startswith("torch._inductor"):
        return f"torch.compile ({space}.{operator})"
    if native is not None and issubclass(type(native.__self__), Tensor):
        return f"torch.Tensor.{native.__name__}"
    if module == F.__name__ and caller is not None:
        called = getattr(native, "__name__", "")
        return f"{module}.{called if hasattr(F, called) else caller.f_code.co_name}"
    for name in (getattr(native, "__name__", ""), operator if space == "aten" else ""):
        for room, prefix in ((torch, "torch"), (F, F.__name__), (Tensor, "torch.Tensor")):
            if name and hasattr(room, name):
                return f"{prefix}.{name}"
    return f"torch.ops.{space}.{operator}"
