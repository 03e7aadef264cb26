"""What a package adds to a step, as a process that measures one round when asked.

`python -m benchmarks.peers.cost TOOL LEVEL SIZE FOLDER CLOCK`, run where the package is. The bare
step is that of an untouched twin of the model, in the same process and in turns.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.models import SIZES, batch, encoder, train
from benchmarks.peers.tools import Tool, load
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
    seen = (
        _Open(tool, model, x, Path(folder))
        if name != "ours"
        else _Anew(tool, model, x, Path(folder))
    )

    def bare(times: int) -> float:
        return clock.per_run(lambda: train(twin, x), times)

    for _ in range(2):
        bare(1)
        seen.time(clock, 1)
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        many = size.msprobe_steps
        before, watched, after = bare(many), seen.time(clock, many), bare(many)
        print(json.dumps(between([before, after], [watched])[0]), file=answers, flush=True)
    os._exit(0)  # what was written is of no interest, and closing may take long


class _Open:
    """A package that is open all the time: it sees its own model alone."""

    def __init__(self, tool: Tool, model: Any, x: torch.Tensor, folder: Path) -> None:
        self._tool, self._model, self._x, self._folder = tool, model, x, folder
        self._watching = self._enter(contextlib.ExitStack())

    def _enter(self, stack: contextlib.ExitStack) -> Watching:
        self._stack = stack
        return stack.enter_context(self._tool.watch(self._model, None, self._folder))

    def time(self, clock: Stopwatch, times: int) -> float:
        """Return the seconds of a watched step."""
        return clock.per_run(lambda: _step(self._watching, self._model, self._x), times)


class _Anew(_Open):
    """A package whose hooks are on every module, or which sees every function, while it is open.

    It is opened for each timing, so that the bare step is bare; the first step is not timed.
    """

    def time(self, clock: Stopwatch, times: int) -> float:
        """Return the seconds of a watched step."""
        self._stack.close()
        with contextlib.ExitStack() as stack:
            self._watching = self._enter(stack)
            _step(self._watching, self._model, self._x)
            return super().time(clock, times)


def _step(watching: Watching, model: Any, x: torch.Tensor) -> None:
    model.zero_grad(set_to_none=True)
    watching.backward(watching.forward(x).square().mean())
    watching.after()


if __name__ == "__main__":
    main(*sys.argv[1:])
