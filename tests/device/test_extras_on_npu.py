"""Extras of what lies on an NPU, which has no float64: those of the same training on the CPU."""

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
    command = [sys.executable, "-m", "tests.device.on_npu_extras"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_they_are_those_of_the_cpu(seen):
    there, here = seen["npu extras"]["rows"], seen["cpu extras"]["rows"]
    assert [row[:3] for row in there] == [row[:3] for row in here]
    assert [row[4] for row in there] == [row[4] for row in here]
    for mine, other in zip(there, here, strict=True):
        assert mine[3] == pytest.approx(other[3], rel=1e-5, abs=1e-6), mine
    leaves = {row[2].partition("(")[0] for row in there}
    assert leaves >= {
        *("spectral_norm.weight", "stable_rank.weight", "router_similarity.weight"),
        *("expert_entropy", "attention_entropy", "softmax_max", "below:0.1"),
        *("before.weight.momentum_buffer", "grad_direction.weight"),
    }


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_training_is_the_same_bit_for_bit(seen, device):
    assert seen[f"{device} extras"]["bits"] == seen[f"{device} plain"]["bits"]
