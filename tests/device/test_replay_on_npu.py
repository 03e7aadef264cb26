"""A wrong kernel of a device is found by a replay, which says that it is the device that is wrong."""

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
def told():
    command = [sys.executable, "-m", "tests.device.on_npu_replay"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_device_that_computes_rightly_is_within_rounding_everywhere(told):
    assert told["None"]["first"] is None
    assert told["None"]["verdicts"] == dict.fromkeys(("norm", "up", "act", "down"), ["within"] * 2)


@pytest.mark.parametrize(
    ("wrong", "module"), [("half", "up"), ("epsilon", "norm"), ("gelu", "act")]
)
def test_the_first_call_of_a_wrong_kernel_is_found_and_the_device_is_said_to_be_wrong(
    told, wrong, module
):
    found = told[wrong]
    assert found["first"] == module
    others = set(found["verdicts"]) - {module, *(["down"] if wrong == "half" else [])}
    assert found["verdicts"][module] == ["within", "above"]
    assert [found["verdicts"][each] for each in others] == [["within", "within"]] * len(others)
    assert found["sentences"][module].startswith("the candidate is ")
    assert (
        f" times further from the truth than the baseline at {module}: "
        in found["sentences"][module]
    )
    assert found["sentences"][module].endswith("rounding does not explain that of the candidate")


def test_the_module_may_be_the_one_on_the_device_and_stays_there(told):
    assert told["None"]["devices"] == ["cpu", "npu:0"]
    assert [told[wrong]["live"] for wrong in ("None", "half", "gelu")] == [
        "within",
        "above",
        "within",
    ]
    assert all(each["parameters"] and each["copied"] for each in told.values())
