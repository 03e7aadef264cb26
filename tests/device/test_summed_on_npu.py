"""Checksums and saved values of what lies on an NPU: those of the same bytes on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch cannot have a backend written in Python",
)


@pytest.fixture(scope="module")
def seen():
    command = [sys.executable, "-m", "tests.device.on_npu_summed"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["crc32", "xor"])
def test_they_are_those_of_the_cpu(seen, kind):
    there, here = seen[f"npu {kind}"], seen[f"cpu {kind}"]
    assert there["devices"] == ["cpu", "npu:0"]  # settings of the optimizer are numbers of the host
    assert there["bits"] == here["bits"] == seen["npu None"]["bits"]
    assert there["rows"] == here["rows"]
    assert all(row[-1] for row in there["rows"])


def test_saved_values_are_recorded(seen):
    assert seen["npu None"]["values"] == [["saved", "n", 3]] * 2
    saved = [row[:-1] for row in seen["npu None"]["rows"] if row[4] == "value"]
    assert saved == [
        [step, "", "saved", way, "value", "h"] for step in "01" for way in ("backward", "forward")
    ]
