"""A watch that stops at the first NaN: where, with what, and that it leaves nothing behind."""

from __future__ import annotations

import contextlib
import math
import pickle
import sys
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import probe_nb as probe
from probe_nb.errors import ConfigError, NonFiniteError, ProbeError
from probe_nb.recorder import Recorder
from tests.models import no_faults
from tests.unit.analysis.test_origins import Do, Parent, fed

NAN, INF = math.nan, math.inf


def stopped(act, model, **options):
    """Return the error that ends a watch."""
    with (
        no_faults(),
        pytest.raises(NonFiniteError) as raised,
        probe.watch(model, live=False, stop_on="nonfinite", **options) as run,
    ):
        act()
    assert raised.value.run is run
    return raised.value


def test_it_stops_in_the_forward_of_the_module_that_did_it():
    ran = []
    after = Do(lambda x: ran.append("after") or x)
    model = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x * NAN), after)
    error = stopped(lambda: model(fed()), model)
    assert ran == []
    assert (error.origin.module, error.origin.phase) == ("1", "forward")
    modules = [f.f_locals.get("self") for f in frames_of(error)]
    assert model[1] in modules  # it came through its call


def frames_of(error):
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next


def test_it_stops_before_the_module_that_would_have_taken_it():
    model = nn.Sequential(nn.ReLU(), Parent(between=lambda x: x * NAN))
    error = stopped(lambda: model(fed()), model)
    assert error.origin.between == ("1.a", "1.b")
    rows = error.run.frame(module="1.b", role=["input", "output"])
    assert rows["role"].tolist() == ["input"]


def test_the_message_has_the_line_the_values_and_what_to_look_at():
    def spoil(x):
        return x / 0  # this line

    here = sys._getframe().f_lineno - 2
    model = nn.Sequential(nn.Linear(2, 2, bias=False), Do(spoil))
    nn.init.eye_(model[0].weight)
    error = stopped(lambda: model(fed()), model)
    text = str(error)
    assert "first appeared at step 0 in 1 (forward output)" in text
    assert "module 1 is of class Do" in text
    assert "1 (forward input): -1 to 2, |max| 2, float32" in text
    assert f"{__file__}:" in text
    assert "called from" in text
    assert "`error.run`" in text
    assert here  # the call is one of the model's own; the division is inside of it


def test_the_line_is_the_innermost_of_the_users_and_the_first():
    model = Parent(between=lambda x: x * NAN)
    code = Parent.forward.__code__
    error = stopped(lambda: model(fed()), model)
    lines = range(code.co_firstlineno, code.co_firstlineno + 5)
    assert any(f"{code.co_filename}:{line} in forward, called from" in str(error) for line in lines)


def test_it_stops_in_the_backward():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), Do(torch.sqrt), nn.Linear(2, 1))
    nn.init.constant_(model[0].bias, -9.0)
    error = stopped(lambda: model(fed()).sum().backward(), model)
    assert (error.origin.phase, error.origin.module) == ("backward", "2")
    assert model[0].weight.grad is None  # it did not get so far
    assert f"{__file__}:" in str(error)


def test_it_stops_at_the_optimizer_step():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=NAN)

    def act():
        model(fed()).sum().backward()
        optimizer.step()

    error = stopped(act, model, optimizer=optimizer)
    assert (error.origin.phase, error.origin.leaf) == ("optimizer", "weight")


def test_everything_is_given_back_and_the_run_can_be_read():
    model = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x * NAN))
    run = probe.start(model, live=False, stop_on="nonfinite")
    with pytest.raises(NonFiniteError):
        model(fed())
    assert not run.is_open
    assert run.info.ended.startswith("NonFiniteError: NaN first appeared at step 0 in 1")
    assert len(run)
    assert run.first_nonfinite().module == "1"
    before = len(run)
    assert model(fed()).isnan().all()  # it runs on, unwatched
    assert len(run) == before
    assert probe.stop() is None


def test_the_same_model_can_be_watched_again():
    model = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x * NAN))
    first = stopped(lambda: model(fed()), model)
    second = stopped(lambda: model(fed()), model)
    assert first.origin.sentence == second.origin.sentence


def test_without_it_nothing_is_raised():
    model = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x * NAN))
    with no_faults(), probe.watch(model, live=False) as run:
        model(fed()).sum().backward()
    assert run.info.ended == "finished"


def test_masks_do_not_stop_it():
    mask = torch.tensor([True, False])
    model = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x.masked_fill(mask, -INF)), nn.Softmax(-1))
    with no_faults(), probe.watch(model, live=False, stop_on="nonfinite") as run:
        model(fed()).sum().backward()
    assert (run.df["neginf_count"] > 0).any()


def test_minus_inf_stops_it_where_it_turns_into_nan():
    ones = torch.ones(2, dtype=torch.bool)
    model = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x.masked_fill(ones, -INF)), nn.Softmax(-1))
    error = stopped(lambda: model(fed()), model)
    assert (error.origin.module, error.origin.kind) == ("1", "-Inf")


def test_nan_that_is_fed_on_purpose_does_not_stop_it():
    model = nn.Sequential(Do(torch.nan_to_num), nn.Linear(2, 2))
    with no_faults(), probe.watch(model, live=False, stop_on="nonfinite"):
        model(fed() * torch.tensor([NAN, 1.0])).sum().backward()


def test_nan_that_is_fed_stops_it_when_it_has_spoilt_something():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    error = stopped(lambda: model(fed() * NAN), model)
    assert (error.origin.phase, error.origin.module) == ("input", "")


def test_nan_that_is_fed_stops_it_at_once_where_outputs_are_not_recorded():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert len(stopped(lambda: model(fed() * NAN), model, roles="input").run) == 1


def test_gradients_under_a_scaler_do_not_stop_it():
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    options = {"optimizer": optimizer, "scaler": scaler, "stop_on": "nonfinite"}
    with no_faults(), probe.watch(model, live=False, **options) as run:
        for scale in (INF, 1.0):
            scaler.scale(model(fed()).sum() * scale).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert (run.df["posinf_count"] > 0).any()


@pytest.mark.parametrize("reentrant", [False, True])
def test_it_stops_inside_of_checkpointing(reentrant):
    inner = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x * NAN), nn.ReLU())
    model = Do(lambda x: checkpoint(inner, x, use_reentrant=reentrant))
    model.inner = inner
    error = stopped(lambda: model(fed().requires_grad_()), model)
    assert error.origin.module == "inner.1"


@pytest.mark.parametrize("reentrant", [False, True])
def test_it_stops_in_what_checkpointing_repeats(reentrant):
    """Only the second time is spoilt, as by a race or a random number."""
    times = []

    def unsteady(x):
        times.append(1)
        return x * (NAN if len(times) > 1 else 1.0)

    inner = nn.Sequential(nn.Linear(2, 2), Do(unsteady), nn.ReLU())
    model = Do(lambda x: checkpoint(inner, x, use_reentrant=reentrant))
    model.inner = inner
    act = lambda: model(fed().requires_grad_()).sum().backward()  # noqa: E731
    error = stopped(act, model, recompute=True)
    assert error.origin.module == "inner.1"


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_stops_without_gradients(mode):
    model = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x * NAN))

    def act():
        with mode():
            model(fed())

    assert stopped(act, model).origin.module == "1"


def test_it_stops_in_a_generator():
    model = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x / x.sum() * (NAN if x.mean() > 9 else 1)))

    def steps():
        for scale in (1.0, 1e3):
            yield model(fed() * scale + scale)

    nn.init.ones_(model[0].weight)
    error = stopped(lambda: list(steps()), model)
    assert error.origin.step == 1


def test_it_stops_in_another_thread_and_there_alone():
    model = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x * NAN))
    raised = []

    def work():
        try:
            model(fed())
        except NonFiniteError as error:
            raised.append(error)

    with probe.watch(model, live=False, stop_on="nonfinite") as run:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(raised) == 1
    assert raised[0].run is run
    assert not run.is_open


def test_an_error_that_a_thread_has_made_anew_carries_what_the_first_did():
    """`nn.DataParallel` raises, in the main thread, one of the same class and text."""
    model = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x * NAN))

    def act():
        try:
            model(fed())
        except NonFiniteError as error:
            raise type(error)("Caught in replica 0.\n" + str(error)) from None

    error = stopped(act, model)
    assert error.origin.module == "1"


def test_a_users_own_exception_is_not_touched():
    def wrong(_):
        raise ValueError("mine")

    model = nn.Sequential(nn.Linear(2, 2), Do(wrong))
    with (
        pytest.raises(ValueError, match="mine"),
        probe.watch(model, live=False, stop_on="nonfinite") as run,
    ):
        model(fed())
    assert run.info.ended.startswith("ValueError in 1")


def test_a_fault_of_ours_is_told_once_and_stops_nothing(monkeypatch):
    from probe_nb.analysis.origins import Origins

    def broken(*_):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(Origins, "add", broken)
    model = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x * NAN))
    with (
        pytest.warns(probe.errors.ProbeWarning, match="to stop at NaN"),
        probe.watch(model, live=False, stop_on="nonfinite"),
    ):
        assert model(fed()).isnan().all()


@pytest.mark.parametrize("broken", ["own_lines", "origin", "Origins.add"])
def test_a_fault_of_ours_is_a_notice_in_the_run_that_goes_on(monkeypatch, broken):
    def fails(*_):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(f"probe_nb.stopping.{broken}", fails)
    model = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x * NAN))
    with (
        pytest.warns(probe.errors.ProbeWarning, match="to stop at NaN"),
        probe.watch(model, live=False, stop_on="nonfinite") as run,
    ):
        model(model(fed()))
    told = "does not stop at NaN or Inf any more from step 0 on: ZeroDivisionError"
    assert len([notice for notice in run.info.notices if told in notice]) == 1
    assert run.frame(module="1", role="output")["nan_count"].tolist() == [6, 6]


@pytest.mark.parametrize("stop_on", [None, "nonfinite"])
def test_rows_that_are_lost_are_told_also_where_each_tensor_is_waited_for(monkeypatch, stop_on):
    land, landed = Recorder._land, []

    def fails_once(self, *rows):
        landed.append(rows)
        if len(landed) == 1:
            raise RuntimeError("device lost")
        land(self, *rows)

    monkeypatch.setattr(Recorder, "_land", fails_once)
    model = nn.Linear(2, 2)
    with (
        pytest.warns(probe.errors.ProbeWarning, match="rows of step 0 were lost"),
        probe.watch(model, live=False, stop_on=stop_on) as run,
    ):
        model(fed())
    (notice,) = run.info.notices
    assert "rows of step 0 were lost: RuntimeError('device lost')" in notice


def test_numbers_are_those_of_a_watch_that_does_not_stop():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
    frames = []
    for stop_on in (None, "nonfinite"):
        model.zero_grad()
        with probe.watch(model, live=False, stop_on=stop_on) as run:
            model(fed()).sum().backward()
        frames.append(run.df.drop(columns="reused"))  # each tensor is reduced by itself
    assert frames[0].equals(frames[1])


def test_not_a_bit_of_the_training_changes():
    def trained(stop_on):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(), nn.ReLU(inplace=True), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        options = {"stop_on": stop_on, "optimizer": optimizer, "live": False}
        with probe.watch(model, **options) if stop_on else contextlib.nullcontext():
            for _ in range(3):
                model(fed()).pow(2).sum().backward()
                optimizer.step()
        return [*model.state_dict().values(), *(p.grad for p in model.parameters()), torch.rand(3)]

    bare, stopping = trained(None), trained("nonfinite")
    assert all(torch.equal(one, other) for one, other in zip(bare, stopping, strict=True))


def test_what_led_there_can_be_kept():
    model = nn.Sequential(nn.Linear(2, 2), Do(lambda x: x * NAN))
    given = []
    model[0].register_forward_hook(lambda *call: given.append(call[2].detach().clone()))
    error = stopped(lambda: model(fed()), model, keep="1")
    assert torch.equal(error.run.tensor("1"), given[0])


def test_the_error_is_one_of_ours_and_can_be_pickled():
    model = nn.Sequential(Do(lambda x: x * NAN))
    error = stopped(lambda: model(fed()), model)
    assert isinstance(error, ProbeError)
    assert isinstance(error, FloatingPointError)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.origin.sentence == error.origin.sentence


def test_an_option_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="`stop_on` is 'nan'"):
        probe.watch(nn.Linear(2, 2), stop_on="nan")
