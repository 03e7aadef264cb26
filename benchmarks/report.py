"""Where results go: a file per day in `results/`, and the table in docs/performance.md."""

from __future__ import annotations

import datetime as dt
import os
import platform
from pathlib import Path
from typing import Final

import torch

import probe_nb
from benchmarks.table import refresh
from probe_nb.stats.kernels import cpu as compiled
from tools.msprobe import ROOT, VERSION

RESULTS: Final = Path(__file__).resolve().parent / "results"
PAGE: Final = ROOT / "docs" / "performance.md"


def conditions(rounds: int, statistics_rounds: int, *, msprobe: bool, cpu: bool) -> str:
    """Return one paragraph that says with what the numbers were taken."""
    day = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
    theirs = f", msProbe {VERSION}" if msprobe else ""
    return (
        f"{day}; {machine()}, one thread used; "
        f"{compiled.kernel_name()} kernel, "
        f"probe_nb {probe_nb.__version__}, torch {torch.__version__}{theirs}, "
        f"Python {platform.python_version()}; {rounds} rounds per step row, "
        f"{statistics_rounds} per other row, "
        "every round in turns with what it is measured against"
        f"{', processor time on a busy machine' if cpu else ''}."
    )


def machine() -> str:
    """Return what the numbers were taken on."""
    return f"{_processor()}, {os.cpu_count()} cores"


def _processor() -> str:
    """Return the processor's name as Linux tells it, else what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def write(table: str, taken_with: str) -> list[str]:
    """Write the results of a run; return what was done, a sentence each."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{taken_with.partition(';')[0]}.md"
    path.write_text(f"{taken_with}\n\n{table}\n", encoding="utf-8")
    done = [f"Wrote benchmarks/results/{path.name}."]
    if refresh(PAGE, f"{table}\n\n{taken_with}"):
        done.append(f"Refreshed the table in {PAGE.name}.")
    else:
        done.append(f"{PAGE.name} has no benchmark markers, so there is no table to refresh.")
    return done
