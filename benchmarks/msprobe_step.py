"""msProbe's side, in its own process: a line comes in, the ratio of one round goes out.

`python -m benchmarks.msprobe_step SIZE LEVEL FOLDER CLOCK`, run in `build/msprobe`.
The bare step is that of an untouched twin of the model, in the same process and in turns.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.models import SIZES, batch, encoder, train
from benchmarks.timing import Stopwatch, between


def main(size_name: str, level: str, folder: str, clock: str) -> None:
    """Answer every line of standard input with one JSON line: a ratio against the bare step."""
    answers = _private_output()
    torch.set_num_threads(1)
    size, watch = SIZES[size_name], Stopwatch(cpu=clock == "cpu")
    x, twin = batch(size.width), encoder(size.width, size.layers)
    watched = _watched_step(encoder(size.width, size.layers), x, level, Path(folder))

    def bare() -> None:
        train(twin, x)

    for act in (bare, watched, watched):
        act()
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        times = [watch.per_run(act, size.msprobe_steps) for act in (bare, watched, bare)]
        print(json.dumps(between(times[::2], times[1:2])[0]), file=answers, flush=True)


def _private_output() -> Any:
    """Keep standard output for the answers; what msProbe prints goes where errors go."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _watched_step(model: Any, x: torch.Tensor, level: str, folder: Path) -> Callable[[], None]:
    """Return a step as msProbe's guide has it: start, train, stop, step."""
    from msprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(config_path=str(_config(level, folder)))

    def watched() -> None:
        debugger.start(model=model)
        train(model, x)
        debugger.stop()
        debugger.step()

    return watched


def _config(level: str, folder: Path) -> Path:
    """Write a configuration: statistics of everything at this level, nothing asynchronous."""
    path = folder / "config.json"
    settings = {
        "task": "statistics",
        "dump_path": str(folder / "dump"),
        "rank": [],
        "step": [],
        "level": level,
        "async_dump": False,
        "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"},
    }
    path.write_text(json.dumps(settings), encoding="utf-8")
    return path


if __name__ == "__main__":
    main(*sys.argv[1:])
