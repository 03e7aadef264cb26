"""Tensors kept on an NPU: copied on the side, and nobody waits in a hook."""

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
    command = [sys.executable, "-m", "tests.device.on_npu_kept"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("when", ["arriving", "late"])
def test_nothing_waits_in_forward_or_backward_and_training_is_the_same(seen, when):
    assert seen[when]["waits"] == 0
    assert seen[when]["bits"] == seen["bare"]["bits"]


@pytest.mark.parametrize("when", ["arriving", "late"])
def test_what_is_kept_is_what_the_cpu_keeps(seen, when):
    places = [each[:6] for each in seen["cpu"]]
    assert [each[:6] for each in seen[when]["tensors"]] == places
    assert {each[5] for each in seen["cpu"]} == {"kept"}
    for mine, theirs in zip(seen[when]["tensors"], seen["cpu"], strict=True):
        assert mine == theirs


def test_copies_that_have_not_come_are_waited_for_at_the_end(seen):
    assert "synchronize" in seen["late"]["at the end"]


def test_where_memory_cannot_be_pinned_nothing_is_kept_nobody_waits_and_the_reason_is_said(seen):
    drains = 2  # of the statistics, as the second and the third step begin
    assert seen["unpinned"]["waits"] == seen["bare"]["waits"] == drains
    assert seen["unpinned"]["bits"] == seen["bare"]["bits"]
    assert seen["unpinned"]["statuses"] == ["not kept: no pinned memory"]
