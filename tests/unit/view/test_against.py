"""A run that grows, compared with another one while it does."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.comparison import against
from probe_nb.errors import ConfigError, ProbeWarning
from probe_nb.view.against import LONGEST, Against
from probe_nb.view.live import LiveView
from tests.models import no_faults


class Scale(nn.Module):
    def forward(self, x, by=1.0):
        return x * by


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.scale, self.last = nn.Linear(8, 8), Scale(), nn.Tanh()
        self.by = 1.0

    def forward(self, x):
        return self.last(self.scale(self.first(x), self.by))


def net():
    torch.manual_seed(0)
    return Net()


def step(model, number):
    model(torch.randn(4, 8, generator=torch.Generator().manual_seed(number)))


@pytest.fixture
def baseline():
    model = net()
    with probe.watch(model, live=False, micro_batches=1) as run:
        for number in range(4):
            step(model, number)
    return run


def status_of(shown: Against) -> dict:
    return json.loads(shown.update()[1])


def verdicts_of(shown: Against) -> set[str]:
    frame = shown.comparison.df
    return set(frame["verdict"].astype(str))


def test_verdicts_come_step_by_step_and_steps_to_come_are_not_missing(baseline):
    model = net()
    with probe.watch(model, live=False, micro_batches=1) as run:
        shown = Against(run, against(baseline, run), clock=lambda: 0.0)
        assert status_of(shown)["headline"]["kind"] == "empty"
        for number in range(3):
            step(model, number)
            run.flush()
            status = status_of(shown)
            assert status["headline"]["kind"] == "ok"
            assert status["open"]
            assert verdicts_of(shown) <= {"same", "close"}
        model.by = 1.5
        step(model, 3)
        run.flush()
        shown.update()
        assert "diverged" in verdicts_of(shown)
    shown.finish()
    want = probe.compare(baseline, run)
    assert shown.comparison.counts == want.counts
    assert shown.bundle()["text/plain"] == repr(want)


def test_what_a_finished_step_lacks_is_told(baseline):
    model = net()
    model.scale = nn.Identity()
    model.forward = lambda x: model.last(model.first(x))
    with probe.watch(model, live=False, micro_batches=1) as run:
        shown = Against(run, against(baseline, run), clock=lambda: 0.0)
        for number in range(2):
            step(model, number)
        run.flush()
        shown.update()
        alone = shown.comparison.df.query("verdict == 'only_in_baseline'")
        assert set(alone["module"].astype(str)) == {"scale"}
        assert set(alone["step"]) == {0}


def test_comparing_takes_a_twentieth_of_the_time_and_ends_where_it_takes_long(baseline):
    model, now, took = net(), [0.0], [0.1]
    calls = []
    with probe.watch(model, live=False, micro_batches=1) as run:
        compare = against(baseline, run)

        def slow():
            calls.append(now[0])
            now[0] += took[0]
            return compare()

        shown = Against(run, slow, clock=lambda: now[0])
        for wait, done in ((0.0, 1), (1.9, 1), (0.2, 2), (1.0, 2)):
            now[0] += wait
            shown.update()
            assert len(calls) == done
        took[0] = 2 * LONGEST
        now[0] += 10
        notices = json.loads(shown.update()[1])["notices"]
        assert any("by now it takes longer" in each for each in notices)
        now[0] += 1e6
        shown.update()
        assert len(calls) == 3


def test_the_view_becomes_the_report_of_the_comparison(baseline):
    shown = []

    class Handle:
        def update(self, thing):
            shown.append(thing)

    def display(thing, **_):
        shown.append(thing)
        return Handle()

    model = net()
    model.by = 1.5
    with no_faults(), probe.watch(model, live=False, micro_batches=1) as run:
        view = LiveView(run, display=display, compared=against(baseline, run))
        view.open()
        step(model, 0)
        run.flush()
        view.update(force=True)
        assert type(shown[0]).__name__ == "ComparisonInspector"
    view.close()
    report = shown[-1]._repr_mimebundle_()
    assert "first diverges at scale (Scale) at step 0" in report["text/plain"]
    assert "first diverges at scale (Scale) at step 0" in report["text/html"]


def test_a_comparison_that_fails_ends_the_view_and_not_the_training(baseline):
    model = net()

    def broken():
        raise RuntimeError("mine")

    with probe.watch(model, live=False) as run:
        view = LiveView(run, display=lambda *_, **__: None, compared=broken)
        with pytest.warns(ProbeWarning, match="The live view is off: RuntimeError: mine"):
            view.open()
        step(model, 0)
    assert len(run)


def test_a_baseline_that_is_none_is_refused_before_anything_begins(tmp_path):
    with pytest.raises(ConfigError, match="is no run"):
        probe.watch(net(), baseline=3)
    with pytest.raises(FileNotFoundError):
        probe.watch(net(), baseline=tmp_path / "nothing.parquet")
