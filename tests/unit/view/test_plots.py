"""What `run.plot` draws: the numbers against numpy and torch, the names as they are, in light and dark."""

from __future__ import annotations

import doctest
import itertools
import math
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import colors
from matplotlib import pyplot as plt

import probe_nb as probe
from probe_nb.errors import SelectionError
from probe_nb.exponents import Histogram
from probe_nb.view.plots import Plots, powers, style
from tests import records

mpl.use("Agg")

MINUS = "\N{MINUS SIGN}"
STYLES = ("default", "dark_background")
NAMES = ("histogram", "trend", "heatmap", "histograms", "gradient_flow", "update_ratios")


@pytest.fixture(autouse=True)
def _closed_figures():
    yield
    plt.close("all")


def draw(ax):
    """Draw for real: a formula that does not parse, or a letter without a picture, fails here."""
    ax.figure.draw_without_rendering()
    return ax


def marked(ax, gid):
    return [line for line in ax.lines if line.get_gid() == gid]


def words(ax):
    legend = ax.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def texts(ax):
    return [text.get_text() for text in ax.texts]


# -- histogram -------------------------------------------------------------------------------------

VALUES = np.concatenate(
    [
        np.random.default_rng(0).normal(size=900) * 10.0,
        -np.exp2(np.random.default_rng(1).uniform(-40, 20, size=300)),
        np.zeros(50),
        [np.nan] * 3,
        [np.inf] * 2,
        [-np.inf],
    ]
)


def run_of(values, **facts):
    found = Histogram.of(values)
    counts = {
        "zero_count": found.zero,
        "nan_count": found.nan,
        "posinf_count": found.posinf,
        "neginf_count": found.neginf,
    }
    numel = len(values)
    return records.run([{"module": "fc", "histogram": found, "numel": numel} | counts | facts])


def exponents(values):
    there = values[np.isfinite(values) & (values != 0)]
    return np.floor(np.log2(np.abs(there))).astype(int), np.sign(there).astype(int)


def test_a_bar_stands_for_each_sign_and_power_of_two_at_equal_distances():
    ax = run_of(VALUES).plot.histogram("fc")
    found, sign = exponents(VALUES)
    place_of_one = places_of(ax)
    drawn = {}
    for bar in ax.containers[0]:
        at = bar.get_x() + bar.get_width() / 2
        side = 1 if at > 0 else -1
        drawn[side, round(abs(at) - place_of_one - 0.5)] = bar.get_height()
    pairs, counts = np.unique(np.stack([sign, found]), axis=1, return_counts=True)
    expected = dict(zip(map(tuple, pairs.T.tolist()), counts.tolist(), strict=True))
    assert drawn == expected


def places_of(ax):
    """Return where 2**0 stands, from the ticks alone."""
    labels = {t.get_text(): t.get_position()[0] for t in ax.get_xticklabels()}
    return labels["$2^{0}$"]


def test_the_signs_are_added_up_where_they_are_not_asked_for():
    ax = run_of(VALUES).plot.histogram("fc", signed=False)
    found, _ = exponents(VALUES)
    drawn = {
        round(bar.get_x() + 0.5 - places_of(ax) - 0.5): bar.get_height() for bar in ax.containers[0]
    }
    expected = dict(
        zip(*(each.tolist() for each in np.unique(found, return_counts=True)), strict=True)
    )
    assert drawn == expected
    assert ax.get_xlabel() == "magnitude"


def test_zeros_and_what_is_not_finite_stand_beside_the_powers_with_their_number():
    ax = draw(run_of(VALUES).plot.histogram("fc"))
    assert [bar.get_height() for bar in ax.containers[1]] == [50]
    outside = {
        round(bar.get_x() + bar.get_width() / 2, 6): bar.get_height()
        for c in ax.containers[2:]
        for bar in c
    }
    labels = {t.get_text(): t.get_position()[0] for t in ax.get_xticklabels()}
    assert {name: outside[round(labels[name], 6)] for name in (f"{MINUS}Inf", "+Inf", "NaN")} == {
        f"{MINUS}Inf": 1,
        "+Inf": 2,
        "NaN": 3,
    }
    bars = [bar.get_x() + bar.get_width() for bar in ax.containers[0]]
    assert labels[f"{MINUS}Inf"] < min(bars)
    assert max(bars) < labels["+Inf"] < labels["NaN"]
    assert {"1", "2", "3"} <= set(texts(ax))
    assert f"1,256 elements: 3 NaN, 2 +Inf, 1 {MINUS}Inf, 50 zero" in texts(ax)


def test_a_dtype_that_holds_the_finite_ones_is_not_said_to_hold_what_overflowed():
    ax = run_of(np.array([1.0, np.inf])).plot.histogram("fc", dtypes=["float16"])
    assert "the finite fit" in texts(ax)
    assert "fits" not in texts(ax)


def test_nothing_stands_outside_where_all_is_finite():
    ax = run_of(np.array([1.0, 2.0])).plot.histogram("fc")
    assert {"NaN", "+Inf", f"{MINUS}Inf"}.isdisjoint(t.get_text() for t in ax.get_xticklabels())
    assert "2 elements" in texts(ax)


@pytest.mark.parametrize(
    ("dtype", "type_", "smallest"),
    [
        ("float16", torch.float16, -24),
        ("float8_e4m3fn", torch.float8_e4m3fn, -9),
        ("float8_e5m2", torch.float8_e5m2, -16),
    ],
)
def test_the_band_of_a_dtype_goes_from_its_smallest_to_its_largest_number(dtype, type_, smallest):
    ax = run_of(VALUES).plot.histogram("fc", dtypes=[dtype])
    limits = torch.finfo(type_)
    one = places_of(ax)
    for gid, low, high in [
        (f"{dtype} 6", math.log2(limits.tiny), math.log2(limits.max)),
        (f"{dtype} 2", smallest, math.log2(limits.tiny)),
    ]:
        right, left = (np.abs(line.get_xdata()) - one for line in marked(ax, gid))
        assert right.tolist() == pytest.approx([low, high])
        assert left.tolist() == pytest.approx([low, high])


def test_a_band_wider_than_the_axis_goes_as_far_as_the_axis():
    ax = run_of(VALUES).plot.histogram("fc", dtypes=["torch.bfloat16"])
    low, high = ax.get_xlim()
    assert len(marked(ax, "bfloat16 2")) == 0
    ends = np.concatenate([line.get_xdata() for line in marked(ax, "bfloat16 6")])
    assert low <= ends.min()
    assert ends.max() <= high


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_the_share_that_a_dtype_cannot_hold_is_the_share_that_a_cast_loses(dtype):
    values = torch.exp2(
        torch.arange(-140, 128, dtype=torch.float64)
    )  # exact in every type or out of it
    values = values[values >= 2.0**-126]  # below lies one bin of histograms
    cast = values.to(getattr(torch, dtype)).double()
    limits = torch.finfo(getattr(torch, dtype))
    lost = powers.fit(Histogram.of(values.numpy()), dtype)
    n = len(values)
    assert lost.under == pytest.approx((cast == 0).sum().item() / n)
    assert lost.subnormal == pytest.approx(((cast > 0) & (cast < limits.tiny)).sum().item() / n)
    over = ~cast.isfinite() | ((cast == limits.max) & (values > limits.max))  # some casts saturate
    assert lost.over == pytest.approx(over.sum().item() / n)
    # 448 ends inside [256, 512), 57344 inside [2**15, 2**16): what is in that bin may or may not fit
    assert lost.perhaps == (pytest.approx(1 / n) if dtype.startswith("float8") else 0)


def test_what_a_dtype_cannot_hold_is_written_beside_its_band():
    values = np.array([1.0] * 9996 + [2.0**-30, 2.0**-20, 2.0**17, 2.0**17])
    ax = draw(run_of(values).plot.histogram("fc", dtypes=("float16", "bfloat16")))
    assert {"0.01 %", "0.02 %", "fits", "under", "subnormal", "over"} <= set(texts(ax))


@pytest.mark.parametrize(
    "values",
    [[0.0, 0.0], [np.nan], [np.inf, -np.inf], [1e-300, 1e300], [1e-45], [-3.0]],
    ids=str,
)
@pytest.mark.parametrize("signed", [True, False])
def test_any_values_can_be_drawn(values, signed):
    ax = draw(run_of(np.array(values)).plot.histogram("fc", signed=signed))
    assert sum(bar.get_height() for c in ax.containers for bar in c) == len(values)


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


def boxes(ax, gid):
    """Return the (row, column) pairs that the boxes of a collection cover."""
    found = set()
    for collection in ax.collections:
        if collection.get_gid() == gid:
            for path in collection.get_paths():
                (left, top), (right, bottom) = path.vertices.min(axis=0), path.vertices.max(axis=0)
                assert bottom - top == 1
                found |= {(round(top + 0.5), round(x)) for x in np.arange(left + 0.5, right)}
    return found


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
    assert [c.get_hatch() for c in ax.collections] == [None, "////", None]


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


def names_down(ax):
    draw(ax)
    return [t.get_text() for t in ax.get_yticklabels()]


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


# -- every plot ------------------------------------------------------------------------------------


def everything(module="fc"):
    """Return a run in which every plot finds something to draw, all of one module."""
    values = np.random.default_rng(0).normal(size=64)
    rows = []
    for step in range(4):
        bad = {"nan_count": 1} if step == 2 else {}
        for role, direction in [
            *(("param", "forward"), ("input", "forward"), ("output", "forward")),
            *(("param_grad", "backward"), ("update", "optimizer")),
        ]:
            row = {"module": module, "role": role, "direction": direction, "step": step}
            row |= {"leaf": "weight" if role in {"param", "param_grad", "update"} else "0"}
            scale = 10.0 ** (step - 2)
            row |= {"absmax": 3.0 * scale, "l2": scale, "mean": -scale, "numel": 64 + len(bad)}
            rows.append({**row, **bad, "histogram": Histogram.of(values * scale)})
    return records.run(rows)


CALLS = {
    "histogram": lambda plot, module, **kw: plot.histogram(module, **kw),
    "trend": lambda plot, module, **kw: plot.trend(module, **kw),
    "heatmap": lambda plot, module, **kw: plot.heatmap(module=module, **kw),
    "histograms": lambda plot, module, **kw: plot.histograms(module, **kw),
    "gradient_flow": lambda plot, module, **kw: plot.gradient_flow(module=module, **kw),
    "update_ratios": lambda plot, module, **kw: plot.update_ratios(module=module, **kw),
}


def test_there_are_six_plots_and_all_are_tried_here():
    run = everything()
    assert repr(run.plot) == f"Plots({', '.join(NAMES)})"
    assert tuple(CALLS) == NAMES


def plainly(ax):
    """Return every text of a figure as it is read."""
    found = []
    for each in ax.figure.findobj(mpl.text.Text):
        text = each.get_text()
        if each.get_visible() and text:
            found.append(each._preprocess_math(text))
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("module", ["_cost$ in $ <b>&", "$x^{", "a\nb", ""])
def test_a_module_is_written_as_it_is_called_whatever_that_is(name, module):
    written = plainly(draw(CALLS[name](everything(module).plot, module)))
    shown = {"a\nb": r"a\nb", "": "(root)"}.get(module, module)
    assert any(shown in text and not math_ for text, math_ in written)


def test_names_that_begin_with_an_underscore_are_in_the_legend():
    rows = [{"module": m, "absmax": 1.0} for m in ("_a", "_b")]
    assert words(records.run(rows).plot.trend("*")) == ["_a", "_b"]


def test_a_long_name_keeps_its_beginning_and_its_end():
    module = "model.language_model.layers.31.self_attention.rotary.projection"
    (short,) = names_down(records.run([{"module": module}]).plot.heatmap())
    assert len(short) == 34
    assert module.startswith(short.split("…")[0])
    assert module.endswith(short.split("…")[1])


@pytest.mark.parametrize("name", NAMES)
def test_a_plot_draws_on_the_axes_it_is_given_and_makes_no_figure(name):
    figure, (left, right) = plt.subplots(1, 2)
    before = plt.get_fignums()
    assert CALLS[name](everything().plot, "fc", ax=left) is left
    draw(left)
    assert left.has_data()
    assert not right.has_data()
    assert plt.get_fignums() == before
    assert figure.axes[:2] == [left, right]


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_run_says_that_it_is_empty(name):
    with pytest.raises(SelectionError, match="has no records"):
        CALLS[name](records.run([]).plot, "fc")


@pytest.mark.parametrize("name", NAMES)
def test_a_module_that_is_not_there_is_named_with_the_nearest(name):
    with pytest.raises(SelectionError, match=r"No module matches `fx`.*`fc`"):
        CALLS[name](everything().plot, "fx")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda p: p.trend("fc", "outptu"), "`outptu` is not a role.*`output`"),
        (lambda p: p.trend("fc", stat="maximum"), "`maximum` is not a statistic"),
        (lambda p: p.heatmap("absmx"), "`absmx` is not a statistic.*`absmax`"),
        (lambda p: p.heatmap(role="grad_input"), "This run has no `grad_input` rows; it has"),
        (lambda p: p.trend(["fc", "fc"], "state"), "`fc`, `fc` has no `state` rows"),
        (lambda p: p.histogram("fc", step=9), "Nothing was counted at `fc` output in step 9"),
        (lambda p: p.histogram("fc", dtypes=["float17"]), "`float17` is not a type.*`float16`"),
        (lambda p: p.histograms("fc", dtype="int4"), "`int4` is not a type"),
        (lambda p: p.gradient_flow(9), "No gradient of a parameter arrived in step 9"),
        (lambda p: p.gradient_flow(stat="rmss"), "`rmss` is not a statistic"),
    ],
)
def test_what_is_not_there_is_said_in_words(call, says):
    with pytest.raises(SelectionError, match=says):
        call(everything().plot)
    assert plt.get_fignums() == []


@pytest.mark.parametrize("name", ["trend", "heatmap", "histogram", "histograms"])
def test_rows_without_numbers_are_no_plot(name):
    run = records.run([{"module": "fc", "status": "meta"}])
    with pytest.raises(SelectionError, match=r"has a number|Nothing was counted"):
        CALLS[name](run.plot, "fc")


# -- light and dark --------------------------------------------------------------------------------


def contrast(a, b):
    """Return the contrast of two colours as WCAG 2 defines it."""

    def luminance(color):
        rgb = np.array(colors.to_rgb(color))
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("style_", [*STYLES, "ggplot", "Solarize_Light2", "grayscale"])
def test_text_alarms_and_data_stand_out_from_the_page(style_):
    with plt.style.context(style_):
        _, ax = plt.subplots()
        found = style.palette(ax)
    assert found.dark == (style_ == "dark_background")
    assert contrast(found.data, found.page) >= 3
    assert contrast(found.alarm, found.page) >= 3
    if style_ in STYLES:
        assert contrast(found.soft, found.page) >= 4.5
        assert min(contrast(each, found.page) for each in found.lines) >= 2
    assert found.alarm not in found.lines


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("style_", STYLES)
def test_every_text_can_be_read_on_its_page_also_when_the_style_has_gone(name, style_):
    with plt.style.context(style_):
        _, ax = plt.subplots()
    draw(CALLS[name](everything().plot, "fc", ax=ax))
    page = ax.get_facecolor()
    own = [text for text in ax.findobj(mpl.text.Text) if text.get_text() and text.get_visible()]
    assert own
    assert {
        text.get_text(): contrast(text.get_color(), page)
        for text in own
        if contrast(text.get_color(), page) < 3
    } == {}


def test_what_is_not_finite_has_the_same_colour_everywhere_and_data_has_another():
    run = everything()
    ax = run.plot.trend("fc")
    alarm = style.palette(ax).alarm
    assert marked(ax, "bad")[0].get_markerfacecolor() == alarm
    cells = next(c for c in run.plot.heatmap().collections if c.get_gid() == "bad")
    assert colors.to_hex(cells.get_facecolor()[0]) == alarm.lower()


# -- from the file, and for real -------------------------------------------------------------------


def test_a_saved_run_is_drawn_without_torch_and_matplotlib_is_imported_only_for_that(tmp_path):
    path = everything().save(tmp_path / "run.parquet")
    code = f"""
import sys
sys.modules["torch"] = None
import probe_nb.run
run = probe_nb.run.load({str(path)!r})
plots = run.plot
assert "matplotlib" not in sys.modules
for ax in (
    plots.histogram("fc"), plots.trend("fc"), plots.heatmap(), plots.histograms("fc"),
    plots.gradient_flow(), plots.update_ratios(),
):
    ax.figure.canvas.draw()
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={
            "PATH": "",
            "MPLBACKEND": "Agg",
            "MPLCONFIGDIR": str(tmp_path),
            "PYTHONPATH": ":".join(sys.path),
        },
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_what_is_drawn_of_a_real_training_is_what_torch_computes():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    outputs, norms = [], []
    with probe.watch(model) as run:
        for _ in range(3):
            x = torch.randn(5, 3)
            outputs.append(model[0].weight.detach().double() @ x.double().T)
            outputs[-1] += model[0].bias.detach().double()[:, None]
            model.zero_grad()
            model(x).square().sum().backward()
            norms.append(
                [float(p.grad.double().square().mean().sqrt()) for p in model.parameters()]
            )
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(0.1 * p.grad)
            run.step()
        ax = run.plot.trend("0", "output", "absmax")  # also while the watch is open
    expected = [float(out.abs().max()) for out in outputs]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), expected, rtol=1e-5)
    ax = run.plot.gradient_flow(1)
    (weights,), (biases,) = marked(ax, "weight"), marked(ax, "bias")
    np.testing.assert_allclose(weights.get_xdata(), norms[1][::2], rtol=1e-5)
    np.testing.assert_allclose(biases.get_xdata(), norms[1][1::2], rtol=1e-5)
    ax = run.plot.histogram("0", step=2)
    low = np.floor(np.log2(outputs[2].abs().numpy()))
    assert sorted(b.get_height() for b in ax.containers[0]) == sorted(
        np.unique(
            np.stack([np.sign(outputs[2].numpy()), low]).reshape(2, -1), axis=1, return_counts=True
        )[1]
    )


@pytest.mark.parametrize(
    "of", [Plots, *(getattr(Plots, name) for name in NAMES)], ids=lambda o: o.__name__
)
def test_the_example_of_a_plot_runs(of):
    found = doctest.DocTestFinder(recurse=False).find(of, of.__name__, globs={})
    said: list[str] = []
    for each in found:
        doctest.DocTestRunner().run(each, out=said.append)
    assert said == []
    assert of is Plots or of.__name__ == "update_ratios" or any(each.examples for each in found)


@pytest.mark.parametrize("room", [style, powers])
def test_the_examples_of_what_plots_are_made_of_run(room):
    assert doctest.testmod(room).failed == 0
