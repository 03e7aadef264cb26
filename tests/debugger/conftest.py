"""Every test has a debugger of its own, in a folder of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from probe_nb.debugger import PrecisionDebugger


@pytest.fixture
def make(tmp_path):
    """Make a debugger that writes into the test's folder; closed at the end."""

    def made(level="L0", **arguments):
        return PrecisionDebugger(dump_path=str(tmp_path / "out"), level=level, **arguments)

    yield made
    PrecisionDebugger.close()


@pytest.fixture
def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def folders(tmp_path) -> list[str]:
    """Return the folders that were written, the number of the process left out."""
    found = (path.parent.relative_to(tmp_path / "out") for path in Path(tmp_path).rglob("d*.json"))
    return sorted("/".join("proc" if p.startswith("proc") else p for p in f.parts) for f in found)


def dumped(tmp_path, step=0, process="*", file="dump") -> dict[str, object]:
    """Return the entries of the one folder of a step."""
    (path,) = (tmp_path / "out").glob(f"step{step}/{process}/{file}.json")
    return json.loads(path.read_text())["data"]
