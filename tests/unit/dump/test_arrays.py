"""Arrays without numbers beside them are measured as they are read: against exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as some_arrays

from probe_nb.dump import arrays


def root(square):
    """The root of a fraction: scaled to whole numbers, whose root is exact."""
    scaled = square * 4**1200
    return Fraction(math.isqrt(scaled.numerator // scaled.denominator), 2**1200)


def as_float(value):
    try:
        return float(value)
    except OverflowError:
        return math.nan


def truth(values):
    """Mean, std and l2 in rational numbers; NaN where no float64 is so large."""
    x = [Fraction(float(each)) for each in values]
    mean = sum(x) / len(x)
    std = root(sum((each - mean) ** 2 for each in x) / len(x))
    return [as_float(each) for each in (mean, std, root(sum(each**2 for each in x)))]


def measured(path, x):
    np.save(path / "x_float64_0.npy", x)
    return arrays.read(path / "x_float64_0.npy", path).numbers


WIDE = [
    [3e200, 4e200],
    [3e-200, 4e-200],
    [1.7e308, 1.7e308],
    [1.7e308, -1.7e308, 1.0],
    [np.finfo(np.float64).max] * 3,
    [5e-324, 5e-324, 0.0],
    [1e300, 1.0, 1e-300],
    [0.0, 0.0],
    [2.5],
]


@pytest.mark.parametrize("values", WIDE, ids=str)
@pytest.mark.parametrize("chunk", [1, 2, 2**22])
def test_values_whose_squares_and_sums_overflow_or_vanish_are_measured(
    values, chunk, tmp_path, monkeypatch
):
    monkeypatch.setattr(arrays, "_CHUNK", chunk)
    found = measured(tmp_path, np.array(values))
    low, high, mean, std, l2, absmax = found.statistics
    assert (low, high, absmax) == (min(values), max(values), max(map(abs, values)))
    expected = truth(values)
    scale = max(map(abs, values))
    assert mean == pytest.approx(expected[0], rel=1e-12, abs=1e-15 * scale)
    assert std == pytest.approx(expected[1], rel=1e-12, abs=1e-15 * scale)
    assert l2 == pytest.approx(expected[2], rel=1e-12, abs=5e-324, nan_ok=True)
    assert found.status == "ok"


@given(
    some_arrays(np.float64, st.integers(1, 30), elements=st.floats(allow_nan=True, width=64)),
    st.integers(1, 7),
)
def test_any_values_are_measured_in_any_pieces(tmp_path_factory, x, chunk):
    folder = tmp_path_factory.mktemp("array")
    before, arrays._CHUNK = arrays._CHUNK, chunk
    try:
        found = measured(folder, x)
    finally:
        arrays._CHUNK = before
    finite = x[np.isfinite(x)]
    assert found.counts[:4] == (
        int(np.isnan(x).sum()),
        int(np.isposinf(x).sum()),
        int(np.isneginf(x).sum()),
        int((x == 0).sum()),
    )
    if not finite.size:
        assert found.status == "no_finite"
        assert all(map(math.isnan, found.statistics))
        return
    scale = float(np.abs(finite).max())
    for value, expected in zip(found.statistics[2:5], truth(finite), strict=True):
        assert value == pytest.approx(expected, rel=1e-9, abs=1e-12 * scale, nan_ok=True)
    assert found.statistics[:2] == (finite.min(), finite.max())


def test_an_array_that_lies_by_columns_is_measured_where_it_is(tmp_path):
    x = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    found = measured(tmp_path, x)
    assert found.statistics[:3] == (0.0, 11.0, 5.5)


@pytest.mark.parametrize("x", [np.ones(3, np.longdouble), np.ones(3, np.complex128)])
def test_what_no_double_can_hold_is_not_measured(x, tmp_path):
    single = x.dtype.kind == "f" and x.dtype.itemsize == 8  # where a long double is a double
    assert (measured(tmp_path, x).status == "unsupported") is not single
