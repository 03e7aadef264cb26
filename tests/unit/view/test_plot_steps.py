"""Trends, heat maps and histograms over steps: the numbers, what is not finite, what is absent."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from matplotlib import colors
from matplotlib import pyplot as plt

from probe_nb.exponents import Histogram
from tests import records
from tests.drawn import boxes, draw, marked, names_down, words


@pytest.fixture(autouse=True)
def _closed_figures():
    yield
    plt.close("all")


# -- trend -----------------------------------------------------------------------------------------


def steps(values, module="fc", **facts):
    return [{"module": module, "step": s, "absmax": v} | facts for s, v in enumerate(values)]


def test_a_line_has_the_numbers_of_its_module():
    ax = draw(records.run(steps([1.0, 3.0, 2.0])).plot.trend("fc"))
    assert ax.lines[0].get_xdata().tolist() == [0, 1, 2]
    assert ax.lines[0].get_ydata().tolist() == [1.0, 3.0, 2.0]
    assert ax.get_yscale() == "linear"
    assert ax.get_title(loc="left") == "absmax of fc output"
    assert ax.get_legend() is None


@pytest.mark.parametrize(
    ("values", "log", "scale"),
    [
        ([1.0, 20.0], None, "linear"),
        ([1.0, 50.0], None, "log"),
        ([1.0, 50.0], False, "linear"),
        ([1.0, 2.0], True, "log"),
        ([-1.0, 2.0], None, "linear"),
        ([-1e-5, 1.0], None, "symlog"),
        ([0.0, 0.0], True, "linear"),
    ],
)
def test_the_scale_is_logarithmic_where_that_helps_or_is_asked_for(values, log, scale):
    rows = [row | {"mean": row["absmax"]} for row in steps(values)]
    ax = draw(records.run(rows).plot.trend("fc", stat="mean", log=log))
    assert ax.get_yscale() == scale


def test_a_step_that_is_not_finite_has_a_cross_at_its_value_or_at_the_edge():
    rows = [
        {"module": "a", "step": 0, "absmax": 1.0},
        {"module": "a", "step": 1, "absmax": 2.0, "nan_count": 1},
        {"module": "a", "step": 2, "absmax": math.nan, "posinf_count": 4},
        {"module": "a", "step": 3, "absmax": 4.0},
    ]
    ax = draw(records.run(rows).plot.trend("a"))
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), [1.0, 2.0, math.nan, 4.0])
    (at_value,), (at_edge,) = marked(ax, "bad"), marked(ax, "bad at the edge")
    assert (at_value.get_xdata().tolist(), at_value.get_ydata().tolist()) == ([1], [2.0])
    assert at_edge.get_xdata().tolist() == [2]
    assert words(ax) == ["NaN or Inf, first in step 1"]


def test_the_first_that_was_not_finite_is_named_by_execution_and_not_by_place():
    rows = [
        {"module": "outer", "role": "input", "order": 0},
        {"module": "inner", "role": "output", "order": 1, "nan_count": 1},
        {"module": "outer", "role": "output", "order": 2, "nan_count": 1},
    ]
    ax = records.run(rows).plot.trend("*")
    assert words(ax) == ["outer", "inner", "NaN or Inf, first in step 0, inner"]


def test_a_step_without_a_row_is_a_gap_and_what_stands_alone_has_a_dot():
    there = [0, *range(2, 60), 61]
    rows = [{"module": "a", "step": s, "absmax": 1.0 + s} for s in there]
    rows += [{"module": "b", "step": s, "absmax": 1.0} for s in range(62)]
    line = draw(records.run(rows).plot.trend(["a", "b"])).lines[0]
    expected = np.array([1.0 + s if s in there else math.nan for s in range(62)])
    np.testing.assert_array_equal(line.get_ydata(), expected)
    assert line.get_markevery() == [0, 61]


def test_zeros_on_a_log_axis_are_marked_at_its_edge():
    rows = steps([1.0, 0.0, 1000.0]) + steps([1.0, 1.0, 1.0], "other")
    ax = draw(records.run(rows).plot.trend("*"))
    (zeros,) = marked(ax, "zeros")
    assert zeros.get_xdata().tolist() == [1]
    assert words(ax) == ["fc", "other", "exactly 0: fc"]


def test_of_many_lines_some_are_named_and_it_is_said_how_many_are_not():
    rows = [{"module": f"layers.{k}", "absmax": 1.0 + k} for k in range(30)]
    ax = draw(records.run(rows).plot.trend("layers.*"))
    assert [float(line.get_ydata()[0]) for line in ax.lines[:30]] == [1.0 + k for k in range(30)]
    assert len(words(ax)) == 9
    assert words(ax)[0] == "layers.0"
    assert words(ax)[-2:] == ["layers.29", "and 22 between them"]
    assert len({colors.to_hex(line.get_color()) for line in ax.lines[:30]}) == 30


def test_up_to_twelve_lines_can_be_told_apart_by_colour_and_dash():
    rows = [{"module": f"layers.{k}", "absmax": 1.0 + k} for k in range(12)]
    ax = records.run(rows).plot.trend("layers.*")
    looks = {(line.get_color(), line.get_linestyle()) for line in ax.lines[:12]}
    assert len(looks) == 12


def test_a_count_of_what_is_not_finite_is_drawn_as_a_number():
    rows = [{"module": "a", "step": s, "nan_count": s} for s in range(3)]
    run = records.run(rows)
    ax = run.plot.trend("a", stat="nan_count")
    assert ax.lines[0].get_ydata().tolist() == [0.0, 1.0, 2.0]
    assert marked(ax, "bad") == []
    assert run.plot.heatmap("nan_count").images[0].get_array().compressed().tolist() == [1.0, 2.0]


# -- heat map --------------------------------------------------------------------------------------


def table(stat="absmax"):
    """Return a run of 5 modules and 4 steps, and its numbers: some absent, 0 or not finite."""
    values = np.random.default_rng(3).lognormal(size=(5, 4)) * [[1], [100], [1], [1], [1]]
    values[1, 2] = 0.0
    rows = []
    for step in range(4):
        for k in range(5):
            if (k, step) != (3, 1):
                row = {"module": f"m{k}", "step": step, stat: values[k, step]}
                row |= {"posinf_count": 1} if (k, step) in {(2, 2), (2, 3)} else {}
                rows.append(row)
    values[3, 1] = values[2, 2:] = math.nan
    return records.run(rows), values


def test_a_heat_map_has_the_numbers_modules_down_and_steps_along():
    run, values = table()
    ax = draw(run.plot.heatmap())
    values[1, 2] = math.nan  # has a colour of its own
    np.testing.assert_array_equal(ax.images[0].get_array().filled(math.nan), values)
    assert isinstance(ax.images[0].norm, colors.LogNorm)
    assert [t.get_text() for t in ax.get_yticklabels()] == [f"m{k}" for k in range(5)]
    assert ax.get_ylim() == (4.5, -0.5)


def test_cells_that_are_not_finite_are_covered_zeros_too_and_absent_ones_are_empty():
    run, _ = table()
    ax = draw(run.plot.heatmap())
    assert boxes(ax, "bad") == {(2, 2), (2, 3)}
    assert boxes(ax, "exactly 0") == {(1, 2)}
    assert ax.images[0].get_array().mask[3, 1]
    assert words(ax) == ["NaN or Inf", "exactly 0"]
    assert [c.get_hatch() for c in ax.collections] == [None, "xxxx", None]


def test_the_columns_of_a_heat_map_are_the_recorded_steps():
    rows = [{"module": "m", "step": s, "absmax": float(s)} for s in (10, 200, 3000)]
    ax = draw(records.run(rows).plot.heatmap())
    named = {t.get_position()[0]: t.get_text() for t in ax.get_xticklabels()}
    assert {place: named[place] for place in range(3)} == {0: "10", 1: "200", 2: "3000"}


def test_a_statistic_of_both_signs_has_a_scale_around_zero():
    run, _ = table("mean")
    rows = [{"module": f"m{k}", "mean": (-1) ** k * 10.0**-k} for k in range(5)]
    ax = draw(records.run(rows).plot.heatmap("mean"))
    norm = ax.images[0].norm
    assert isinstance(norm, colors.SymLogNorm)
    assert (norm.vmin, norm.vmax) == (-1.0, 1.0)
    assert norm(0.0) == pytest.approx(0.5)
    assert isinstance(draw(run.plot.heatmap("mean")).images[0].norm, colors.LogNorm)


def test_one_huge_number_does_not_take_all_colours():
    rows = [{"module": f"m{k}", "step": s, "absmax": 1.0 + k} for k in range(20) for s in range(20)]
    rows[7]["absmax"] = 1e30
    ax = draw(records.run(rows).plot.heatmap())
    norm = ax.images[0].norm
    assert norm(20.0) - norm(1.0) > 0.3
    (bar,) = ax.child_axes
    assert bar.get_ylabel() == "absmax (up to 1e+30)"


def test_of_200_modules_as_many_are_named_as_can_be_read_and_always_the_first_bad_one():
    rows = [{"module": f"model.layers.{k}.mlp", "absmax": 1.0 + k} for k in range(200)]
    rows[93]["nan_count"] = 1
    ax = draw(records.run(rows).plot.heatmap())
    labels = [t for t in ax.get_yticklabels() if t.get_text()]
    assert "model.layers.93.mlp" in [t.get_text() for t in labels]
    assert 30 <= len(labels) < 100
    tops = sorted((t.get_window_extent() for t in labels), key=lambda box: box.y0)
    assert all(low.y1 <= high.y0 + 2 for low, high in itertools.pairwise(tops))


def test_modules_stand_in_the_order_of_their_first_forward_calls():
    rows = [
        {"module": "z", "role": "param", "leaf": "weight", "order": 0},
        {"module": "a.never", "role": "param", "leaf": "weight", "order": 1},
        {"module": "z", "role": "input", "order": 2},
        {"module": "a", "role": "input", "order": 3},
        {"module": "m", "role": "input", "order": 4},
    ]
    late = [("m", 5), ("a.never", 6), ("a", 7), ("z", 8), ("alone", 9)]
    rows += [{"module": m, "role": "param_grad", "leaf": "weight", "order": k} for m, k in late]
    ax = records.run(rows).plot.heatmap(role="param_grad")
    assert names_down(ax) == ["z", "a", "a.never", "m", "alone"]
    only_gradients = [row for row in rows if row["role"] == "param_grad"]
    ax = records.run(only_gradients).plot.heatmap(role="param_grad")
    assert names_down(ax) == ["alone", "z", "a", "a.never", "m"]


def test_the_model_is_named_where_there_are_several():
    rows = [{"module": "fc", "model": model} for model in ("actor", "critic")]
    assert names_down(records.run(rows).plot.heatmap()) == ["actor: fc", "critic: fc"]
    assert names_down(records.run(rows).plot.heatmap(model="critic")) == ["fc"]


def test_a_heat_map_where_all_is_nan_has_no_colour_bar():
    ax = draw(records.run([{"module": "m", "absmax": math.nan, "nan_count": 4}]).plot.heatmap())
    assert boxes(ax, "bad") == {(0, 0)}
    assert ax.child_axes == []


# -- histograms over steps -------------------------------------------------------------------------


def test_histograms_over_steps_have_the_share_of_each_power_of_two():
    values = [np.array([1.0, -1.5, 4.0, 0.0]), np.array([8.0, np.nan, 0.0, 0.0])]
    rows = []
    for step, each in enumerate(values):
        found = Histogram.of(each)
        counts = {"zero_count": found.zero, "nan_count": found.nan}
        rows.append({"module": "fc", "step": step, "histogram": found, "numel": 4} | counts)
    rows.append({"module": "other", "step": 2})
    ax = draw(records.run(rows).plot.histograms("fc"))
    image = ax.images[0]
    nan = math.nan
    expected = [
        [0.25, 0.5, nan],  # zeros
        [nan, nan, nan],  # a gap
        [0.5, nan, nan],  # [1, 2)
        [nan, nan, nan],
        [0.25, nan, nan],  # [4, 8)
        [nan, 0.25, nan],
    ]
    np.testing.assert_array_equal(image.get_array().filled(nan), expected)
    assert image.get_extent() == [-0.5, 2.5, -2.5, 3.5]
    assert dict(
        zip([t.get_text() for t in ax.get_yticklabels()], ax.get_yticks(), strict=True)
    ) == {
        "0": -2.0,
        "$2^{0}$": -0.5,
        "$2^{1}$": 0.5,
        "$2^{2}$": 1.5,
        "$2^{3}$": 2.5,
    }
    assert {column for _, column in boxes(ax, "bad")} == {1}


def test_the_limits_of_the_tensors_own_dtype_or_of_the_one_asked_for_are_drawn_where_in_view():
    values = Histogram.of(np.exp2(np.arange(-30.0, 20.0)))
    run = records.run([{"module": "fc", "histogram": values, "dtype": "float16"}])
    ax = draw(run.plot.histograms("fc"))
    lines = {line.get_gid(): line.get_ydata()[0] + 0.5 for line in ax.lines}
    assert lines == {
        "float16: largest 65504": pytest.approx(math.log2(65504)),
        "float16: smallest normal": -14,
        "float16: smallest": -24,
    }
    ax = draw(run.plot.histograms("fc", dtype="torch.float8_e4m3fn"))
    assert [line.get_ydata()[0] + 0.5 for line in ax.lines] == [math.log2(448), -6, -9]
