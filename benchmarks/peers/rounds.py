"""The other end of `cost`: processes that wait, idle, and take turns."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Final

from benchmarks.models import SIZES
from benchmarks.peers import environments
from benchmarks.timing import Ratio, ratio

MEASURED: Final = (
    ("ours", "module"),
    ("ours", "mix"),
    ("msprobe", "L0"),
    ("msprobe", "mix"),
    ("tensorboard", ""),
    ("wandb", ""),
    ("torchlens", ""),
    ("torchinstruments", ""),
)
"""Packages and, where they have some, levels."""


class _Process:
    def __init__(self, tool: str, level: str, size: str, *, cpu: bool) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="peers_", ignore_cleanup_errors=True)
        python = environments.python(tool)
        words = [tool, level, size, self._folder.name, "cpu" if cpu else "wall"]
        self._running = subprocess.Popen(
            [str(python), "-m", "benchmarks.peers.cost", *words],
            cwd=environments.ROOT,
            env=environments.variables(python),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.alive = self._line() != ""

    def round(self) -> float | None:
        """Measure once; None when the process has ended."""
        assert self._running.stdin is not None  # noqa: S101 - it was asked for
        try:
            print("round", file=self._running.stdin, flush=True)
        except OSError:
            return None
        line = self._line()
        return float(json.loads(line)) if line else None

    def _line(self) -> str:
        assert self._running.stdout is not None  # noqa: S101 - it was asked for
        return self._running.stdout.readline()

    def close(self) -> None:
        self._running.kill()
        self._running.communicate()
        self._folder.cleanup()


def measure(rounds: int, tools: Sequence[str], *, cpu: bool) -> dict[str, dict[str, Ratio]]:
    """Return for each size the ratios of what is in `MEASURED`, each from `rounds` rounds."""
    return {size: _one_size(size, rounds, tools, cpu=cpu) for size in SIZES}


def _one_size(size: str, rounds: int, tools: Sequence[str], *, cpu: bool) -> dict[str, Ratio]:
    chosen = [each for each in MEASURED if each[0] in tools]
    processes = {" ".join(each).strip(): _Process(*each, size, cpu=cpu) for each in chosen}
    seen: dict[str, list[float]] = {}
    try:
        for _ in range(rounds):
            for name, process in processes.items():
                value = process.round() if process.alive else None
                if value is not None:
                    seen.setdefault(name, []).append(value)
    finally:
        for process in processes.values():
            process.close()
    return {name: ratio(values) for name, values in seen.items()}
