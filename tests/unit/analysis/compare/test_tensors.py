"""Metrics of kept tensors against numpy's own arithmetic in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from probe_nb.analysis.compare import tensors
from probe_nb.analysis.compare.tensors import apart, array_of, ordinal, ulps
from probe_nb.store.kept import Kept

FINITE = st.floats(-(2.0**20), 2.0**20, width=32, allow_subnormal=False)
PAIRS = st.integers(1, 40).flatmap(
    lambda n: st.tuples(
        arrays(np.float64, n, elements=FINITE), arrays(np.float64, n, elements=FINITE)
    )
)


@given(PAIRS)
def test_each_metric_is_its_definition(pair):
    a, b = pair
    found = apart(a, b, "float32")
    d = b - a
    assert found.euclidean == pytest.approx(np.sqrt((d**2).sum()), rel=1e-12, abs=1e-300)
    assert found.max_abs == np.abs(d).max()
    with np.errstate(divide="ignore", invalid="ignore"):
        rel = np.where(d == 0, 0.0, np.abs(d) / np.abs(a))
    assert found.max_rel == rel.max()
    assert found.within_1e3 == (rel < 1e-3).mean()
    assert found.within_5e3 == (rel < 5e-3).mean()
    norms = np.linalg.norm(a) * np.linalg.norm(b)
    if norms > 1e-200:
        assert found.cosine == pytest.approx(a @ b / norms, abs=1e-9)
    assert (found.mismatched, found.count) == (0, len(a))


@given(PAIRS)
def test_what_is_symmetric_is_the_same_either_way(pair):
    one, other = apart(*pair, "float32"), apart(*pair[::-1], "float32")
    for name in ("cosine", "euclidean", "relative", "max_abs", "max_ulp", "mismatched"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-12), name


def test_chunks_add_up(monkeypatch):
    rng = np.random.default_rng(0)
    a = rng.normal(size=1000) * 10.0 ** rng.integers(-200, 200, 1000)
    b = a * (1 + 1e-3 * rng.normal(size=1000))
    whole = apart(a, b)
    monkeypatch.setattr(tensors, "_CHUNK", 7)
    parts = apart(a, b)
    for name in ("cosine", "euclidean", "relative", "max_abs", "max_rel", "within_1e3"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-9), name


def test_values_whose_squares_overflow_or_vanish_are_measured():
    for size in (1e-300, 1e300):
        found = apart(np.array([3.0, 4.0]) * size, np.array([3.0, 4.5]) * size)
        assert found.euclidean == pytest.approx(0.5 * size)
        assert found.cosine == pytest.approx((9 + 18) / (5 * np.hypot(3, 4.5)))


@pytest.mark.parametrize(
    ("a", "b", "mismatched", "count"),
    [
        ([np.nan, 1], [np.nan, 1], 0, 1),
        ([np.inf, 1], [np.inf, 1], 0, 1),
        ([np.inf, 1], [-np.inf, 1], 1, 1),
        ([np.nan, 1], [np.inf, 1], 1, 1),
        ([np.inf, 1], [65504, 1], 1, 1),
        ([np.nan, np.nan], [np.nan, np.nan], 0, 0),
        ([], [], 0, 0),
    ],
)
def test_what_is_not_finite_must_be_so_on_both_sides(a, b, mismatched, count):
    found = apart(np.array(a, float), np.array(b, float))
    assert (found.mismatched, found.count) == (mismatched, count)
    assert np.isnan(found.euclidean) == (count == 0)


def test_zeros_are_parallel_to_zeros_alone():
    zero, one = np.zeros(3), np.ones(3)
    assert (apart(zero, zero).cosine, apart(zero, one).cosine) == (1.0, 0.0)
    assert apart(zero, one).max_rel == np.inf
    assert apart(zero, zero).max_rel == 0.0


@pytest.mark.parametrize(
    ("dtype", "ints"),
    [(torch.float32, torch.int32), (torch.float16, torch.int16), (torch.bfloat16, torch.int16)],
)
def test_the_place_of_a_float_is_its_bits(dtype, ints):
    bits = (
        torch.randint(0, 2**15 - 2**10, (1000,))
        if ints is torch.int16
        else torch.randint(0, 2**31 - 2**24, (1000,))
    )
    values = bits.to(ints).view(dtype)
    values = values[values.isfinite()]
    name = str(dtype).removeprefix("torch.")
    wide = values.double().numpy()
    assert (ordinal(wide, name) == values.view(ints).double().numpy()).all()
    assert (ordinal(-wide, name) == -ordinal(wide, name)).all()


def test_units_in_the_last_place_of_float64_are_counted_exactly():
    a = np.array([1.0, -1.0, 1e300, 0.0])
    b = np.array(
        [np.nextafter(1.0, 2.0), -np.nextafter(1.0, 2.0), np.nextafter(1e300, np.inf), 5e-324]
    )
    assert ulps(a, b, "float64").tolist() == [1, 1, 1, 1]
    assert ulps(np.array([-5e-324]), np.array([5e-324]), "float64").tolist() == [2]


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_every_pattern_of_a_float8_is_read_as_torch_reads_it(dtype):
    bits = torch.arange(256, dtype=torch.uint8)
    expected = bits.view(getattr(torch, dtype)).float().numpy()
    kept = Kept("", "", "forward", "output", "", 0, 0, 0, -1, dtype, (256,), 256, data=bits.numpy())
    np.testing.assert_array_equal(array_of(kept), expected)


def test_bfloat16_is_read_without_torch():
    values = torch.tensor([1.0, -2.5, 3e38, 1e-40, float("inf")]).bfloat16()
    data = values.view(torch.uint8).numpy().copy()
    kept = Kept("", "", "forward", "output", "", 0, 0, 0, -1, "bfloat16", (5,), 10, data=data)
    np.testing.assert_array_equal(array_of(kept), values.float().numpy())
