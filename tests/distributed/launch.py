"""Start the processes of a distributed test, and bring back what they saw."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROCESS = Path(__file__).with_name("process.py")
PATIENCE = 250.0
"""Seconds for all programs of a launch on a busy machine; it takes a tenth of that on a free one."""


def launch(folder: Path, world: int, *programs: str) -> list[dict[str, Any]]:
    """Run programs in `world` processes; return what each process gave back, by program.

    They meet at a file, so no port is needed.
    """
    running = []
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with contextlib.ExitStack() as stack:
        for rank in range(world):
            log = stack.enter_context((folder / f"log{rank}").open("wb"))
            facts = (str(rank), str(world), str(folder / "store"), str(folder / f"out{rank}"))
            torchrun = {"RANK": facts[0], "LOCAL_RANK": facts[0], "WORLD_SIZE": facts[1]}
            command = [sys.executable, str(PROCESS), *facts, *programs]
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment | torchrun, cwd=ROOT
            )
            stack.callback(process.kill)
            running.append(process)
        _wait(running)
    found = [_given(folder, rank) for rank in range(world)]
    for rank, each in enumerate(found):
        for name in programs:
            if not isinstance(each.get(name, ""), str):
                continue
            logs = [f"-- rank {n}\n{_log(folder, n)}" for n in range(world)]
            pytest.fail(
                f"`{name}` failed on rank {rank}: {each.get(name, 'no answer')}\n"
                + "\n".join(logs),
                pytrace=False,
            )
    return found


def _wait(running: list[subprocess.Popen[bytes]]) -> None:
    """Wait for all; if one dies, the others have a few seconds to notice."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        codes = [process.poll() for process in running]
        if all(code is not None for code in codes):
            return
        if any(code not in (None, 0) for code in codes):
            end = min(end, time.monotonic() + 5.0)
        time.sleep(0.1)


def _given(folder: Path, rank: int) -> dict[str, Any]:
    out = folder / f"out{rank}"
    return pickle.loads(out.read_bytes()) if out.exists() else {}


def _log(folder: Path, rank: int) -> str:
    return (folder / f"log{rank}").read_text(errors="replace")[-3000:]
