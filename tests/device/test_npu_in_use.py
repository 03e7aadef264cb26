"""The NPU as people use it: autocast, layouts of its own, saturation, names, the self-check."""

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
    command = [sys.executable, "-m", "tests.device.npu_in_use"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_training_under_autocast_is_the_same_bit_for_bit(seen):
    assert seen["autocast"]["difference"] is None
    assert seen["autocast"]["statuses"] == ["ok"]
    assert seen["autocast"]["dtypes"] == ["bfloat16"]
    assert seen["autocast"]["devices"] == ["npu:0"]


def test_a_5_d_tensor_is_measured_and_one_in_a_format_of_the_npu_s_own_is_not_touched(seen):
    assert seen["layouts"]["statuses"] == ["ok", "ok", "private_format"]
    assert seen["layouts"]["max"] == [1.0, 1.0]
    assert seen["layouts"]["touched"] == [True, True, False]


def test_saturation_is_counted_and_said(seen):
    found = seen["saturated"]["saturation True"]
    assert (found["max"], found["at_max"], found["posinf"]) == (65504.0, 1, 0)
    assert found["overflow"] == "saturation"
    (notice,) = found["notices"]
    assert "saturation mode" in notice
    assert "at_max_count" in notice


def test_an_npu_that_makes_infinities_has_no_notice(seen):
    found = seen["saturated"]["saturation False"]
    assert (found["max"], found["at_max"], found["posinf"]) == (2.71875, 0, 1)
    assert (found["overflow"], found["notices"]) == ("Inf and NaN", [])


def test_versions_are_read_and_nothing_is_asked_of_a_device_that_was_not_started(seen):
    before, after = seen["said"]["started False"], seen["said"]["started True"]
    read = {"torch_npu": "2.13.0", "cann": "8.5.0", "npu_driver": "25.3.rc1"}
    assert before == {"names": ["cpu"], "versions": read}
    assert after["names"] == ["npu:0 Simulated"]
    assert after["versions"] == {**read, "npu_overflow": "Inf and NaN"}


def test_what_an_older_torch_npu_cannot_say_is_absent(seen):
    assert seen["said"]["old"] == ["npu_overflow", "torch", "torch_npu"]


def test_the_npu_is_found_by_name_and_by_default(seen):
    assert seen["said"]["found"] == ["npu:0", "npu:0", "npu:0", "cpu"]


@pytest.mark.parametrize("asked", ["npu:1", "cuda", "mps"])
def test_another_device_is_refused_and_what_is_there_is_said(seen, asked):
    said = seen["said"]["refused"][asked]
    assert f"no device `{asked}`" in said
    assert "finds `cpu` and `npu:0`" in said


def test_the_self_check_passes_also_where_the_user_forbids_waits(seen):
    found = seen["self_checks"]
    assert found["ok"], found["text"]
    assert found["mode after"] == 2
    outcomes = {(check, subject): outcome for check, subject, outcome, _ in found["whole"]}
    assert outcomes["waits", "3 steps of the MLP"] == "passed"
    identities = [outcome for (check, _), outcome in outcomes.items() if check == "identity"]
    assert identities == ["passed"] * 8
    skipped = {subject for (_, subject), outcome in outcomes.items() if outcome == "skipped"}
    assert skipped == {"float64", "complex64"}


def test_a_hook_that_waits_is_found(seen):
    assert seen["self_checks"]["a hook that waits"] == ["failed"]


def test_a_kernel_that_is_wrong_is_found(seen):
    ((outcome, detail),) = seen["self_checks"]["a wrong kernel"]
    assert outcome == "failed"
    assert "at_max_count 1, not 0" in detail


def test_a_kernel_that_asks_for_float64_is_found(seen):
    ((outcome, detail),) = seen["self_checks"]["float64"]
    assert outcome == "failed"
    assert "status failed" in detail
