"""One training, bare or watched, and what differs between two."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.peers import programs
from benchmarks.peers.tools import load
from benchmarks.peers.watching import Watching


class Trained(NamedTuple):
    """What a training leaves."""

    losses: list[float]
    parameters: dict[str, Tensor]
    random: Tensor


def bare(program: str, steps: int, **how: bool) -> Trained:
    """Train without anybody looking."""
    model, called, optimizer = _made(program, **how)
    losses = programs.train(Watching(called), optimizer, steps, autocast=how.get("autocast", False))
    return _left(model, losses)


def watched(
    tool: str,
    program: str,
    folder: Path,
    stack: contextlib.ExitStack,
    *,
    steps: int,
    **how: bool,
) -> Trained:
    """Train the same while a package watches what is called."""
    model, called, optimizer = _made(program, **how)
    watching = stack.enter_context(load(tool).watch(called, optimizer, folder))
    losses = programs.train(watching, optimizer, steps, autocast=how.get("autocast", False))
    return _left(model, losses)


def _made(
    program: str, *, compiled: bool = False, ddp: bool = False, autocast: bool = False
) -> tuple[nn.Module, Any, torch.optim.Optimizer]:
    del autocast
    torch.set_num_threads(1)
    model = programs.model(program)
    called: Any = model
    if compiled:
        torch.compiler.reset()
        called = torch.compile(model)
    if ddp:
        called = nn.parallel.DistributedDataParallel(model)
    return model, called, torch.optim.AdamW(model.parameters(), lr=1e-2)


def _left(model: nn.Module, losses: list[float]) -> Trained:
    parameters = {name: each.detach().clone() for name, each in model.named_parameters()}
    return Trained(losses, parameters, torch.get_rng_state())


def difference(one: Trained, other: Trained) -> dict[str, Any]:
    """Say how many parameters differ, by how much at most, and whether random numbers do."""
    pairs = [(value, other.parameters[name]) for name, value in one.parameters.items()]
    unlike = [(a - b).abs().max().item() for a, b in pairs if not _same(a, b)]
    return {
        "parameters": len(pairs),
        "unlike": len(unlike),
        "by": max(unlike, default=0.0),
        "random": torch.equal(one.random, other.random),
    }


def _same(a: Tensor, b: Tensor) -> bool:
    """Compare bits: a NaN is itself."""
    return torch.equal(a.view(torch.int32), b.view(torch.int32))
