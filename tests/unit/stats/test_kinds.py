"""Tensors that are not plain: what is measured of them, or why nothing is."""

from __future__ import annotations

import math

import pytest
import torch
from torch._subclasses import FakeTensorMode

from probe_nb.stats.summary import Reducer
from tests import oracle
from tests.measuring import by_reducer

DENSE = torch.tensor([[1.0, 0.0, 0.0, 7.0], [0.0, -2.0, 0.0, 0.0], [math.nan, 0.0, 0.5, 0.0]])


@pytest.fixture(autouse=True)
def checked_indices():
    with torch.sparse.check_sparse_tensor_invariants():
        yield


def faults(t: torch.Tensor, dense: torch.Tensor) -> list[str]:
    return oracle.faults(oracle.expected(dense), *by_reducer(t))


def status(t: torch.Tensor) -> str:
    reducer = Reducer()
    seen = reducer.see(t, once=True)
    assert seen.result == -1
    assert not seen.reused
    results, errors = reducer.drain()
    assert results.statistics.shape == (0, 6)
    assert not errors
    return seen.status


# -- complex -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_complex_number_is_measured_by_its_modulus_and_is_nan_if_a_part_is(dtype):
    nan = math.nan
    t = torch.tensor(
        [3 + 4j, complex(nan, 1), complex(1, nan), complex(math.inf, nan)], dtype=dtype
    )
    statistics, counts, bins = by_reducer(t)
    assert (statistics["max"], statistics["l2"]) == (5.0, 5.0)
    assert (counts["nan_count"], counts["posinf_count"]) == (3, 0)
    assert bins == {(1, 2): 1}


def test_half_precision_complex_numbers_are_measured_too():
    t = torch.view_as_complex(torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float16))
    statistics, counts, _ = by_reducer(t)
    assert (statistics["max"], counts["zero_count"]) == (5.0, 1)


# -- quantised -----------------------------------------------------------------------------------


def test_a_quantised_tensor_is_measured_as_the_values_it_stands_for():
    t = torch.quantize_per_tensor(torch.tensor([1.0, 2.0, -3.0, 0.0]), 0.5, 2, torch.qint8)
    assert not faults(t, torch.tensor([1.0, 2.0, -3.0, 0.0]))


def test_a_tensor_quantised_per_channel_is_measured_as_the_values_it_stands_for():
    scales, zero_points = torch.tensor([0.5, 0.25]), torch.tensor([0, 3])
    dense = torch.tensor([[1.0, -4.5], [0.25, 2.0]])
    t = torch.quantize_per_channel(dense, scales, zero_points, 0, torch.qint8)
    assert not faults(t, dense)


# -- sparse ----------------------------------------------------------------------------------------


SPARSE = {
    "coo": lambda d: d.to_sparse(),
    "csr": lambda d: d.to_sparse_csr(),
    "csc": lambda d: d.to_sparse_csc(),
    "bsr": lambda d: d.to_sparse_bsr((1, 2)),
    "bsc": lambda d: d.to_sparse_bsc((3, 2)),
    "coo of one row": lambda d: d[:1].to_sparse(),
    "hybrid": lambda d: d.to_sparse(1),
}


@pytest.mark.parametrize("layout", SPARSE)
def test_a_sparse_tensor_is_measured_with_the_zeros_it_does_not_store(layout):
    t = SPARSE[layout](DENSE)
    assert not faults(t, t.to_dense())


def test_doubled_entries_of_a_sparse_tensor_are_one_element():
    t = torch.sparse_coo_tensor([[0, 0, 1], [2, 2, 0]], [1.0, 2.0, -5.0], (3, 4))
    assert not t.is_coalesced()
    assert not faults(t, t.to_dense())
    assert not t.is_coalesced()


def test_a_batch_of_sparse_matrices_is_measured_whole():
    assert not faults(torch.stack([DENSE, DENSE]).to_sparse_csr(), torch.stack([DENSE, DENSE]))


@pytest.mark.parametrize("make", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
def test_a_sparse_tensor_that_stores_nothing_is_all_zeros(make):
    assert not faults(make(torch.zeros(3, 4)), torch.zeros(3, 4))


def test_a_huge_sparse_tensor_is_never_made_dense():
    t = torch.sparse_coo_tensor([[3], [5]], [2.0], (10**9, 10**9))
    statistics, counts, bins = by_reducer(t)
    assert counts["zero_count"] == 10**18 - 1
    assert (statistics["max"], statistics["l2"], bins) == (2.0, 2.0, {(1, 1): 1})


def test_a_sparse_integer_tensor_is_measured_in_float():
    t = torch.sparse_coo_tensor([[0, 2]], torch.tensor([3, -4]), (5,))
    assert not faults(t, t.to_dense())


# -- ragged ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_ragged_tensor_is_measured_by_its_real_elements(layout):
    parts = [torch.arange(6.0).reshape(2, 3), torch.full((1, 3), -5.0)]
    t = torch.nested.nested_tensor(parts, layout=layout)
    assert not faults(t, torch.cat([p.reshape(-1) for p in parts]))


def test_a_ragged_tensor_with_holes_is_measured_without_what_lies_in_them():
    base = torch.arange(24.0).reshape(2, 4, 3)
    starts, lengths = torch.tensor([0, 1]), torch.tensor([2, 1])
    t = torch.nested.narrow(base, 1, starts, lengths, layout=torch.jagged)
    assert not faults(t, torch.cat([base[0, 0:2].reshape(-1), base[1, 1:2].reshape(-1)]))


def test_a_ragged_tensor_of_empty_parts_is_empty():
    assert status(torch.nested.nested_tensor([torch.empty(0, 3), torch.empty(0, 3)])) == "empty"


# -- nothing to measure ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex64])
def test_a_tensor_without_elements_is_empty(shape, dtype):
    assert status(torch.empty(shape, dtype=dtype)) == "empty"


def test_meta_and_fake_tensors_have_no_numbers():
    with FakeTensorMode():
        fake = torch.ones(3)
    assert status(torch.ones(3, device="meta")) == "meta"
    assert status(fake) == "meta"
    assert status(torch.nn.UninitializedParameter()) == "meta"


def test_a_layout_that_cannot_be_read_is_unsupported():
    assert status(torch.ones(3, 4).to_mkldnn()) == "unsupported"


@pytest.mark.parametrize("dtype", [torch.float4_e2m1fn_x2, torch.bits8, torch.uint4])
def test_a_dtype_without_arithmetic_is_unsupported(dtype):
    assert status(torch.zeros(4, dtype=torch.uint8).view(dtype)) == "unsupported"


def test_a_tensor_without_a_finite_element_has_counts_and_no_statistics():
    statistics, counts, bins = by_reducer(torch.tensor([math.nan, math.inf, -math.inf, math.inf]))
    assert all(math.isnan(value) for value in statistics.values())
    assert (counts["nan_count"], counts["posinf_count"], counts["neginf_count"]) == (1, 2, 1)
    assert bins == {}


def test_one_element_has_a_spread_of_zero():
    statistics, _, _ = by_reducer(torch.tensor(3.0))
    assert statistics["std"] == 0.0


# -- subclasses ------------------------------------------------------------------------------------------


class Plain(torch.Tensor):
    """A subclass that changes nothing."""


class Hostile(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *args, **kwargs):
        raise AssertionError("an operator of ours came past the user's class")


@pytest.mark.parametrize("kind", [Plain, Hostile, torch.nn.Parameter, torch.nn.Buffer])
def test_subclasses_are_measured_without_their_overrides(kind):
    raw = torch.tensor([1.0, -4.0])
    t = raw.as_subclass(kind) if kind in (Plain, Hostile) else kind(raw)
    assert not faults(t, raw)


def test_saturation_of_a_type_without_infinities_is_counted():
    t = torch.tensor([1.0, 2.0, 448.0]).to(torch.float8_e4m3fn)
    _, counts, _ = by_reducer(t)
    assert (counts["at_max_count"], counts["posinf_count"]) == (1, 0)
    wide = torch.tensor([1.0, 2.0, math.inf]).to(torch.float8_e5m2)
    _, counts, _ = by_reducer(wide)
    assert (counts["at_max_count"], counts["posinf_count"]) == (0, 1)
