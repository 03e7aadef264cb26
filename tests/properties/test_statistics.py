"""Both kernels, and the reducer around them, against numpy float64 on the same values."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from probe_nb.stats.kernels import eager, host
from tests import oracle
from tests.measuring import (
    UNKNOWN_TO_NPUS,
    by_compiled,
    by_eager,
    by_host,
    by_npu,
    by_reducer,
    faults,
)
from tests.strategies import COMPLEX, EIGHT_BITS, FLOATS, SIGNED, UNSIGNED, tensors

WAYS = pytest.mark.parametrize("measure", [by_host, by_compiled, by_eager, by_npu, by_reducer])
PATIENT = settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow])


def many(dtypes):
    return pytest.mark.parametrize(
        "dtype", dtypes, ids=lambda dtype: str(dtype).removeprefix("torch.")
    )


@WAYS
@PATIENT
@given(t=tensors((*FLOATS, *EIGHT_BITS)))
def test_floats_of_any_type_fill_and_layout_have_the_numbers_numpy_gives_them(measure, t):
    if t.numel():
        assert not faults(measure, t)


@WAYS
@PATIENT
@given(t=tensors((*SIGNED, *UNSIGNED, torch.bool)))
def test_integers_and_masks_have_the_numbers_numpy_gives_them(measure, t):
    if t.numel():
        assert not faults(measure, t)


@pytest.mark.parametrize("measure", [by_host, by_eager, by_reducer])
@PATIENT
@given(t=tensors(COMPLEX))
def test_complex_tensors_have_the_numbers_of_their_modulus(measure, t):
    if t.numel():
        assert not faults(measure, t)


@WAYS
@PATIENT
@given(t=tensors())
def test_counts_and_bins_add_up_to_the_number_of_elements(measure, t):
    if not t.numel() or (measure is by_npu and t.dtype in UNKNOWN_TO_NPUS):
        return
    if (measured := measure(t)) is not None:
        _, counts, bins = measured
        outside = ("nan_count", "posinf_count", "neginf_count", "zero_count")
        assert sum(bins.values()) + sum(counts[name] for name in outside) == t.numel()


@many((torch.float32, torch.float16, torch.bfloat16))
def test_the_compiled_loops_serve_the_common_types_in_any_dense_layout(dtype):
    t = torch.randn(4, 5, 6).to(dtype)
    for dense in (t, t.permute(2, 0, 1), t[1:], t[0, 0].expand(7, 6)):
        assert by_compiled(dense) is not None
        assert not faults(by_compiled, dense)


@WAYS
@many(EIGHT_BITS)
def test_every_byte_of_an_eight_bit_type_is_read_as_its_value(measure, dtype):
    for byte in range(256):
        t = torch.tensor([byte], dtype=torch.uint8).view(dtype)
        assert not faults(measure, t), f"byte {byte:#x}"


@WAYS
@many((torch.float16, torch.bfloat16))
def test_every_value_of_a_half_type_is_counted_in_its_bin(measure, dtype):
    t = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    assert not faults(measure, t)


def _spread(n: int, offset: float, scale: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n)
    return offset + scale * torch.randn(n, generator=generator)


HARD = {
    "a small spread on a large mean": lambda: _spread(10**6, 1e4, 1e-2),
    "a small spread on a large mean, sorted": lambda: _spread(10**6, 1e4, 1e-2).sort().values,
    "four million normal numbers": lambda: _spread(4 * 10**6, 0.0, 1.0),
    "two opposite halves": lambda: torch.tensor([1e3, -1e3]).repeat_interleave(500_000),
    "an outlier first": lambda: torch.cat([torch.tensor([1e6]), _spread(999_999, 0.0, 1e-2)]),
    "a heavy tail": lambda: _spread(10**6, 0.0, 1.0) / _spread(10**6 + 1, 0.0, 1.0)[1:],
    "1e-20": lambda: _spread(10**6, 0.0, 1e-20),
    "1e-25": lambda: _spread(10**6, 0.0, 1e-25),
    "1e25": lambda: _spread(10**6, 0.0, 1e25),
    "subnormal": lambda: _spread(10**5, 0.0, 1e-42),
    "near the end of float32": lambda: _spread(10**5, 0.0, 1.0).clamp(-1, 1) * 3.4e38,
    "all zero": lambda: torch.zeros(200_000),
    "one neighbour among equals": lambda: torch.full((70_000,), 0.1).index_fill(
        0, torch.tensor([69_999]), math.nextafter(0.1, 1) + 1e-8
    ),
    "alternating infinities": lambda: torch.tensor([math.inf, -math.inf, math.nan]).repeat(50_000),
    "float64 near its end": lambda: _spread(10**5, 0.0, 1.0).double().clamp(-1, 1) * 1.79e308,
    "float64 subnormal": lambda: _spread(10**5, 0.0, 1.0).double() * 1e-310,
    "float64 with a tiny spread": lambda: 1.0 + 1e-12 * _spread(10**5, 0.0, 1.0).double(),
    "int32 with a large offset": lambda: 2**30 + torch.arange(1000, dtype=torch.int32) % 3,
    "int64 with a large offset": lambda: 2**52 + torch.arange(1000) % 3,
    "ends of int64": lambda: torch.tensor([2**63 - 1, -(2**63), 0, 1, -1]),
    "ends of uint64": lambda: torch.tensor([2**64 - 1, 0, 1, 2**63], dtype=torch.uint64),
    "the lowest int8": lambda: torch.tensor([-128], dtype=torch.int8),
}


@WAYS
@pytest.mark.parametrize("case", HARD)
def test_hard_values_keep_their_digits(measure, case):
    assert not faults(measure, HARD[case]())


@WAYS
@pytest.mark.parametrize("exponent", [*range(-149, 128, 13), 50, 56, 58, 59, -29, -30, -31, 127])
def test_no_magnitude_overflows_or_vanishes_on_the_way(measure, exponent):
    pair = torch.tensor([1.96875, -1.96875], dtype=torch.float64) * 2.0**exponent
    assert not faults(measure, pair.to(torch.float32).repeat(host.PIECE // 2))


@WAYS
@many((torch.float32, torch.bfloat16, torch.float64))
@pytest.mark.parametrize("value", [0.1, -3.0, 1e-30, 7e-3])
def test_a_constant_has_no_spread_however_many_pieces_it_is_read_in(measure, dtype, value):
    if measure is by_npu and dtype == torch.float64:
        dtype = torch.float16  # an NPU holds no float64
        value = max(value, 1e-3)
    statistics, _, _ = measure(torch.full((eager.PIECE + 70_001,), value, dtype=dtype))
    exact = torch.tensor(value, dtype=dtype).item()
    assert statistics["std"] == 0.0
    assert statistics["mean"] == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize("measure", [by_host, by_eager, by_reducer])
@many((torch.float32, torch.bool))
def test_more_than_sixteen_million_elements_are_all_counted(measure, dtype):
    n = 2**24 + 1  # one more than float32 can count
    statistics, counts, bins = measure(torch.ones(n, dtype=dtype))
    assert bins == {(1, 0): n}
    assert counts["zero_count"] == 0
    assert statistics["mean"] == 1.0
    assert statistics["l2"] == pytest.approx(math.sqrt(n), rel=1e-5)


@WAYS
@pytest.mark.parametrize("piece", [host.PIECE, eager.PIECE])
@pytest.mark.parametrize("around", [-1, 0, 1])
def test_the_border_of_a_piece_loses_nothing(measure, piece, around):
    t = _spread(piece + around, 1.0, 1.0)
    t[0], t[-1] = 1e9, -math.inf
    assert not faults(measure, t)


@WAYS
@pytest.mark.parametrize("around", [-1, 0, 1])
def test_a_large_strided_view_loses_nothing_at_the_border_of_a_piece(measure, around):
    t = _spread(6 * (host.PIECE + around), 0.0, 1.0).reshape(3, -1)[:, ::2]
    assert not t.is_contiguous()
    assert not faults(measure, t)


@WAYS
def test_a_number_repeated_by_strides_counts_as_often_as_it_is_repeated(measure):
    gradient = torch.tensor([1.5, 0.0, math.nan, -3.0]).unsqueeze(1).expand(4, 250)
    assert not faults(measure, gradient)


@WAYS
def test_the_expanded_gradient_of_a_sum_costs_no_memory(measure):
    n = 10**6
    statistics, counts, bins = measure(torch.tensor(-3.0).expand(n, n))
    assert bins == {(-1, 1): n * n}
    assert (statistics["min"], statistics["max"], statistics["mean"]) == (-3.0, -3.0, -3.0)
    assert (statistics["std"], statistics["l2"]) == (0.0, 3.0 * n)
    assert not any(counts.values())


@WAYS
def test_zeros_have_an_absolute_maximum_without_a_sign(measure):
    statistics, _, _ = measure(torch.tensor([0.0, -0.0]))
    assert math.copysign(1.0, statistics["absmax"]) == 1.0


@pytest.mark.parametrize("measure", [by_host, by_compiled, by_reducer])
@many((torch.float32, torch.float64, torch.bfloat16))
def test_zeros_and_subnormals_are_told_apart_while_the_cpu_flushes_them(measure, dtype):
    tiny = torch.finfo(dtype).tiny / 4
    t = torch.tensor([tiny, 0.0, -0.0, -tiny, 1.0], dtype=dtype)
    want = oracle.expected(t)
    assert torch.set_flush_denormal(True)
    try:
        _, counts, bins = measure(t)
    finally:
        torch.set_flush_denormal(False)
    assert (counts["zero_count"], bins) == (2, want.bins)
    if dtype != torch.float64:
        assert counts["subnormal_count"] == 2
