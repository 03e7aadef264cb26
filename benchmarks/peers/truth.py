"""What plain hooks of torch and `autograd` say about the first step of the plain program."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers import programs
from benchmarks.peers.watching import Watching

OUTPUT = "outputs"
AGAIN = "the second call of a module"
INPUT = "inputs"
NAMED = "inputs by keyword"
GRADIENT = "gradients of outputs"
GRADIENT_AGAIN = "gradients of the second call"
IN_PLACE = "gradients before an activation in place"
GRADIENT_IN = "gradients of inputs, the share of one module"
PARAMETER = "parameters"
PARAMETER_GRADIENT = "gradients of parameters"
EACH_CALL = "what one call adds to the gradient of a parameter"
UPDATE = "how far the optimizer moved a parameter"
_WEIGHT = "blocks.1.down.weight"
"""Seen before the step or after it, as a package likes."""


def tensors() -> dict[str, list[tuple[float, float]]]:
    """Return the smallest and the largest element of a tensor of each kind; any of them will do."""
    model = programs.model("plain")
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen, gradients = _hooked(model)
    programs.train(Watching(model), optimizer, 1)
    (twice_first, twice_again) = seen["twice"]
    attend = model.blocks[0].attend
    x, scale, _ = next(programs.batches(1))
    found = {
        OUTPUT: seen["blocks.0.attend.q"][0][1],
        AGAIN: twice_again[1],
        INPUT: x,
        NAMED: scale,
        GRADIENT: gradients["blocks.0.attend.q"][0],
        GRADIENT_AGAIN: gradients["twice"][1],
        IN_PLACE: gradients["blocks.1.up"][0],
        GRADIENT_IN: gradients["blocks.0.attend.q"][0] @ before["blocks.0.attend.q.weight"],
        PARAMETER: before[_WEIGHT],
        PARAMETER_GRADIENT: attend.out.weight.grad,
        EACH_CALL: gradients["twice"][0].T @ twice_first[0],
        UPDATE: model.head.weight - before["head.weight"],
    }
    ranges = {name: [_range(each)] for name, each in found.items()}
    ranges[PARAMETER].append(_range(model.get_parameter(_WEIGHT).detach()))
    return ranges


def _hooked(model: nn.Module) -> tuple[dict[str, list[Any]], dict[str, list[Tensor]]]:
    """Collect what goes into each module and comes out, and the gradients, call by call."""
    seen: dict[str, list[Any]] = {}
    gradients: dict[str, list[Tensor]] = {}
    for name, module in model.named_modules():

        def look(_: nn.Module, given: Any, out: Tensor, name: str = name) -> None:
            calls = seen.setdefault(name, [])
            slots = gradients.setdefault(name, [])
            calls.append((given[0].detach().clone() if given else None, out.detach().clone()))
            slots.append(torch.empty(0))
            keep = functools.partial(_keep, slots, len(slots) - 1)
            if out.requires_grad:
                out.register_hook(keep)

        module.register_forward_hook(look)
    return seen, gradients


def _keep(slots: list[Tensor], at: int, gradient: Tensor) -> None:
    slots[at] = gradient.detach().clone()


def _range(found: Tensor) -> tuple[float, float]:
    return found.min().item(), found.max().item()
