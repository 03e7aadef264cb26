"""msProbe: its debugger at level mix, which is its modules and its functions."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.watching import Watching

DISTRIBUTION = "mindstudio-probe"
HOW = "`PrecisionDebugger`, task statistics, level mix: `start`, the step, `stop`, `step`"
NOTEBOOK = ""
LEVEL = "mix"


@contextlib.contextmanager
def watch(model: Any, optimizer: Any, folder: Path) -> Iterator[Watching]:
    """Start before each forward, stop after the optimizer's step."""
    del optimizer
    from msprobe.pytorch import PrecisionDebugger

    from benchmarks.msprobe_step import _config

    debugger = PrecisionDebugger(config_path=str(_config(LEVEL, folder)))

    inner = getattr(model, "_orig_mod", model)  # what torch.compile returns is refused

    def forward(*given: Any) -> Any:
        debugger.start(model=inner)
        return model(*given)

    def after() -> None:
        debugger.stop()
        debugger.step()

    yield Watching(forward, after=after)


def numbers(folder: Path) -> Iterator[tuple[str, float]]:
    """Read every `dump.json`."""
    for path in sorted(folder.glob("dump/step*/*/dump.json")):
        yield from _leaves(json.loads(path.read_text(encoding="utf-8"))["data"], "")


def _leaves(found: Any, words: str) -> Iterator[tuple[str, float]]:
    if isinstance(found, dict):
        for key, value in found.items():
            yield from _leaves(value, f"{words} {key}")
    elif isinstance(found, list):
        for value in found:
            yield from _leaves(value, words)
    elif isinstance(found, (int, float)):
        yield words, float(found)


def birth(folder: Path, phase: str) -> str:
    """Let its own command analyse each step, and return what it writes."""
    del phase
    command = Path(sys.executable).with_name("msprobe")
    told = []
    for step in sorted(folder.glob("dump/step*")):
        out = folder / "overflow" / step.name
        out.parent.mkdir(exist_ok=True)
        subprocess.run(
            [command, "overflow_check", "-i", step, "-o", out], capture_output=True, check=False
        )
        told += [each.read_text(encoding="utf-8") for each in sorted(out.glob("*.json"))]
    return "\n".join(told)
