"""The self-check passes here, and each of its checks can fail: something is broken, and it says so."""

from __future__ import annotations

import contextlib
import html
import itertools
import math
import re
import types
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.checkup import behaviour, check, models, numbers, truth
from probe_nb.checkup.report import Check, SelfCheck
from probe_nb.errors import DeviceError
from probe_nb.observe import modules
from probe_nb.observe.attach import Attachment
from probe_nb.recorder import Recorder
from probe_nb.stats import summary
from probe_nb.store.columns import Columns
from probe_nb.terms import COUNTS
from tests import oracle
from tests.models import no_faults

CPU = torch.device("cpu")
KINDS = ("identity", "operators", "waits", "numbers", "given back", "cost")


@pytest.fixture(scope="module")
def report():
    with no_faults():
        return probe.self_check("cpu")


def outcomes(checks):
    return {each.subject: each.outcome for each in checks}


def details(checks):
    return [each.detail for each in checks if each.outcome == "failed"]


# -- it passes, and shows it ----------------------------------------------------------------------


def test_all_is_well_on_this_machine(report):
    assert report.ok, repr(report)
    assert set(report.df["check"]) == set(KINDS)
    assert len(report.df) == len(report.checks)


def test_every_type_that_the_cpu_computes_with_is_checked(report):
    checked = report.df[report.df["check"] == "numbers"]
    assert set(checked["outcome"]) == {"passed"}
    floats = {"float32", "float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2"}
    whole = {"int64", "int32", "int16", "int8", "uint8", "bool"}
    assert set(checked["subject"]) == floats | whole | {"complex64"}


def test_the_text_says_what_was_checked_with_which_versions_and_no_time(report):
    text = repr(report)
    assert text.splitlines()[0].startswith("probe_nb self-check on cpu: all is well")
    assert f"torch {torch.__version__}" in text.splitlines()[1]
    assert "devices: cpu" in text
    assert re.search(r"cost .* \d+\.\d\d times a bare step", text)
    assert not re.search(r"\d ?(ms|us|seconds|s)\b", text)


def test_what_failed_is_said_first_and_nothing_in_it_is_markup():
    checks = (Check("a", "b", "passed", "c"), Check("x|<i>", "y", "failed", "<b>*1*"))
    report = SelfCheck("cpu", ("cpu",), {"torch": "2"}, checks)
    assert not report.ok
    assert "NOT all is well (1 failed, 1 passed)" in repr(report)
    assert [row.split()[0] for row in repr(report).splitlines()[4:]] == ["failed", "passed"]
    shown = report._repr_html_()
    assert "<b>*1*" not in shown
    assert html.escape("<b>*1*") in shown
    row = next(line for line in report._repr_markdown_().splitlines() if "failed" in line[:12])
    assert row == r"| failed | x\|&lt;i&gt; | y | &lt;b&gt;\*1\* |"


def test_nothing_checked_is_not_all_well():
    assert not SelfCheck("cpu", ("cpu",), {}, (Check("a", "b", "skipped", "c"),)).ok


def test_it_is_still_a_function_after_it_was_called(report):
    assert callable(probe.self_check)
    assert probe.self_check is check.self_check


# -- it leaves everything as it was ---------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    """Make the whole check quick: one model, one type, few steps to time."""
    monkeypatch.setattr(behaviour, "SPECIMENS", models.SPECIMENS[:1])
    monkeypatch.setattr(numbers, "_FLOATS", (torch.float16,))
    monkeypatch.setattr(numbers, "_WHOLE", ())
    monkeypatch.setattr(behaviour, "_PAIRS", 1)


def test_random_numbers_settings_and_modes_of_the_user_stay(small):
    torch.manual_seed(7)
    before, filters = torch.get_rng_state(), list(warnings.filters)
    numpy_state = np.random.get_state()[1].tolist()  # noqa: NPY002 - the user's global one
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode(), torch.autocast("cpu"), torch.device("meta"):
            assert probe.self_check("cpu").ok
            assert torch.is_inference_mode_enabled()
            assert torch.is_autocast_enabled("cpu")
            assert torch.get_default_device().type == "meta"
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.get_state()[1].tolist() == numpy_state  # noqa: NPY002
    assert list(warnings.filters) == filters


def test_a_session_of_the_user_goes_on_and_sees_nothing_of_it(small):
    model = nn.Linear(2, 2)
    with probe.watch(model, roles="output", live=False) as run:
        model(torch.ones(1, 2))
        assert probe.self_check("cpu").ok
        model(torch.ones(1, 2))
    assert len(run) == 2


def test_an_interrupt_leaves_everything_as_it_was(small, monkeypatch):
    def interrupted(device):
        torch.set_default_dtype(torch.float16)
        torch.rand(3)
        raise KeyboardInterrupt

    before = torch.get_rng_state()
    monkeypatch.setattr(behaviour, "cost", interrupted)
    with pytest.raises(KeyboardInterrupt):
        probe.self_check("cpu")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("npu", ["no device `npu`", "finds no accelerator", "torch_npu is not installed"]),
        ("cuda:3", ["no device `cuda:3`", "finds no accelerator", "without CUDA"]),
        ("gpu", ["no device `gpu`", "only `cpu`"]),
    ],
)
def test_a_device_that_is_not_there_is_refused_in_words(asked, words, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: None)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(DeviceError) as raised:
        probe.self_check(asked)
    assert [word for word in words if word not in str(raised.value)] == []


# -- and each check can fail ----------------------------------------------------------------------


def broken_hook(act):
    """Return a `Recorder.tensor` that does something forbidden first."""
    genuine = Recorder.tensor

    def tensor(self, call, where, t, backward=-1):
        act(where, t)
        genuine(self, call, where, t, backward)

    return tensor


@pytest.mark.parametrize(
    ("act", "found"),
    [
        (lambda where, t: torch.rand(1), "with the watch"),
        (lambda where, t: t.data.add_(0.5), "output of step 0"),
        (
            lambda where, t: t.data.mul_(2) if where[0] == "grad_output" else None,
            "gradient of",
        ),
    ],
    ids=["draws a random number", "writes a tensor", "writes a gradient"],
)
def test_a_hook_that_changes_training_is_found(monkeypatch, act, found):
    monkeypatch.setattr(behaviour, "SPECIMENS", models.SPECIMENS[:1])
    monkeypatch.setattr(Recorder, "tensor", broken_hook(act))
    checks = list(behaviour.identity(CPU))
    assert set(outcomes(checks).values()) == {"failed"}
    assert found in details(checks)[0]


def test_random_numbers_that_a_hook_drew_after_all_else_are_found():
    specimen = models.Specimen("one layer", lambda: nn.Linear(2, 2), (1, 2))
    bare = models.trained(specimen, CPU, watched=False)
    drawn = models.trained(specimen, CPU, watched=False)
    drawn.tensors["random numbers of the CPU"] = torch.get_rng_state() + 1
    assert bare.first_difference(drawn) == "random numbers of the CPU"


def test_rows_that_fail_and_faults_that_are_warned_of_are_found(monkeypatch):
    def fails(self, t, *, once):
        raise RuntimeError("broken kernel")

    monkeypatch.setattr(behaviour, "SPECIMENS", models.SPECIMENS[:1])
    monkeypatch.setattr(summary.Reducer, "see", fails)
    said = details(behaviour.identity(CPU))
    assert len(said) == 2
    assert all("broken kernel" in each for each in said)


def test_a_watch_that_records_nothing_is_found(monkeypatch):
    monkeypatch.setattr(behaviour, "SPECIMENS", models.SPECIMENS[:1])
    monkeypatch.setattr(Columns, "append", lambda self, block: None)
    assert all("did not record every step" in each for each in details(behaviour.identity(CPU)))


def test_a_device_that_differs_from_itself_is_skipped_with_the_reason(monkeypatch):
    ticks = iter(range(10**6))

    class Drifts(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = nn.Linear(2, 2)

        def forward(self, x):
            return self.inside(x) + next(ticks)

    specimen = models.Specimen("drifts", Drifts, (1, 2))
    monkeypatch.setattr(behaviour, "SPECIMENS", (specimen,))
    checks = list(behaviour.identity(CPU))
    assert set(outcomes(checks).values()) == {"skipped"}
    assert "not deterministic" in checks[0].detail


def test_a_model_that_the_device_cannot_run_is_skipped_with_the_reason(monkeypatch):
    specimen = models.Specimen("too wide", lambda: nn.Linear(3, 2), (1, 2))
    monkeypatch.setattr(behaviour, "SPECIMENS", (specimen,))
    checks = list(behaviour.identity(CPU))
    assert set(outcomes(checks).values()) == {"skipped"}
    assert "cannot be multiplied" in checks[0].detail


def test_operators_of_ours_in_a_mode_of_the_user_s_are_found(monkeypatch):
    genuine = Recorder.tensor

    def seen(self, call, where, t, backward=-1):
        t.detach().sinh()
        genuine(self, call, where, t, backward)

    monkeypatch.setattr(Recorder, "tensor", seen)
    monkeypatch.setattr(modules, "aside", contextlib.nullcontext)
    (found,) = behaviour.operators(CPU)
    assert found.outcome == "failed"
    assert "aten.sinh.default" in found.detail


def wrong(change):
    """Return a `Columns.append` that writes down something else than was measured."""
    genuine = Columns.append

    def append(self, block):
        change(block)
        genuine(self, block)

    return append


def off(name):
    return lambda block: block.update({name: block[name] * (1 + 3e-5) + 1e-30})


def one_more(name):
    return lambda block: block.update({name: block[name] + (block["numel"] > 0)})


def one_bin_up(block):
    block["hist_bins"] = block["hist_bins"] + np.uint16(1)


WRONG = {
    **{name: off(name) for name in oracle.STATISTICS},
    **{name: one_more(name) for name in COUNTS},
    "histogram": one_bin_up,
    "numel": one_more("numel"),
    "status": lambda block: block.update(status=block["status"] * 0),
}


@pytest.mark.parametrize("word", WRONG)
def test_a_kernel_that_is_wrong_in_one_number_is_found(monkeypatch, word):
    monkeypatch.setattr(numbers, "_FLOATS", (torch.float16,))
    monkeypatch.setattr(numbers, "_WHOLE", ())
    monkeypatch.setattr(Columns, "append", wrong(WRONG[word]))
    (found,) = numbers.checks(CPU)
    assert found.outcome == "failed"
    assert f" {word} " in found.detail


def test_records_that_are_missing_are_found(monkeypatch):
    genuine, seen = Recorder.tensor, []

    def forgets(self, call, where, t, backward=-1):
        seen.append(t.numel())
        if len(seen) > 1:
            genuine(self, call, where, t, backward)

    monkeypatch.setattr(numbers, "_FLOATS", (torch.float16,))
    monkeypatch.setattr(numbers, "_WHOLE", ())
    monkeypatch.setattr(Recorder, "tensor", forgets)
    (found,) = numbers.checks(CPU)
    assert "13 records, not 14" in found.detail


def test_a_type_that_a_device_does_not_have_is_skipped_with_the_reason(monkeypatch):
    def refused(dtype):
        raise TypeError("no such type")

    monkeypatch.setattr(numbers, "cases", refused)
    checks = list(numbers.checks(CPU))
    assert {each.outcome for each in checks} == {"skipped"}
    assert "no such type" in checks[0].detail


def test_hooks_that_stay_are_found(monkeypatch, small):
    stayed, release = [], Attachment.release

    def forgets(self, modules):
        stayed.append((self, modules))

    monkeypatch.setattr(Attachment, "release", forgets)
    try:
        report = probe.self_check("cpu")
    finally:
        for attachment, modules in stayed:
            release(attachment, modules)
    (found,) = (each for each in report.checks if each.check == "given back")
    assert found.outcome == "failed"
    assert "_global_forward_hooks" in found.detail
    assert not report.ok


def test_the_cost_of_a_slow_hook_is_seen(monkeypatch):
    def ratio():
        (found,) = behaviour.cost(CPU)
        return float(re.match(r"[\d.]+", found.detail)[0])

    now = itertools.count()  # a clock that goes on whenever it is asked, and with each tensor
    clock = types.SimpleNamespace(perf_counter=lambda: next(now))
    monkeypatch.setattr(behaviour, "_PAIRS", 2)
    monkeypatch.setattr(behaviour, "time", clock)
    assert ratio() == 1
    monkeypatch.setattr(Recorder, "tensor", broken_hook(lambda where, t: next(now)))
    assert ratio() > 3


def test_a_check_that_raises_has_failed_and_the_others_are_done(monkeypatch, small):
    def raises(device):
        raise ValueError("a bug of ours")

    monkeypatch.setattr(numbers, "checks", raises)
    report = probe.self_check("cpu")
    assert not report.ok
    assert details(report.checks) == ["ValueError: a bug of ours"]
    assert set(report.df["check"]) == set(KINDS)


# -- the truth inside agrees with the oracle of the tests -----------------------------------------


@pytest.mark.parametrize("dtype", [*numbers._FLOATS, *numbers._WHOLE], ids=str)
def test_two_oracles_that_share_nothing_agree(dtype):
    for name, t in numbers.cases(dtype):
        mine, other = truth.of(t), oracle.expected(t)
        assert (mine.numel, mine.counts) == (other.numel, other.counts), name
        assert {(s, e): n for s, e, n in mine.bins} == other.bins, name
        assert (mine.statistics is None) == (other.statistics is None), name
        for key, value in (mine.statistics or {}).items():
            assert math.isclose(value, other.statistics[key], rel_tol=1e-9, abs_tol=1e-12), name
