"""What a package adds to a step, as a process that measures one round when asked.

`python -m benchmarks.peers.cost TOOL LEVEL SIZE FOLDER CLOCK`, run where the package is. The bare
step is that of an untouched twin of the model, in the same process and in turns.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.models import SIZES, batch, encoder, train
from benchmarks.peers.tools import load
from benchmarks.peers.watching import Watching
from benchmarks.timing import Stopwatch, between


def main(name: str, level: str, size_name: str, folder: str, clock_name: str) -> None:
    """Answer every line of standard input with one JSON line: a ratio against the bare step."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    size, clock, tool = SIZES[size_name], Stopwatch(cpu=clock_name == "cpu"), load(name)
    if level:
        tool.LEVEL = level  # type: ignore[attr-defined]
    x, twin = batch(size.width), encoder(size.width, size.layers)
    model = encoder(size.width, size.layers)
    with tool.watch(model, None, Path(folder)) as watching:

        def bare() -> None:
            train(twin, x)

        def watched() -> None:
            _step(watching, model, x)

        for act in (bare, watched, watched):
            act()
        print("ready", file=answers, flush=True)
        for _ in sys.stdin:
            times = [clock.per_run(act, size.msprobe_steps) for act in (bare, watched, bare)]
            print(json.dumps(between(times[::2], times[1:2])[0]), file=answers, flush=True)
        os._exit(0)  # what was written is of no interest, and closing may take long


def _step(watching: Watching, model: Any, x: torch.Tensor) -> None:
    model.zero_grad(set_to_none=True)
    watching.backward(watching.forward(x).square().mean())
    watching.after()


if __name__ == "__main__":
    main(*sys.argv[1:])
