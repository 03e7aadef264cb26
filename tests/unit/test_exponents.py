"""The exponent histogram as a value, against plain counting."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probe_nb.errors import SelectionError
from probe_nb.exponents import Histogram
from tests import oracle

numbers = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=30)


def counted(values) -> Counter:
    """(sign, exponent) -> count by comparing with powers of two, the slow and obvious way."""
    found: Counter = Counter()
    for value in values:
        if not math.isfinite(value) or value == 0:
            continue
        exponent = 128
        if abs(value) < 2.0**128:
            exponent = next((e for e in range(127, -127, -1) if abs(value) >= 2.0**e), -127)
        found[1 if value > 0 else -1, exponent] += 1
    return found


@given(numbers)
def test_a_bin_holds_what_lies_between_two_powers_of_two(values):
    found = Histogram.of(np.array(values))
    assert {(sign, e): n for sign, e, n in found.signed()} == dict(counted(values))


@given(numbers)
def test_bins_and_counts_add_up_to_the_number_of_values(values):
    assert Histogram.of(np.array(values)).total == len(values)


@given(numbers, numbers)
def test_two_histograms_add_to_that_of_both(one, other):
    together = Histogram.of(np.array(one)) + Histogram.of(np.array(other))
    assert together == Histogram.of(np.array(one + other))


@given(numbers)
def test_signed_bins_rise_from_the_most_negative_value(values):
    triples = Histogram.of(np.array(values)).signed()
    lower_ends = [sign * 2.0**exponent for sign, exponent, _ in triples]
    assert lower_ends == sorted(lower_ends)


@given(numbers)
def test_equal_histograms_hash_alike_and_others_differ(values):
    one, two = (Histogram.of(np.array(values)) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != Histogram.of(np.array([*values, 1.0]))
    assert one != "a histogram"


def test_exponents_join_both_signs():
    exponents, counts = Histogram.of(np.array([1.0, -1.5, 4.0, 0.0, math.nan])).exponents()
    assert exponents.tolist() == [0, 2]
    assert counts.tolist() == [2, 1]


def test_what_no_bin_can_hold_stands_beside():
    h = Histogram.of(np.array([0.0, -0.0, math.nan, math.inf, -math.inf, math.inf]))
    assert (h.zero, h.nan, h.posinf, h.neginf, h.total, len(h.bins)) == (2, 1, 2, 1, 6, 0)


TARGETS = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e4m3fn": torch.float8_e4m3fn,
}


@pytest.mark.parametrize("target", TARGETS)
def test_shares_under_and_over_a_type_are_those_of_its_own_limits(target):
    largest, normal = oracle.LIMITS[TARGETS[target]]
    smallest = normal * torch.finfo(TARGETS[target]).eps
    values = np.array([smallest / 2, smallest, 1.0, -largest, 2 * largest, -8 * largest])
    h = Histogram.of(values)
    in_one_bin = target in ("float32", "bfloat16")  # all that float32 calls subnormal
    assert h.share_under(target) == pytest.approx(0 if in_one_bin else 1 / 6)
    assert h.share_over(target) == pytest.approx(2 / 6)


def test_shares_leave_zeros_and_non_finite_values_out():
    h = Histogram.of(np.array([0.0, math.nan, math.inf, 1e30, 1.0]))
    assert h.share_over("float16") == 0.5
    assert h.share_under("float16") == 0.0


def test_an_empty_histogram_has_no_share():
    assert Histogram.of(np.array([])).share_under("float16") == 0.0
    assert Histogram.of(np.array([])).total == 0


@pytest.mark.parametrize("dtype", ["float16", "torch.float16", torch.float16, np.dtype("float16")])
def test_a_type_is_known_by_its_name_and_by_itself(dtype):
    h = Histogram.of(np.array([1e-30, 1.0, 1.0, 1e30]))
    assert h.share_under(dtype) == 0.25
    assert h.share_over(dtype) == 0.25


@pytest.mark.parametrize("dtype", ["float17", torch.int8, None])
def test_a_type_that_is_not_known_is_refused_in_words(dtype):
    h = Histogram.of(np.array([1.0]))
    for share in (h.share_under, h.share_over):
        with pytest.raises(SelectionError, match=r"is not a type to compare with.*Known: float32"):
            share(dtype)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([], "0 elements"),
        ([0.0], "1 element: 1 zero"),
        ([1.0, 3.0, -0.3], "3 elements: 2 positive, 1 negative, |x| in [2^-2, 2^2)"),
        ([1e-40], "1 element: 1 positive, |x| in (0, 2^-126)"),
        ([-1.0, 1e300], "2 elements: 1 positive, 1 negative, |x| in [2^0, inf)"),
        ([math.nan, math.inf, -math.inf], "3 elements: 1 NaN, 1 +Inf, 1 -Inf"),
    ],
)
def test_a_histogram_is_written_as_counts_and_powers_of_two(values, words):
    assert repr(Histogram.of(np.array(values))) == f"Histogram({words})"
