"""From the tensor a module is fed to the row in `run.df`, for every kind of tensor."""

from __future__ import annotations

import gc
import math
import weakref

import pandas as pd
import pytest
import torch
from torch import nn

import probe_nb as probe
from tests import oracle

NAN, INF = math.nan, math.inf


def watched(*tensors: torch.Tensor) -> probe.Run:
    """Feed tensors to a module, one step each."""
    model = nn.Flatten(0)
    with probe.watch(model, roles="input") as run:
        for t in tensors:
            model(t)
            run.step()
    return run


CASES = {
    "one NaN": torch.tensor([1.0, NAN, 5.0]),
    "one infinity": torch.tensor([1.0, INF]),
    "nothing but NaN": torch.tensor([NAN, NAN]),
    "a range that float32 cannot subtract": torch.tensor([2.77e38, -1.78e38]),
    "equal values": torch.tensor([3.0, 3.0, 3.0]),
    "token ids": torch.tensor([[1, 2]]),
    "a mask": torch.tensor([True, False]),
    "the lowest int8": torch.tensor([-128], dtype=torch.int8),
    "bfloat16": torch.ones(4, dtype=torch.bfloat16),
    "a loss": torch.tensor(3.0),
    "a complex number and a NaN": torch.tensor([3 + 4j, complex(NAN, 0)]),
    "saturated float8": torch.tensor([1.0, 2.0, 448.0]).to(torch.float8_e4m3fn),
    "overflown float8": torch.tensor([1.0, 2.0, INF]).to(torch.float8_e5m2),
    "float64 extremes": torch.tensor([1.7e308, -1.7e308, 5e-324], dtype=torch.float64),
    "subnormals": torch.tensor([1e-40, -1e-45, 0.0]),
    "a repeated number": torch.tensor(2.0).expand(40, 30),
    "large unsigned numbers": torch.tensor([2**64 - 1, 0], dtype=torch.uint64),
}


@pytest.mark.parametrize("case", CASES)
def test_the_row_of_a_tensor_says_what_numpy_says(case):
    t = CASES[case]
    run = watched(t)
    want = oracle.expected(t)
    ((_, row),) = run.df.iterrows()
    assert row["numel"] == t.numel()
    assert row["dtype"] == str(t.dtype).removeprefix("torch.")
    assert row["shape"] == tuple(t.shape)
    assert row["status"] == ("ok" if want.statistics else "no_finite")
    statistics = {n: NAN if row[n] is pd.NA else row[n] for n in oracle.STATISTICS}
    histogram = run.columns.histogram(0)
    bins = {(sign, exponent): count for sign, exponent, count in histogram.signed()}
    assert not oracle.faults(want, statistics, {n: row[n] for n in want.counts}, bins)
    assert histogram.total == t.numel()


def test_an_empty_tensor_has_no_statistics_and_counts_of_zero():
    ((_, row),) = watched(torch.empty(0, 4)).df.iterrows()
    assert (row["status"], row["numel"], row["shape"]) == ("empty", 0, (0, 4))
    assert all(row[name] is pd.NA for name in oracle.STATISTICS)
    assert all(row[name] == 0 for name in ("nan_count", "posinf_count", "zero_count"))


def test_a_meta_tensor_has_a_dtype_a_shape_and_no_number():
    ((_, row),) = watched(torch.empty(3, 2, device="meta")).df.iterrows()
    assert (row["status"], row["device"], row["shape"]) == ("meta", "meta", (3, 2))
    numbers = (*oracle.STATISTICS, "nan_count", "zero_count")
    assert all(row[name] is pd.NA for name in numbers)


def test_a_quantised_tensor_says_so_in_its_dtype():
    t = torch.quantize_per_tensor(torch.tensor([1.0, -2.0]), 0.5, 0, torch.qint8)
    ((_, row),) = watched(t).df.iterrows()
    assert (row["dtype"], row["status"]) == ("qint8", "ok")
    assert (row["min"], row["max"]) == (-2.0, 1.0)


def test_no_tensor_outlives_the_call_that_saw_it():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    kept = []
    model[0].register_forward_hook(lambda m, a, out: kept.append(weakref.ref(out)))
    with probe.watch(model) as run:
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        del loss
        gc.collect()
        assert [ref() for ref in kept] == [None]
        run.step()
    assert [ref() for ref in kept] == [None]


def test_numbers_come_back_in_the_rows_they_belong_to_whatever_the_order_of_kinds():
    tensors = [
        torch.full((3,), 1.0),
        torch.empty(0),
        torch.tensor([NAN]),
        torch.full((2,), 4),
        torch.empty(2, device="meta"),
        torch.full((5,), 6.0, dtype=torch.float64),
    ]
    run = watched(*tensors)
    maxima = [None if v is pd.NA else float(v) for v in run.df["max"]]
    assert maxima == [1.0, None, None, 4.0, None, 6.0]
    assert run.df["status"].tolist() == ["ok", "empty", "no_finite", "ok", "meta", "ok"]
    found = [run.columns.histogram(row) for row in range(6)]
    signed = [None if h is None else h.signed() for h in found]
    assert signed == [[(1, 0, 3)], [], [], [(1, 2, 2)], None, [(1, 2, 5)]]


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_ragged_tensor_makes_a_row_of_its_real_elements(layout):
    class Hand(nn.Module):
        def forward(self, x):
            return x

    model = Hand()
    parts = [torch.tensor([[1.0, 0.0, 3.0], [4.0, 5.0, 6.0]]), torch.full((1, 3), -8.0)]
    ragged = torch.nested.nested_tensor(parts, layout=layout)
    with probe.watch(model, roles="input") as run:
        model(ragged)
    ((_, row),) = run.df.iterrows()
    assert row["status"] == "ok"
    assert (row["min"], row["max"], row["zero_count"]) == (-8.0, 6.0, 1)
    assert run.columns.histogram(0).total == 9
