"""Under a `GradScaler` gradients are shown as they are without it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import probe_nb as probe
from tests import oracle

GRADIENTS = ("grad_output", "grad_input", "param_grad")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))


def batch() -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


def watched(scale: float, *, steps: int = 1, factor: float = 1.0, **options) -> probe.Run:
    """Train under a loss scale; the loss is multiplied by `factor`."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, **options)
    with probe.watch(model, optimizer=optimizer, scaler=scaler) as run:
        for _ in range(steps):
            scaler.scale(model(batch()).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return run


def truth(factor: float = 1.0) -> dict[tuple[str, str], oracle.Expected]:
    """The gradients of the parameters without any scale, in float64."""
    model = net().double()
    (model(batch().double()).sum() * factor).backward()
    found = {}
    for name, parameter in model.named_parameters():
        module, leaf = name.rsplit(".", 1)
        found[module, leaf] = oracle.of_values(oracle.values(parameter.grad), torch.float32)
    return found


@pytest.mark.parametrize("scale", [1.0, 2.0**16, 2.0**-3, 3.0, 1000.0])
def test_gradient_statistics_are_those_without_the_scale(scale):
    run = watched(scale)
    rows = run.frame(role="param_grad", direction="backward")
    assert len(rows) == 4
    for _, row in rows.iterrows():
        want = truth()[row["module"], row["leaf"]].statistics
        for name in oracle.STATISTICS:
            assert row[name] == pytest.approx(want[name], rel=1e-5, abs=1e-6 * want["absmax"])


@pytest.mark.parametrize("scale", [2.0, 2.0**16, 2.0**-4])
def test_a_power_of_two_shifts_the_histogram_exactly(scale):
    plain, scaled = watched(1.0), watched(scale)
    rows = scaled.frame(role=list(GRADIENTS), direction="backward").index
    assert len(rows) == 10
    for row in rows:
        assert scaled.columns.histogram(row) == plain.columns.histogram(row)


def test_gradients_below_the_bins_of_float32_share_the_lowest_one():
    run = watched(2.0**40, factor=2.0**-130)
    for row, facts in run.frame(role="param_grad", direction="backward").iterrows():
        histogram = run.columns.histogram(row)
        want = truth(2.0**-130)[facts["module"], facts["leaf"]]
        assert {(sign, e): n for sign, e, n in histogram.signed()} == want.bins
        assert len(histogram.bins) == len(want.bins)


def test_under_any_other_scale_no_histogram_is_made_up():
    run = watched(1000.0)
    for row in run.frame(role=list(GRADIENTS), direction="backward").index:
        assert run.columns.histogram(row) is None
    for row in run.frame(direction="forward", status="ok").index:
        assert run.columns.histogram(row) is not None


def test_subnormals_are_not_shifted_into_a_bin_they_may_not_belong_to():
    run = watched(2.0**-20, factor=2.0**-120)
    for row, facts in run.frame(role="param_grad", direction="backward").iterrows():
        histogram = run.columns.histogram(row)
        if histogram is None:
            continue
        want = truth(2.0**-120)[facts["module"], facts["leaf"]]
        shown = {(sign, e) for sign, e, _ in histogram.signed()}
        assert shown <= set(want.bins), facts["module"]


def test_the_scale_stands_in_the_rows_of_gradients_and_in_no_others():
    run = watched(2.0**10)
    gradients = run.df["direction"] == "backward"
    assert run.df[gradients]["loss_scale"].eq(1024.0).all()
    assert run.df[~gradients]["loss_scale"].isna().all()


def test_a_scale_that_grows_is_recorded_step_by_step():
    run = watched(4.0, steps=3, growth_interval=1)
    scales = run.frame(role="param_grad", direction="backward", module="0", leaf="weight")
    assert scales["step"].tolist() == [0, 1, 2]
    assert scales["loss_scale"].tolist() == [4.0, 8.0, 16.0]
    assert scales["l2"].nunique() == 1


def test_a_skipped_step_shows_its_overflow_and_the_scale_that_followed():
    run = watched(2.0**20, steps=2, factor=2.0**120, backoff_factor=2.0**-20)
    rows = run.frame(role="param_grad", direction="backward", module="2", leaf="bias")
    assert rows["step"].tolist() == [0, 1]
    assert rows["loss_scale"].tolist() == [2.0**20, 1.0]
    assert rows["posinf_count"].tolist() == [1, 0]
    assert rows["status"].tolist() == ["no_finite", "ok"]
    assert rows["max"].iloc[1] == 4 * 2.0**120


def test_counts_are_not_divided():
    plain, scaled = watched(1.0), watched(2.0**8)
    for name in ("numel", "zero_count", "nan_count", "posinf_count"):
        assert plain.df[name].tolist() == scaled.df[name].tolist()


def test_a_scaler_that_is_off_scales_nothing():
    run = watched(2.0**16, enabled=False)
    assert run.df["loss_scale"].isna().all()
    for _, row in run.frame(role="param_grad", direction="backward").iterrows():
        assert row["l2"] == pytest.approx(truth()[row["module"], row["leaf"]].statistics["l2"])


def test_gradients_unscaled_by_hand_before_the_step_are_shown_right():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    with probe.watch(model, optimizer=optimizer, scaler=scaler) as run:
        scaler.scale(model(batch()).sum()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    for _, row in run.frame(role="param_grad", direction="backward").iterrows():
        want = truth()[row["module"], row["leaf"]].statistics
        assert row["l2"] == pytest.approx(want["l2"], rel=1e-5)


def test_an_infinite_gradient_stays_infinite_whatever_the_scale():
    run = watched(2.0, factor=math.inf)
    rows = run.frame(role="grad_output", module="2")
    assert rows["posinf_count"].tolist() == [4]


def test_gradients_under_an_infinite_scale_are_not_divided_by_it():
    run = watched(math.inf)
    rows = run.frame(role="param_grad", direction="backward", module="2", leaf="bias")
    assert rows["loss_scale"].isna().all()
    assert rows["status"].tolist() == ["no_finite"]
    assert rows["posinf_count"].tolist() == [1]
