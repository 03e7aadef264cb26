"""Gradients by depth, and updates against parameters."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

import probe_nb as probe
from probe_nb.errors import SelectionError
from tests import records
from tests.drawn import draw, marked, names_down, words


@pytest.fixture(autouse=True)
def _closed_figures():
    yield
    plt.close("all")


# -- gradients -------------------------------------------------------------------------------------


def gradients():
    grad = {"role": "param_grad", "direction": "backward"}
    param = {"role": "param", "requires_grad": True}
    rows = [
        {"module": "frozen", **param, "leaf": "weight", "requires_grad": False},
        {"module": "a", **param, "leaf": "weight"},
        {"module": "a", **param, "leaf": "bias"},
        {"module": "b", **param, "leaf": "weight"},
        {"module": "b", **param, "leaf": "bias"},
        {"module": "unused", **param, "leaf": "weight"},
        *({"module": m, "role": "input"} for m in ("frozen", "a", "b", "c")),
        {"module": "c", **grad, "leaf": "weight", "l2": 3.0, "numel": 9, "nan_count": 1},
        {"module": "b", **grad, "leaf": "weight", "l2": 0.02, "numel": 100},
        {"module": "a", **grad, "leaf": "weight", "l2": 8.0, "numel": 4},
        {"module": "a", **grad, "leaf": "bias", "l2": 0.0, "numel": 4},
    ]
    return [{"step": 0, **row} for row in rows]


def test_gradients_stand_in_the_order_of_execution_as_root_mean_squares():
    ax = draw(records.run(gradients()).plot.gradient_flow())
    assert names_down(ax) == ["frozen", "a", "b", "c", "unused"]
    (weights,) = marked(ax, "weight")
    there = np.isfinite(weights.get_xdata())
    assert weights.get_xdata()[there].tolist() == [4.0, 0.002, 1.0]
    assert weights.get_ydata()[there].tolist() == [1, 2, 3]
    assert ax.get_xscale() == "log"


def test_what_has_no_gradient_says_none_what_is_frozen_says_so_and_zeros_say_0():
    ax = draw(records.run(gradients()).plot.gradient_flow())
    written = {text.xy[1]: text.get_text() for text in ax.texts}
    assert written == {0: "frozen", 1: "0: bias", 2: "none: bias", 4: "none"}
    places = {gid: marked(ax, gid)[0].get_ydata().tolist() for gid in ("none", "frozen", "0")}
    assert places == {"none": [2, 4], "frozen": [0], "0": [1]}
    (bad,) = marked(ax, "bad")
    assert (bad.get_xdata().tolist(), bad.get_ydata().tolist()) == ([1.0], [3])
    assert words(ax) == [
        *("weight", "bias", "NaN or Inf", "none: no gradient", "frozen", "exactly 0"),
    ]


def test_gradients_of_one_step_can_be_asked_for_and_as_another_statistic():
    rows = gradients() + [
        {**row, "step": 1, "l2": 5.0} for row in gradients() if row["module"] == "a"
    ]
    run = records.run(rows)
    (weights,) = marked(run.plot.gradient_flow(0, stat="l2", module="a"), "weight")
    assert weights.get_xdata().tolist() == [8.0]
    (weights,) = marked(run.plot.gradient_flow(stat="l2", module="a"), "weight")
    assert weights.get_xdata().tolist() == [5.0]


def test_of_a_run_that_ended_in_nan_the_last_step_with_a_finite_gradient_is_drawn():
    model = torch.nn.Linear(2, 1, bias=False)
    with probe.watch(model) as run:
        for fed in (3.0, 5.0, math.nan):
            model.zero_grad()
            model(torch.full((1, 2), fed)).sum().backward()
            probe.step()
    ax = draw(run.plot.gradient_flow())
    assert ax.get_title(loc="left").endswith("step 1")
    assert ax.lines[0].get_xdata().round(4).tolist() == [5.0]
    assert draw(run.plot.gradient_flow(2)).get_title(loc="left").endswith("step 2")


def test_what_grad_held_is_drawn_where_nothing_else_is_there():
    rows = [{"module": "a", "role": "param_grad", "leaf": "weight.grad", "l2": 4.0, "numel": 4}]
    (weights,) = marked(draw(records.run(rows).plot.gradient_flow()), "weight")
    assert weights.get_xdata().tolist() == [2.0]


# -- updates ---------------------------------------------------------------------------------------


def updates():
    """Return rows of two parameters: the first seen before each step, the second only after it."""
    rows = []
    for step in range(3):
        here = {"step": step, "leaf": "weight"}
        done = {"direction": "optimizer"}
        rows += [
            {"module": "a", **here, "role": "param", "l2": 2.0 + step},
            {"module": "a", **here, "role": "input"},
            {"module": "b", **here, "role": "input"},
            {"module": "a", **here, **done, "role": "update", "l2": 0.002},
            {"module": "a", **here, **done, "role": "param", "l2": 50.0},
            {"module": "b", **here, **done, "role": "update", "l2": 0.1},
            {"module": "b", **here, **done, "role": "param", "l2": 10.0 if step else 0.0},
        ]
    rows[3]["nan_count"] = 1
    return rows


def test_ratios_divide_by_the_parameter_before_the_step_and_else_after_it():
    ax = draw(records.run(updates()).plot.update_ratios())
    first, second = (line.get_ydata() for line in ax.lines[:2])
    np.testing.assert_allclose(first, [0.002 / 2, 0.002 / 3, 0.002 / 4])
    np.testing.assert_allclose(second, [math.nan, 0.01, 0.01])  # nothing is a share of 0
    assert words(ax) == [
        *("a weight", "b weight", "NaN or Inf, first in step 0, a weight"),
        "about 1e-3: rule of thumb",
    ]
    assert ax.get_yscale() == "log"


def test_the_rule_of_thumb_is_drawn_as_a_band_around_a_thousandth():
    ax = records.run(updates()).plot.update_ratios()
    (band,) = ax.patches
    assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx((3e-4, 3e-3))


def test_ratios_of_one_step_are_drawn_by_module():
    ax = records.run(updates()).plot.update_ratios(1)
    assert names_down(ax) == ["a", "b"]
    (weights,) = marked(ax, "weight")
    np.testing.assert_allclose(weights.get_xdata(), [0.002 / 3, 0.01])
    ax = draw(records.run(updates()).plot.update_ratios(0))
    assert {text.xy[1]: text.get_text() for text in ax.texts} == {1: "none"}
    with pytest.raises(SelectionError, match="Nothing was recorded in step 7"):
        records.run(updates()).plot.update_ratios(7)


def test_without_updates_it_is_said_how_they_are_recorded():
    with pytest.raises(SelectionError, match=r"no `update` rows.*optimizer=optimizer"):
        records.run(gradients()).plot.update_ratios()
    alone = [row for row in updates() if row["role"] == "update"]
    with pytest.raises(SelectionError, match="no `param` rows"):
        records.run(alone).plot.update_ratios()


def test_gradients_that_were_not_measured_are_no_empty_plot():
    rows = [{"role": "param_grad", "leaf": "weight", "status": "not_asked"}]
    with pytest.raises(SelectionError, match=r"number for `rms`; `run\.coverage\(\)`"):
        records.run(rows).plot.gradient_flow()
    with pytest.raises(SelectionError, match="msProbe's dumps have none"):
        records.run(gradients(), config={"dump": "folder"}).plot.update_ratios()


def test_where_updates_are_missing_although_the_optimizer_is_named_it_says_why():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    cases = {"`roles=` left them out": {"roles": "output"}, "skipped every one": {"scaler": scaler}}
    for says, options in cases.items():
        with probe.watch(model, optimizer=optimizer, live=False, **options) as run:
            scaler.scale(model(torch.full((1, 2), math.inf)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        with pytest.raises(SelectionError, match=f"no `update` rows: .*{says}"):
            run.plot.update_ratios()


def test_the_ratios_of_a_real_training_are_those_that_torch_gives():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    expected = []
    with probe.watch(model, optimizer=optimizer) as run:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 3)).square().sum().backward()
            before = [p.detach().double().clone() for p in model.parameters()]
            optimizer.step()
            after = [p.detach().double() for p in model.parameters()]
            pairs = zip(before, after, strict=True)
            expected.append([float((b - a).norm() / a.norm()) for a, b in pairs])
    lines = draw(run.plot.update_ratios()).lines[:4]
    assert [line.get_label() for line in lines] == ["0 weight", "0 bias", "2 weight", "2 bias"]
    found = [line.get_ydata() for line in lines]
    np.testing.assert_allclose(np.transpose(found), expected, rtol=1e-4)
