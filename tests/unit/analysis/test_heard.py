"""Who hears of findings while the run is open, and what becomes of one who fails."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import probe_nb as probe
from probe_nb.analysis.heard import Hearer
from probe_nb.analysis.tally import Tally
from probe_nb.errors import ProbeWarning
from probe_nb.store.columns import Columns
from tests.models import no_faults
from tests.records import append, info


def loop(model, optimizer, steps=10, bad=6, seen=lambda step: None):
    """Train; batch `bad` is a thousand times too large."""
    torch.manual_seed(1)
    for step in range(steps):
        x = torch.randn(16, 4) * (1000 if step == bad else 1)
        optimizer.zero_grad()
        F.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
        optimizer.step()
        seen(step)


def made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    return model, torch.optim.SGD(model.parameters(), 1e-3)


def test_each_finding_is_told_once_as_its_step_ends():
    model, optimizer = made()
    heard, when = [], []
    with (
        no_faults(),
        probe.watch(model, optimizer=optimizer, live=False, on_finding=heard.append) as run,
    ):
        loop(model, optimizer, seen=lambda step: when.append((step, len(heard))))
    assert [(f.kind, f.module, f.role, f.step) for f in heard] == [
        ("sudden_change", "", "input", 6)
    ]
    assert str(heard[0]) == run.findings()["sentence"][0]
    # the step ends as the next one begins, so nobody knows before step 7
    assert when == [(step, int(step >= 7)) for step in range(10)]


def test_what_becomes_graver_is_told_again():
    model, optimizer = made()
    nn.init.ones_(model[0].weight)  # 4 * 3e38 is beyond float32
    heard = []
    with probe.watch(model, optimizer=optimizer, live=False, on_finding=heard.append):
        for step in range(12):
            x = torch.ones(16, 4) * (1 if step < 6 else 1e12 if step < 8 else 3e38)
            model(x).sum().backward()
            optimizer.zero_grad()
            optimizer.step()
    changes = [f.severity for f in heard if f.kind == "sudden_change" and f.role == "input"]
    assert changes == ["warning", "error"]


def test_one_who_raises_is_not_called_again_and_the_training_never_hears_of_it():
    bare, optimizer = made()
    loop(bare, optimizer)
    model, optimizer = made()
    calls = []

    def hear(finding):
        calls.append(finding)
        raise RuntimeError("no network")

    with (
        pytest.warns(ProbeWarning, match="no network") as told,
        probe.watch(
            model,
            optimizer=optimizer,
            live=False,
            on_finding=hear,
            alerts={"any": "absmax > 0", "another": "step > 2"},
        ) as run,
    ):
        loop(model, optimizer)
    assert len(calls) == 1
    assert len([each for each in told if "not called again" in str(each.message)]) == 1
    for mine, theirs in zip(model.parameters(), bare.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert len(run.findings()) == 3


def test_one_who_asks_the_run_is_answered():
    model, optimizer = made()
    answers = []
    with (
        no_faults(),
        probe.watch(
            model,
            optimizer=optimizer,
            live=False,
            on_finding=lambda _: answers.append(run.findings()["kind"].tolist()),
        ) as run,
    ):
        loop(model, optimizer)
    assert answers == [["sudden_change"]]


def test_ctrl_c_in_it_is_the_users_own():
    model, optimizer = made()

    def hear(_):
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        probe.watch(model, optimizer=optimizer, live=False, on_finding=hear),
    ):
        loop(model, optimizer)
    assert probe.stop() is None


def test_without_one_no_rule_is_asked_while_the_run_is_open(monkeypatch):
    from probe_nb.analysis import findings

    asked = []
    monkeypatch.setattr(findings, "found", lambda scene: asked.append(scene) or [])
    model, optimizer = made()
    with warnings.catch_warnings(), probe.watch(model, optimizer=optimizer, live=False) as run:
        loop(model, optimizer)
        assert asked == []
    assert run.findings().empty
    assert len(asked) == 1


def test_what_ctrl_c_interrupted_is_not_counted_twice(monkeypatch):
    """The shares of a step are those of its records, however often one tried to read them."""
    columns, heard, times = Columns(), [], []
    take = Tally._take_latest

    def interrupted(self, *rest):
        times.append(self)
        if len(times) == 2:
            raise KeyboardInterrupt
        return take(self, *rest)

    monkeypatch.setattr(Tally, "_take_latest", interrupted)
    hearer = Hearer(columns, info(), heard.append)
    for step in range(4):
        append(columns, [{"step": step, "numel": 4, "zero_count": 1, "l2": 2.0}])
        with pytest.raises(KeyboardInterrupt) if step == 1 else contextlib.nullcontext():
            hearer()
    window = times[-1].window
    assert window.steps.tolist() == [0, 1, 2, 3]
    assert window["counted"].tolist() == [[4.0] * 4]
    assert window["square"].tolist() == [[4.0] * 4]
