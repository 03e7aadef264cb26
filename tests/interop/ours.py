"""Our runs of `programs`, beside msProbe's own dumps of them."""

from __future__ import annotations

import torch

import probe_nb as probe
from tests.interop import programs


def run_of(program, level, **options):
    """Record a program at a level of msProbe's, where its debugger does."""
    torch.manual_seed(0)
    if program == "save":
        with probe.watch(level="debug", **options) as run:
            programs.save(7, probe.save)
        return run
    model, optimizer = programs.seeded(program)
    functions = None if level == "L0" else "all"
    with probe.watch(
        model, level=level, apis=functions, values=True, stacks=True, **options
    ) as run:
        programs.train(model, optimizer, run.step, lambda _: None, lambda: None)
    return run
