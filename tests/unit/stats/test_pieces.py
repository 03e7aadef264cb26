"""Any layout as flat pieces, and pieces merged as if they had never been parted."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probe_nb.stats.kernels import host
from probe_nb.stats.layout import compact, pieces
from probe_nb.stats.numbers import Numbers, scaled
from tests import oracle
from tests.measuring import named
from tests.strategies import tensors


@settings(deadline=None)
@given(t=tensors((torch.float32, torch.int64)), limit=st.integers(1, 40))
def test_pieces_hold_every_element_once_and_are_no_longer_than_asked(t, limit):
    if not t.numel():
        return
    found = list(pieces(t, limit))
    assert all(piece.dim() == 1 and 0 < piece.numel() <= limit for piece in found)
    together = torch.cat([piece.resolve_neg() for piece in found])
    exact = t.resolve_neg().contiguous().reshape(-1)
    if t.is_floating_point():  # NaN equals itself by its bits
        together, exact = together.view(torch.int32), exact.view(torch.int32)
    assert torch.equal(together.sort().values, exact.sort().values)


@pytest.mark.parametrize("arrange", [lambda t: t, lambda t: t.permute(2, 0, 1), lambda t: t[1:]])
def test_a_dense_tensor_is_read_in_place_whatever_its_order(arrange):
    t = arrange(torch.randn(4, 5, 6))
    storage = t.untyped_storage().data_ptr()
    assert all(p.untyped_storage().data_ptr() == storage for p in pieces(t, 7))


def test_a_strided_tensor_is_copied_one_piece_at_a_time():
    t = torch.randn(60, 80)[:, ::2]
    mine = t.untyped_storage().data_ptr()
    copies = [p for p in pieces(t, 100) if p.untyped_storage().data_ptr() != mine]
    assert copies
    assert all(p.untyped_storage().nbytes() <= 100 * 4 for p in copies)


@settings(deadline=None)
@given(t=tensors((torch.float32,)), times=st.integers(1, 4))
def test_repeated_dimensions_are_dropped_and_counted(t, times):
    if not t.numel():
        return
    wide = t.unsqueeze(-1).expand(*t.shape, times)
    unit, repeats = compact(wide)
    assert unit.numel() * repeats == wide.numel()
    assert all(s != 0 or n == 1 for s, n in zip(unit.stride(), unit.shape, strict=True))


@settings(deadline=None)
@given(
    parts=st.lists(
        st.lists(st.floats(allow_nan=True), min_size=1, max_size=9), min_size=1, max_size=5
    )
)
def test_merged_pieces_have_the_numbers_of_the_whole(parts):
    tensors = [torch.tensor(part, dtype=torch.float64) for part in parts]
    whole = Numbers()
    for t in tensors:
        whole.merge(host.summarize(t, host.Scratch()))
    assert not oracle.faults(oracle.expected(torch.cat(tensors)), *named(whole))


@settings(deadline=None)
@given(
    part=st.lists(st.floats(allow_nan=True), min_size=1, max_size=9),
    times=st.integers(1, 10**6),
    zeros=st.integers(0, 5),
)
def test_repetitions_and_implicit_zeros_count_as_elements(part, times, zeros):
    t = torch.tensor(part, dtype=torch.float64)
    numbers = host.summarize(t, host.Scratch())
    numbers.repeat(times)
    numbers.add_zeros(zeros)
    _, counts, bins = named(numbers)
    outside = ("nan_count", "posinf_count", "neginf_count", "zero_count")
    assert sum(bins.values()) + sum(counts[name] for name in outside) == len(part) * times + zeros
    few = min(times, 3)
    numbers = host.summarize(t, host.Scratch())
    numbers.repeat(few)
    numbers.add_zeros(zeros)
    spelt_out = torch.cat([t.repeat(few), torch.zeros(zeros, dtype=torch.float64)])
    assert not oracle.faults(oracle.expected(spelt_out), *named(numbers))


@pytest.mark.parametrize(
    ("value", "power", "result"),
    [
        (1.0, 2000, math.inf),
        (-1.0, 2000, -math.inf),
        (0.75, 1024, 0.75 * 2.0**1023 * 2),
        (1, -2000, 0),
    ],
)
def test_scaling_by_a_power_of_two_ends_in_infinity_and_not_in_an_error(value, power, result):
    assert scaled(value, power) == result
