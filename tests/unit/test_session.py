"""Opening, restarting, nesting and closing sessions, and the order of their rows."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb import session
from probe_nb.errors import ProbeWarning, SessionStateError
from probe_nb.stats.waiting import Flight
from tests import measuring

X = torch.ones(3, 2)


def layer():
    return nn.Linear(2, 2)


@pytest.fixture(autouse=True)
def all_stopped():
    yield
    while probe.stop() is not None:
        pass


def test_watch_gives_the_run_and_closes_it():
    model = layer()
    with probe.watch(model, live=False) as run:
        assert isinstance(run, probe.Run)
        assert run.is_open
        assert run.info.ended == "open"
        assert [s.run for s in session.sessions()] == [run]
        model(X)
    assert not run.is_open
    assert run.info.ended == "finished"
    model(X)
    assert len(run.frame(role="output")) == 1


def test_nothing_is_attached_before_the_block_is_entered():
    model = layer()
    prepared = probe.watch(model, live=False)
    model(X)
    with prepared as run:
        model(X)
    assert len(run.frame(role="output")) == 1


def test_a_watch_can_be_entered_again_after_it_ended_and_gives_another_run():
    model = layer()
    prepared = probe.watch(model, live=False)
    with prepared as first:
        model(X)
    with prepared as second:
        model(X)
        model(X)
    assert first is not second
    assert [len(r.frame(role="output")) for r in (first, second)] == [1, 2]


def test_a_watch_that_is_open_cannot_be_entered():
    prepared = probe.watch(layer(), live=False)
    with prepared as run:
        with pytest.raises(SessionStateError, match="already open"):
            prepared.__enter__()
        assert run.is_open
    assert not run.is_open


def test_start_and_stop():
    model = layer()
    run = probe.start(model, live=False)
    model(X)
    assert probe.stop() is run
    assert run.info.ended == "stopped"
    assert len(run.frame(role="output")) == 1


def test_stopping_twice_is_harmless():
    run = probe.start(layer(), live=False)
    assert probe.stop(run) is run
    assert probe.stop(run) is run
    assert run.info.ended == "stopped"
    assert probe.stop() is None


def test_stop_ends_the_newest_or_the_one_it_is_given():
    runs = [probe.start(layer(), live=False) for _ in range(3)]
    assert probe.stop(runs[0]) is runs[0]
    assert probe.stop() is runs[2]
    assert [r.is_open for r in runs] == [False, True, False]


def test_step_ends_the_step_of_the_newest_or_of_the_one_it_is_given():
    a, b = layer(), layer()
    first, second = probe.start(a, live=False), probe.start(b, live=False)
    probe.step()
    probe.step(first)
    probe.step(first)
    a(X)
    b(X)
    assert first.frame(role="output")["step"].tolist() == [2]
    assert second.frame(role="output")["step"].tolist() == [1]


def test_step_without_a_session_is_refused():
    with pytest.raises(SessionStateError, match="No session is open"):
        probe.step()


def test_a_closed_run_has_no_step_to_end():
    with probe.watch(layer(), live=False) as run:
        pass
    with pytest.raises(SessionStateError, match="closed"):
        run.step()
    with pytest.raises(SessionStateError):
        probe.step(run)


def test_starting_again_on_a_model_stops_the_older_session_and_says_so_in_one_line():
    model = layer()
    first = probe.start(model, live=False)
    model(X)
    with pytest.warns(ProbeWarning, match="already watched") as warned:
        second = probe.start(model, live=False)
    assert len(warned) == 1
    assert "\n" not in str(warned[0].message)
    assert warned[0].filename == __file__
    model(X)
    assert first.info.ended == "stopped: the same model was watched again"
    assert [len(r.frame(role="output")) for r in (first, second)] == [1, 1]
    assert [s.run for s in session.sessions()] == [second]


def test_a_watch_inside_a_watch_of_the_same_model_takes_over():
    model = layer()
    with probe.watch(model, live=False) as outer:
        model(X)
        with pytest.warns(ProbeWarning), probe.watch(model, live=False) as inner:
            model(X)
        model(X)
    assert outer.info.ended == "stopped: the same model was watched again"
    assert inner.info.ended == "finished"
    assert [len(r.frame(role="output")) for r in (outer, inner)] == [1, 1]


@pytest.mark.filterwarnings("ignore::probe_nb.errors.ProbeWarning")
def test_starting_three_times_leaves_one_set_of_rows():
    model = layer()
    runs = [probe.start(model, roles="output", live=False) for _ in range(3)]
    model(X)
    assert [len(run) for run in runs] == [0, 0, 1]


def test_a_watch_that_made_room_before_its_model_ran_calls_no_module_unused():
    model = nn.Sequential(layer(), nn.ReLU())
    with (
        pytest.warns(ProbeWarning),
        probe.watch(model, live=False) as outer,
        probe.watch(model, live=False) as inner,
    ):
        model(X)
    assert "the same model was watched again before a forward of it ran" in str(outer)
    assert "unused" not in str(outer)
    assert "not seen" not in str(outer)
    found = outer.coverage()
    assert found["module"].tolist() == ["", "0", "1"]
    assert set(found["reason"]) == {"watched again before it was called"}
    assert len(inner.coverage()) == 0


def test_a_module_that_did_not_run_before_another_watch_began_was_not_called():
    model = nn.Sequential(layer(), nn.ReLU())
    model.unused = layer()
    with probe.watch(model, live=False) as outer:
        model[1](model[0](X))
        with pytest.warns(ProbeWarning), probe.watch(model, live=False):
            model[1](model[0](X))
    assert outer.coverage().set_index("module")["reason"]["unused"] == "never called"


def test_a_part_of_a_watched_model_restarts_it_too():
    model = nn.Sequential(layer(), nn.ReLU())
    outer = probe.start(model, live=False)
    with pytest.warns(ProbeWarning, match="already watched"):
        probe.start(model[0], live=False)
    assert outer.info.ended == "stopped: the same model was watched again"


def test_models_that_share_nothing_are_watched_side_by_side():
    a, b = layer(), layer()
    with probe.watch(a, live=False) as first, probe.watch(b, live=False) as second:
        a(X)
        b(X)
        b(X)
    assert [len(r.frame(role="output")) for r in (first, second)] == [1, 2]
    assert first.info.ended == second.info.ended == "finished"


def test_sessions_that_do_not_end_in_the_order_in_which_they_began():
    a, b = layer(), layer()
    first, second = probe.start(a, live=False), probe.start(b, live=False)
    probe.stop(first)
    a(X)
    b(X)
    probe.stop(second)
    assert len(first) == 0
    assert len(second.frame(role="output")) == 1


def test_a_new_model_under_an_old_name_is_another_model():
    old = layer()
    probe.start(old, live=False)
    new = layer()
    run = probe.start(new, live=False)
    old(X)
    new(X)
    assert len(run.frame(role="output")) == 1


def test_several_models_are_told_apart_in_one_run():
    gen, dis = layer(), nn.Sequential(layer(), nn.ReLU())
    with probe.watch(gen=gen, dis=dis, roles="output", live=False) as run:
        dis(gen(X))
    found = list(zip(run.df["model"], run.df["module"], strict=True))
    assert found == [("gen", ""), ("dis", "0"), ("dis", "1"), ("dis", "")]
    assert run.info.models == {"gen": "Linear", "dis": "Sequential"}
    assert run.info.modules == 4


def test_the_run_is_readable_in_the_middle_of_a_step():
    model = layer()
    with probe.watch(model, roles="output", live=False) as run:
        model(X)
        assert len(run) == 1
        model(X)
        assert len(run.df) == 2
        assert run.history("", "output", "mean").index.tolist() == [0, 1]


def test_rows_stand_in_the_order_in_which_things_ran():
    model = nn.Sequential(layer(), nn.ReLU())
    with probe.watch(model, live=False) as run:
        model(X).sum().backward()
    found = list(zip(run.df["role"], run.df["module"], run.df["leaf"], strict=True))
    assert run.df["order"].tolist() == list(range(len(found)))
    assert found[:8] == [
        ("param", "0", "weight"), ("param", "0", "bias"),
        ("input", "", "0"), ("input", "0", "0"), ("output", "0", "0"),
        ("input", "1", "0"), ("output", "1", "0"), ("output", "", "0"),
    ]  # fmt: skip
    assert sorted(found[8:10]) == [("grad_output", "", "0"), ("grad_output", "1", "0")]
    assert found[10:12] == [("grad_input", "1", "0"), ("grad_output", "0", "0")]
    assert sorted(found[12:]) == [("param_grad", "0", "bias"), ("param_grad", "0", "weight")]


@pytest.mark.parametrize(
    "role", ["input", "output", "param", "grad_output", "grad_input", "param_grad"]
)
def test_one_role_alone_has_the_rows_that_it_has_among_all(role):
    def rows(**options):
        torch.manual_seed(0)
        model = nn.Sequential(layer(), nn.ReLU(inplace=True), layer())
        with probe.watch(model, live=False, **options) as run:
            for _ in range(2):
                model(torch.randn(3, 2, requires_grad=True)).square().sum().backward()
        found = run.frame(role=role)
        return found[["module", "leaf", "step", "call", "numel", "mean", "l2"]].to_numpy().tolist()

    measuring.compiled()  # so that no other kernel takes over between the two

    assert rows(roles=role, optimizer=torch.optim.SGD(layer().parameters())) == rows(
        optimizer=torch.optim.SGD(layer().parameters())
    )


def test_inputs_and_parameters_are_measured_before_the_model_changes_them():
    model = nn.Sequential(layer(), nn.ReLU(inplace=True))
    nn.init.constant_(model[0].weight, -1.0)
    nn.init.constant_(model[0].bias, 0.5)
    with probe.watch(model, live=False) as run:
        model(X)
        with torch.no_grad():
            model[0].weight.fill_(7.0)
    assert run.frame(module="0", role="output")["mean"].item() == -1.5
    assert run.frame(module="1", role="input")["mean"].item() == -1.5
    assert run.frame(module="1", role="output")["mean"].item() == 0.0
    assert run.frame(role="param", leaf="weight")["mean"].item() == -1.0


def test_a_tensor_written_behind_autograds_back_needs_reduce_once_off():
    model = nn.Sequential(nn.Identity(), nn.Identity())
    model[0].register_forward_hook(_written_through_numpy)
    found = {}
    for once in (True, False):
        with probe.watch(model, reduce_once=once, live=False) as run:
            model(torch.ones(2))
        found[once] = run.frame(module="1", role="input")["mean"].item()
        assert run.frame(module="1", role="input")["reused"].item() is np.bool_(once).item()
    assert found[False] == 9.0


def _written_through_numpy(_, __, output):
    output.numpy()[:] = 9.0


def test_listeners_hear_of_every_drain_and_a_failing_one_is_let_go():
    model = layer()
    probe.start(model, live=False)
    heard = []
    (opened,) = session.sessions()
    opened.listeners.append(lambda: heard.append(len(opened.run.columns)))
    opened.listeners.append(lambda: 1 / 0)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(3):
            model(X)
        opened.flush()
    assert [(w.category, "division by zero" in str(w.message)) for w in warned] == [
        (ProbeWarning, True)
    ]
    assert heard == [4, 8, 12]


def test_results_of_one_step_that_are_lost_take_no_other_step_with_them(monkeypatch):
    """Several steps may be under way, where a device is behind."""
    model = layer()
    land, lost = Flight.land, 1

    def lands(flight):
        if next(landed) == lost:
            raise RuntimeError("gone")
        return land(flight)

    landed = itertools.count()
    monkeypatch.setattr(Flight, "is_here", lambda _: False)
    monkeypatch.setattr(Flight, "land", lands)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with probe.watch(model, roles="input", live=False) as run:
            for n in range(4):
                model(n * X)
    assert dict(zip(run.df["step"], run.df["max"], strict=True)) == {0: 0.0, 2: 2.0, 3: 3.0}
    said = f"rows of step {lost} were lost: RuntimeError('gone')"
    assert said in run.info.notices
    assert [str(w.message) for w in warned] == [f"probe_nb: {said}"]


def test_what_cannot_be_written_down_at_the_end_keeps_no_hook():
    """A scaler of somebody's own, in whose table stands what torch never puts there."""

    class Scaler:
        _scale = None

        def __init__(self, optimizer):
            self._per_optimizer_states = {id(optimizer): None}

        def is_enabled(self):
            return True

        def update(self):
            pass

    model = layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = probe.watch(model, optimizer=optimizer, scaler=Scaler(optimizer))
    with pytest.warns(ProbeWarning), watch as run:
        model(X).sum().backward()
    assert session.sessions() == ()
    assert run.info.ended == "finished"
    assert any("the end of the watch was not written down whole" in n for n in run.info.notices)


def test_an_optimizer_of_another_model_is_told_in_the_run():
    model, other = layer(), layer()
    mine, stale = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, other))
    with probe.watch(model, optimizer=[stale, mine], live=False) as run:
        model(X).sum().backward()
    told = "`SGD` was named as an optimizer and holds no parameter of what is watched: "
    assert run.info.notices == [told + "was it made before the model was replaced?"]
    assert "was it made before the model was replaced?" in " ".join(repr(run).split())
