"""A soak: thousands of steps with the inspector open in a real browser; nothing may grow.

    python -m benchmarks.soak                 # 20,000 steps, about ten minutes
    python -m benchmarks.soak --steps 600     # a quick look
    python -m benchmarks.soak --bare          # what the notebook takes without the inspector

JupyterLab runs a notebook that trains a small model under `%probe_start`, with records that move to
disk. While the cell runs, the memory of its kernel (resident set) and of the page (the heap of
JavaScript after a garbage collection, nodes, listeners) is read again and again. What is there
before a fifth of the steps is warm-up; behind it the median of the last fifth may exceed that of
the first by so much as `BOUNDS` says. Exit status 1 if something does.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.browser.harness import Notebook, open_page, serve

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession

STEPS: Final = 20_000
PAUSE: Final = 2.0
"""Seconds between two looks."""

LONGEST: Final = 3600
WARM: Final = 0.2
LEAST: Final = 10
"""Looks behind the warm-up without which nothing can be said."""


class Bound(NamedTuple):
    """How much more there may be in the end: in bytes or numbers, or as a share."""

    more: float
    share: float


MIB: Final = 2**20
BOUNDS: Final = {
    "kernel": Bound(48 * MIB, 0.06),
    "heap": Bound(24 * MIB, 0.25),
    "nodes": Bound(800, 0.10),
    "listeners": Bound(60, 0.10),
}
"""The page keeps frames up to a budget of bytes, and its heap grows until that is reached."""

_SET_UP: Final = """\
import os, time, torch, probe_nb as probe
from torch import nn
%load_ext probe_nb
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(*[nn.Sequential(nn.Linear(24, 24), nn.Tanh()) for _ in range(12)])
opt = torch.optim.AdamW(model.parameters())
print("pid", os.getpid())
"""
_START: Final = "%probe_start model --optimizer opt --memory 16MiB"
_TRAIN: Final = """\
begin = time.time()
for step in range({steps}):
    model(torch.randn(8, 24)).square().mean().backward()
    opt.step()
    opt.zero_grad()
    time.sleep(max(0.0, begin + step * {pace} - time.time()))
print("trained")
"""
_STOP: Final = """\
run = %probe_stop
print("rows", len(run), "spilled", run.columns.spilled)
"""


def resident(pid: int) -> int:
    """Return the memory of a process, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


def look(pid: int, page: CDPSession) -> dict[str, float]:
    """Return what there is now; the page has its garbage collected first."""
    page.send("HeapProfiler.collectGarbage")
    found = {each["name"]: each["value"] for each in page.send("Performance.getMetrics")["metrics"]}
    return {
        "kernel": resident(pid),
        "heap": found["JSHeapUsedSize"],
        "nodes": found["Nodes"],
        "listeners": found["JSEventListeners"],
    }


def soak(steps: int, pace: float, *, bare: bool) -> tuple[list[dict[str, float]], str]:
    """Train in a notebook; return every look, and what the run says in the end."""
    looks: list[dict[str, float]] = []
    start = f"{_START} --no-live" if bare else _START
    cells = [_SET_UP, start, _TRAIN.format(steps=steps, pace=pace), _STOP]
    with (
        tempfile.TemporaryDirectory() as folder,
        serve("lab", Path(folder)) as server,
        open_page() as page,
    ):
        notebook = Notebook(page, server, cells)
        notebook.run(0)
        pid = int(notebook.output(0).last.inner_text().split()[-1])
        notebook.run(1)
        if not bare:
            page.locator(".probe-nb-inspector").first.wait_for(timeout=30_000)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        notebook.start(2)
        begin = time.monotonic()
        while "trained" not in _said(notebook, 2):
            if time.monotonic() - begin > LONGEST:
                raise TimeoutError(f"{steps} steps took more than {LONGEST} s")
            page.wait_for_timeout(PAUSE * 1000)
            looks.append(look(pid, session))
            _shown(looks[-1], time.monotonic() - begin)
        notebook.run(3)
        return looks, next(t for t in _texts(notebook, 3) if t.startswith("rows"))


def _texts(notebook: Notebook, cell: int) -> list[str]:
    return [text for each in notebook.output(cell).all_inner_texts() for text in each.splitlines()]


def _said(notebook: Notebook, cell: int) -> str:
    return "\n".join(_texts(notebook, cell))


def _shown(now: dict[str, float], seconds: float) -> None:
    print(f"{seconds:7.0f} s  {_words(now)}", flush=True)


def _words(now: dict[str, Any]) -> str:
    return (
        f"kernel {now['kernel'] / MIB:7.1f} MiB  heap {now['heap'] / MIB:6.1f} MiB  "
        f"nodes {now['nodes']:6.0f}  listeners {now['listeners']:5.0f}"
    )


def grown(looks: list[dict[str, float]]) -> list[str]:
    """Say what has grown beyond its bound behind the warm-up."""
    warm = looks[int(len(looks) * WARM) :]
    fifth = max(len(warm) // 5, 1)
    told = []
    for name, bound in BOUNDS.items():
        first = statistics.median(each[name] for each in warm[:fifth])
        last = statistics.median(each[name] for each in warm[-fifth:])
        if last - first > max(bound.more, first * bound.share):
            told.append(f"{name} grew from {first:,.0f} to {last:,.0f}")
    return told


def main(words: list[str] | None = None) -> int:
    """Soak, and say what grew."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--pace", type=float, default=0.028, help="least seconds of a step")
    parser.add_argument("--bare", action="store_true", help="without the inspector, to compare")
    given = parser.parse_args(words)
    looks, said = soak(given.steps, given.pace, bare=given.bare)
    print(f"{given.steps:,} steps, {len(looks)} looks; {said}")
    if len(looks) < LEAST:
        print(f"fewer than {LEAST} looks: too short to say whether anything grows")
        return 0
    told = grown(looks)
    print("\n".join(told) or "nothing grew")
    return bool(told)


if __name__ == "__main__":
    sys.exit(main())
