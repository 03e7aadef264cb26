"""What the cases share: a watched forward and backward, and the truth from a twin without a watch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import probe_nb as probe
from tests import oracle
from tests.models import no_faults, tensors

Loss = Callable[[Any], Tensor]


def squares(output: Any) -> Tensor:
    """Return a loss over every tensor of an output that has a gradient."""
    return sum(t.abs().square().sum() for t in tensors(output) if t.requires_grad)


def watched(model: nn.Module, *args: Any, loss: Loss = squares, **kwargs: Any) -> probe.Run:
    """Run one forward and backward under a watch that must not report a fault."""
    with no_faults(), probe.watch(model, live=False) as run:
        loss(model(*args, **kwargs)).backward()
    assert "failed" not in set(run.df["status"])
    return run


def through(*values: Tensor) -> probe.Run:
    """Pass tensors through a watched module, one step each."""
    model = nn.Identity()
    with no_faults(), probe.watch(model, roles="output", live=False) as run:
        for value in values:
            assert model(value) is value
    assert len(run) == len(values)
    return run


def numbers(run: probe.Run, role: str, stat: str = "l2") -> dict[tuple[str, str], Any]:
    """Return {(module, leaf): number} of one role; each place has one row."""
    rows = run.frame(role=[role])
    found = dict(zip(zip(rows["module"], rows["leaf"], strict=True), rows[stat], strict=True))
    assert len(found) == len(rows), "a place has two rows"
    return found


def truth(model: nn.Module, *args: Any, loss: Loss = squares, **kwargs: Any) -> dict[str, Any]:
    """Return {module: (output, gradient)} of a model that writes nothing in place."""
    outputs: dict[str, Tensor] = {}
    handles = [
        module.register_forward_hook(lambda _, __, out, name=name: outputs.__setitem__(name, out))
        for name, module in model.named_modules()
    ]
    total = loss(model(*args, **kwargs))
    for handle in handles:
        handle.remove()
    single = {name: out for name, out in outputs.items() if isinstance(out, Tensor)}
    gradients = torch.autograd.grad(total, list(single.values()), allow_unused=True)
    return {name: (single[name], g) for name, g in zip(single, gradients, strict=True)}


def norm(t: Tensor) -> Any:
    """Return what the `l2` of a tensor must be."""
    value = oracle.expected(t.detach()).statistics["l2"]
    return pytest.approx(value, rel=1e-5, abs=1e-12)
