"""The histogram of a row and the bands under it, against numpy and against casts by torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

from probe_nb.exponents import Histogram
from probe_nb.view.plots import powers
from tests import records
from tests.drawn import MINUS, draw, marked, texts


@pytest.fixture(autouse=True)
def _closed_figures():
    yield
    plt.close("all")


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
    absmax = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    return records.run(
        [{"module": "fc", "histogram": found, "numel": numel, "absmax": absmax} | counts | facts]
    )


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


@pytest.mark.parametrize(
    ("absmax", "written"), [(448.0, "fits"), (449.0, "\N{LESS-THAN OR EQUAL TO}")]
)
def test_whether_the_last_bin_of_a_dtype_fits_is_told_by_the_largest_value(absmax, written):
    ax = run_of(np.array([1.0, 300.0, absmax])).plot.histogram("fc", dtypes=["float8_e4m3fn"])
    assert [text for text in texts(ax) if text.startswith(written)] != []


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
