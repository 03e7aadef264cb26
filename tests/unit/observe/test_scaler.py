"""Steps and numbers under a `GradScaler`, also where it skips the optimizer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import probe_nb as probe
from tests.unit.observe.test_steps import when


class Scaled:
    """Mixed-precision training on the CPU; an infinite input makes the scaler skip a step."""

    def __init__(self, *, fused=False):
        self.model = nn.Linear(2, 1, bias=False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1, fused=fused)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step(self, value):
        self.optimizer.zero_grad()
        self.scaler.scale(self.model(torch.full((1, 2), value)).sum()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def watch(self, values, **options):
        with probe.watch(self.model, optimizer=self.optimizer, live=False, **options) as run:
            for value in values:
                self.step(value)
        return run


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_a_skipped_step_is_a_step(fused):
    scaled = Scaled(fused=fused)
    run = scaled.watch([1.0, torch.inf, 1.0], scaler=scaled.scaler)
    assert when(run) == [(0, 0), (1, 0), (2, 0)]


def test_accumulation_under_a_scaler_ends_the_step_with_its_update():
    scaled = Scaled()
    with probe.watch(
        scaled.model, optimizer=scaled.optimizer, scaler=scaled.scaler, live=False
    ) as run:
        for value in (1.0, torch.inf):
            scaled.scaler.scale(scaled.model(torch.ones(1, 2)).sum()).backward()
            scaled.step(value)
    assert when(run) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_an_evaluation_between_step_and_update_belongs_to_the_step():
    scaled = Scaled()
    model, scaler = scaled.model, scaled.scaler
    with probe.watch(model, optimizer=scaled.optimizer, scaler=scaler, live=False) as run:
        for _ in range(2):
            scaler.scale(model(torch.ones(1, 2)).sum()).backward()
            scaler.step(scaled.optimizer)
            with torch.no_grad():
                model(torch.ones(1, 2))
            scaler.update()
    assert when(run) == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("named", [False, True], ids=["any optimizer", "named"])
def test_an_optimizer_that_is_stepped_past_the_scaler_ends_the_step(fused, named):
    scaled = Scaled(fused=fused)
    model, scaler, optimizer = scaled.model, scaled.scaler, scaled.optimizer
    with probe.watch(
        model, optimizer=optimizer if named else None, scaler=scaler, live=False
    ) as run:
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(1, 2)).sum()).backward()
            optimizer.step()
            with torch.no_grad():
                model(torch.ones(1, 2))
    assert when(run) == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]


def test_gradients_that_were_unscaled_by_hand_wait_for_the_update_that_has_to_come():
    scaled = Scaled()
    model, scaler = scaled.model, scaled.scaler
    with probe.watch(model, optimizer=scaled.optimizer, scaler=scaler, live=False) as run:
        for _ in range(2):
            scaler.scale(model(torch.ones(1, 2)).sum()).backward()
            scaler.unscale_(scaled.optimizer)
            scaled.optimizer.step()
            with torch.no_grad():
                model(torch.ones(1, 2))
            scaler.update()
    assert when(run) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_two_optimizers_under_one_scaler_end_the_step_with_its_update():
    scaled = Scaled()
    model, scaler, last = scaled.model, scaled.scaler, scaled.optimizer
    first = torch.optim.SGD(model.parameters(), lr=0.1)
    for order in ([first, last], [last, first]):
        with probe.watch(model, optimizer=order, scaler=scaler, live=False) as run:
            for _ in range(2):
                for optimizer in (first, last):
                    scaler.scale(model(torch.ones(1, 2)).sum()).backward()
                    scaler.step(optimizer)
                scaler.update()
        assert when(run) == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_gradients_are_divided_by_the_scale_and_the_scale_is_recorded(fused):
    scaled = Scaled(fused=fused)
    run = scaled.watch([1.0, torch.inf, 3.0], scaler=scaled.scaler)
    rows = run.frame(role="param_grad", direction="backward")
    assert rows["loss_scale"].tolist() == [1024.0, 1024.0, 512.0]
    assert rows["max"].fillna(-1).tolist() == [1.0, -1.0, 3.0]
    assert rows["posinf_count"].tolist() == [0, 2, 0]
    assert rows["status"].tolist() == ["ok", "no_finite", "ok"]
    outputs = run.df[run.df["role"] == "grad_output"]
    assert outputs["mean"].tolist() == [1.0, 1.0, 1.0]
    assert run.df[run.df["direction"] == "forward"]["loss_scale"].isna().all()


def test_a_scaled_gradient_has_the_histogram_of_the_unscaled_one():
    scaled = Scaled()
    run = scaled.watch([3.0], scaler=scaled.scaler)
    bare = Scaled()
    with probe.watch(bare.model, live=False) as plain:
        bare.model(torch.full((1, 2), 3.0)).sum().backward()
    assert run.histogram("", "param_grad") == plain.histogram("", "param_grad")


def test_a_scaler_that_is_switched_off_divides_nothing():
    scaled = Scaled()
    scaled.scaler = torch.amp.GradScaler("cpu", enabled=False)
    run = scaled.watch([1.0, 1.0], scaler=scaled.scaler)
    rows = run.frame(role="param_grad", direction="backward")
    assert rows["max"].tolist() == [1.0, 1.0]
    assert rows["loss_scale"].isna().all()
    assert when(run) == [(0, 0), (1, 0)]


def test_without_the_scaler_gradients_are_as_they_come():
    run = Scaled().watch([1.0])
    rows = run.frame(role="param_grad", direction="backward")
    assert rows["max"].tolist() == [1024.0]
    assert rows["loss_scale"].isna().all()


def test_the_scaler_draws_and_changes_nothing_under_the_watch():
    bare, seen = Scaled(), Scaled()
    seen.model.load_state_dict(bare.model.state_dict())
    values = [1.0, torch.inf, 3.0, torch.inf]
    for value in values:
        bare.step(value)
    seen.watch(values, scaler=seen.scaler)
    assert torch.equal(bare.model.weight, seen.model.weight)
    assert bare.scaler.state_dict() == seen.scaler.state_dict()


def test_something_that_is_no_scaler_is_refused():
    with pytest.raises(ValueError, match=r"`scaler` must be a `torch.amp.GradScaler`, got float"):
        Scaled().watch([1.0], scaler=1024.0)
