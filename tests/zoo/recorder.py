"""What every module was fed and returned, written down without any of the tools under test.

Hooks on modules would switch fused paths off, so `nn.Module.__call__` is replaced for a while. Each
tensor is measured at once, by the oracle, before the module can overwrite it.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests import oracle
from tests.zoo.traces import dense, leaves

Place = tuple[str, str, str]
"""Module path, role and leaf path."""


@dataclass(frozen=True)
class Truth:
    """One tensor as it was when it was seen."""

    dtype: str
    shape: tuple[int, ...] | None
    """None for one that is ragged or not built yet."""
    status: str
    requires_grad: bool
    numbers: oracle.Expected | None

    @classmethod
    def of(cls, t: Tensor) -> Truth:
        dtype = str(t.dtype).removeprefix("torch.")
        if torch._C._functorch.is_functorch_wrapped_tensor(t):
            return cls(dtype, tuple(t.shape), "vmapped", t.requires_grad, None)
        if t.device.type == "meta" or isinstance(t, nn.UninitializedParameter):
            return cls(dtype, None, "meta", t.requires_grad, None)
        numbers = oracle.expected(dense(t))
        status = "ok" if numbers.statistics else "no_finite" if numbers.numel else "empty"
        shape = None if t.is_nested else tuple(t.shape)
        return cls(dtype, shape, status, t.requires_grad, numbers)


@dataclass
class Records:
    """All that was seen, in order of execution."""

    seen: dict[Place, list[Truth]] = field(default_factory=lambda: defaultdict(list))
    gradients: dict[tuple[str, str, int], list[Truth]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """What arrived at an output: by module path, leaf path and number of the call."""
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    parameters: dict[tuple[str, str], Truth] = field(default_factory=dict)
    """Before the first call, each once, under the first module that has it."""
    param_grads: dict[tuple[str, str], Truth] = field(default_factory=dict)


@contextlib.contextmanager
def recorded(model: nn.Module, *, gradients: bool = True) -> Iterator[Records]:
    """Write down what the modules of a model see until the block ends."""
    records = Records()
    there = list(model.named_modules())  # held: a module made meanwhile must not get their identity
    paths = {id(module): path for path, module in there}
    records.parameters = {place: Truth.of(p) for place, p in _parameters(model)}
    original = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        path = paths.get(id(module))
        if path is None:
            return original(module, *args, **kwargs)
        number = records.calls[path]
        records.calls[path] += 1
        _write(records, path, "input", [*leaves(args), *leaves(kwargs, "kwargs")])
        came_in = {id(t) for _, t in leaves([args, kwargs])}
        output = original(module, *args, **kwargs)
        results = list(leaves(output, caches=True))
        _write(records, path, "output", results)
        if gradients:
            for leaf, t in results:
                _await(records, (path, leaf, number), t, came_in)
        return output

    nn.Module.__call__ = call
    try:
        yield records
    finally:
        nn.Module.__call__ = original
        for place, p in _parameters(model):
            if records.parameters[place].status == "meta":
                records.parameters[place] = Truth.of(p)
            if p.grad is not None:
                records.param_grads[place] = Truth.of(p.grad)


def _write(records: Records, path: str, role: str, found: Any) -> None:
    for leaf, t in found:
        records.seen[path, role, leaf].append(Truth.of(t))


def _await(records: Records, place: tuple[str, str, int], t: Tensor, came_in: set[int]) -> None:
    """Write down the gradient of an output, unless asking for it would change the backward."""
    written_view = t._is_view() and not t.is_inference() and t._version > 0
    if t.requires_grad and not t.is_leaf and not written_view and id(t) not in came_in:
        t.register_hook(lambda g: records.gradients[place].append(Truth.of(g)))


def _parameters(model: nn.Module) -> Iterator[tuple[tuple[str, str], nn.Parameter]]:
    known: set[int] = set()
    for path, module in model.named_modules():
        for name, p in module._parameters.items():
            if p is not None and id(p) not in known:
                known.add(id(p))
                yield (path, name), p


def faults(row: Any, bins: dict[tuple[int, int], int], truth: Truth) -> list[str]:
    """Return where a row of `run.df` (a dict) departs from the truth."""
    wrong = [] if row["status"] == truth.status else [f"status {row['status']}, not {truth.status}"]
    if row["dtype"] != truth.dtype:
        wrong.append(f"dtype {row['dtype']}, not {truth.dtype}")
    if truth.shape is not None and row["shape"] != truth.shape:
        wrong.append(f"shape {row['shape']}, not {truth.shape}")
    gradient = row["direction"] == "backward"
    if not gradient and bool(row["requires_grad"]) != truth.requires_grad:
        wrong.append(f"requires_grad {row['requires_grad']}, not {truth.requires_grad}")
    if truth.numbers is None or wrong:
        return wrong
    if truth.shape is not None and row["numel"] != math.prod(truth.shape):
        wrong.append(f"numel {row['numel']}, not {truth.numbers.numel}")
    statistics = {name: _float(row[name]) for name in oracle.STATISTICS}
    return wrong + oracle.faults(truth.numbers, statistics, row, bins)


def _float(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan
