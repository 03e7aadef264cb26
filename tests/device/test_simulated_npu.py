"""A watch on an NPU: the same bits, the right numbers, no float64, and one wait per step."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
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
    command = [sys.executable, "-m", "tests.device.on_npu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module", params=["plain", "scaled"])
def training(request, seen):
    return seen[request.param]


def test_the_device_refuses_float64_and_counts_who_waits(seen):
    assert seen["refuses float64"] == [True, True]
    assert seen["answers"] == [3.0, [1.0, 1.0, 1.0], True]
    assert seen["answers waited"] == 3


def test_training_is_the_same_bit_for_bit_and_that_of_the_cpu(training):
    assert training["same bits"]
    assert training["as on the cpu"]


def test_nothing_waits_in_a_hook_and_the_watch_waits_once_per_step(training):
    assert training["waits in backward"] == 0
    more = Counter(training["waits"]["watched"])
    more.subtract(training["waits"]["bare"])
    assert {name: count for name, count in more.items() if count} == {"_to_copy": 3}
    assert training["steps"] == [0, 1, 2]


def test_every_row_names_the_device(training):
    assert training["devices"] == ["npu:0 Simulated"]
    for row in training["rows"]:
        # what an optimizer is set to, and the count of its steps, torch keeps on the host
        settings = row["site"].startswith("optimizer:  state ") or row["site"].endswith(".step")
        on_the_host = settings and not row["site"].endswith("loss_scale")
        assert row["device"] == ("cpu" if on_the_host else "npu:0"), row["site"]


def test_the_rows_are_those_of_the_cpu_in_the_same_order(training):
    rows = [[row["site"], row["status"]] for row in training["rows"]]
    assert rows == training["cpu rows"]


def test_the_statistics_are_those_of_the_same_model_on_the_cpu(seen):
    truth, compared = seen["truth"], set()
    for row in seen["plain"]["rows"]:
        if row["status"] != "ok" or row["site"] not in truth:
            continue
        want, got = truth[row["site"]]["numbers"], row["numbers"]
        compared.add(row["site"])
        for name in ("min", "max", "absmax", "nan_count", "posinf_count", "zero_count"):
            assert got[name] == want[name], f"{row['site']} {name}"
        assert got["subnormal_count"] == want["subnormal_count"]
        assert abs(got["mean"] - want["mean"]) <= 1e-6 * want["absmax"]
        for name in ("std", "l2"):
            assert got[name] == pytest.approx(want[name], rel=1e-5), f"{row['site']} {name}"
        assert row["bins"] == truth[row["site"]]["bins"], row["site"]
    passed_through = {"mask output 0", "mask grad_output 0"}
    assert compared >= set(truth) - passed_through


def test_gradients_under_a_loss_scale_are_those_without_it(seen):
    plain = {row["site"]: row for row in seen["plain"]["rows"]}
    scaled = [row for row in seen["scaled"]["rows"] if "optimizer: " not in row["site"]]
    gradients = [row for row in scaled if "grad" in row["site"]]
    assert gradients
    for row in gradients:
        assert row["scale"] == 1024.0
        assert row["numbers"]["l2"] == pytest.approx(plain[row["site"]]["numbers"]["l2"], rel=1e-5)
        assert row["bins"] == plain[row["site"]]["bins"]
    assert all(row["scale"] is None for row in scaled if "grad" not in row["site"])


def test_an_optimizer_under_a_loss_scale_does_what_it_does_without_it(seen):
    plain = {row["site"]: row for row in seen["plain"]["rows"]}
    scaled = [row for row in seen["scaled"]["rows"] if row["site"] in plain]
    moved = [row for row in scaled if row["site"].startswith("optimizer: ")]
    assert len([row for row in moved if " update " in row["site"]]) == 7
    for row in moved:
        want = plain[row["site"]]["numbers"]["l2"]
        assert row["numbers"]["l2"] == pytest.approx(want, rel=1e-5), row["site"]
    (scale,) = [row for row in seen["scaled"]["rows"] if row["site"].endswith("loss_scale")]
    assert scale["numbers"]["max"] == 1024.0


def test_a_tensor_in_a_format_of_the_device_s_own_is_not_touched(seen):
    statuses = {row["site"]: row["status"] for row in seen["private"]}
    assert statuses == {
        "0 param weight": "private_format",
        "0 param bias": "ok",
        "0 output 0": "ok",
        "1 param weight": "private_format",
        "1 param bias": "ok",
        "1 output 0": "ok",
        " output 0": "ok",
        "optimizer: 0 param weight": "private_format",
        "optimizer: 0 update weight": "private_format",
        "optimizer: 0 param bias": "ok",
        "optimizer: 0 update bias": "ok",
    }
    private = [row for row in seen["private"] if row["status"] == "private_format"]
    assert all(value is None for row in private for value in row["numbers"].values())


def test_results_that_the_device_loses_are_failed_rows_and_one_warning(seen):
    assert seen["lost"]["statuses"] == [["failed"], ["ok"]]
    assert seen["lost"]["settings"] == ["ok"]  # these are numbers of the host
    assert seen["lost"]["absent"]
    (warning,) = seen["lost"]["warned"]
    assert "npu:0" in warning
    assert "device-side assert" in warning
