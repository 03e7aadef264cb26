"""What plain hooks see of a program: the proof of a fault owes nothing to the tool."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

if TYPE_CHECKING:
    from benchmarks.faults.case import Program


@dataclass(frozen=True)
class Seen:
    """One floating-point tensor: where it was seen, and the little that proofs need of it."""

    step: int
    role: str
    module: str
    leaf: str
    nan: int
    inf: int
    neginf: int
    absmax: float
    zeros: float

    @property
    def bad(self) -> bool:
        """Tell whether it holds NaN or +Inf; -Inf may be a mask."""
        return self.nan + self.inf > 0


@dataclass
class Trace:
    """Everything in the order in which it happened, and the loop's parameters before each step."""

    parents: dict[str, list[str]]
    seen: list[Seen] = field(default_factory=list)
    moved: dict[str, list[float]] = field(default_factory=dict)
    """By parameter, the norm of each step's update over the norm before it; 0: it did not move."""
    step: int = 0

    def rows(self, role: str, module: str | None = None, leaf: str | None = None) -> list[Seen]:
        """Return what was seen in this role, at this module."""
        return [
            s
            for s in self.seen
            if s.role == role and module in {None, s.module} and leaf in {None, s.leaf}
        ]

    def absmax(self, role: str, module: str, leaf: str | None = None) -> list[float]:
        """Return the largest magnitude, in order."""
        return [s.absmax for s in self.rows(role, module, leaf)]

    def first_bad(self) -> Seen | None:
        """Return the first tensor with NaN or +Inf."""
        return next((s for s in self.seen if s.bad), None)

    def forward_is_finite(self, step: int) -> bool:
        """Tell whether no module of this step was fed or returned NaN or +Inf."""
        forward = [s for s in self.seen if s.step == step and s.role in {"input", "output"}]
        return bool(forward) and not any(s.bad for s in forward)


def traced(program: Program) -> Trace:
    """Run the program under plain hooks."""
    names = dict(program.model.named_modules())
    trace = Trace({name: _inside(name, names) for name in names})
    hooks = [hook for name, module in names.items() for hook in _hooks(trace, name, module)]
    parameters = dict(program.model.named_parameters())
    try:
        for trace.step in range(program.steps):
            before = {name: p.detach().clone() for name, p in parameters.items()}
            program.step(trace.step)
            for name, p in parameters.items():
                trace.moved.setdefault(name, []).append(_moved(before[name], p.detach()))
                path, _, leaf = name.rpartition(".")
                _note(trace, "param", path, leaf, p)
    finally:
        for hook in hooks:
            hook.remove()
    return trace


def _inside(name: str, names: dict[str, nn.Module]) -> list[str]:
    """Return the modules directly inside `name`."""
    return [n for n in names if n and n.rpartition(".")[0] == name]


def _hooks(trace: Trace, name: str, module: nn.Module) -> Iterator[Any]:
    def before(_: nn.Module, args: Any, kwargs: Any) -> None:
        for tensor in _tensors([args, kwargs]):
            _note(trace, "input", name, "", tensor)
            _hear(tensor, "grad_input")

    def after(_: nn.Module, __: Any, out: Any) -> None:
        for tensor in _tensors(out):
            _note(trace, "output", name, "", tensor)
            _hear(tensor, "grad_output")

    def _hear(tensor: Tensor, role: str) -> None:
        if tensor.requires_grad:
            tensor.register_hook(lambda grad: _note(trace, role, name, "", grad))

    yield module.register_forward_pre_hook(before, with_kwargs=True)
    yield module.register_forward_hook(after)
    for leaf, parameter in module.named_parameters(recurse=False):
        _note(trace, "param", name, leaf, parameter)
        if parameter.requires_grad:
            yield parameter.register_hook(
                lambda grad, leaf=leaf: _note(trace, "param_grad", name, leaf, grad)
            )


def _note(trace: Trace, role: str, module: str, leaf: str, tensor: Tensor) -> None:
    """Write a tensor down; integers are no evidence."""
    if not tensor.is_floating_point() or not tensor.numel():
        return
    x = tensor.detach().float().numpy().ravel()
    absmax, zeros = float(np.abs(x).max()), 1 - np.count_nonzero(x) / x.size
    nan = inf = neginf = 0
    if not math.isfinite(absmax):
        finite = x[np.isfinite(x)]
        nan = int(np.isnan(x).sum())
        inf, neginf = int((x == np.inf).sum()), int((x == -np.inf).sum())
        absmax = float(np.abs(finite).max()) if finite.size else math.nan
    trace.seen.append(Seen(trace.step, role, module, leaf, nan, inf, neginf, absmax, zeros))


def _moved(before: Tensor, after: Tensor) -> float:
    change = (after.double() - before.double()).norm().item()
    return change / max(before.double().norm().item(), 1e-30) if change else 0.0


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)
