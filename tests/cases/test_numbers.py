"""Values and types that naive statistics raise on, hide, or answer wrongly."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import nn

import probe_nb as probe
from tests import oracle
from tests.cases.watching import through, watched
from tests.models import no_faults

NAN, INF = math.nan, math.inf

HISTOGRAMS = {
    "a NaN": ([1, NAN, 5], [(1, 0, 1), (1, 2, 1)], (1, 0, 0)),
    "an infinity": ([1, INF], [(1, 0, 1)], (0, 1, 0)),
    "minus infinity": ([1, -INF], [(1, 0, 1)], (0, 0, 1)),
    "NaN alone": ([NAN, NAN], [], (2, 0, 0)),
    "a range that overflows": ([2.77e38, -1.78e38], [(-1, 127, 1), (1, 127, 1)], (0, 0, 0)),
    "a constant": ([3, 3, 3], [(1, 1, 3)], (0, 0, 0)),
    "zeros": ([0.0, -0.0], [], (0, 0, 0)),
    "the smallest": ([1e-45, -1e-45], [(-1, -127, 1), (1, -127, 1)], (0, 0, 0)),
    "everything": ([NAN, INF, -INF, 0, 1e-30, -7], [(-1, 2, 1), (1, -100, 1)], (1, 1, 1)),
}


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_a_histogram_shows_every_element_once_and_hides_no_bad_one(name):
    values, signed, (nan, posinf, neginf) = HISTOGRAMS[name]
    run = through(torch.tensor(values, dtype=torch.float32))
    histogram = run.histogram("(root)")
    assert histogram.signed() == signed
    (row,) = run.df.to_dict("records")
    assert (row["nan_count"], row["posinf_count"], row["neginf_count"]) == (nan, posinf, neginf)
    shown = sum(count for *_, count in histogram.signed())
    outside = histogram.zero + histogram.nan + histogram.posinf + histogram.neginf
    assert shown + outside == row["numel"] == len(values)
    assert (histogram.nan, histogram.posinf, histogram.neginf) == (nan, posinf, neginf)


def test_an_empty_tensor_has_a_histogram_of_nothing():
    run = through(torch.empty(0))
    assert run.df["status"].tolist() == ["empty"]
    assert run.histogram("(root)").total == 0


def quantised():
    return torch.quantize_per_tensor(torch.tensor([0.3, -1.2, 0.0, 12.0]), 0.1, 0, torch.qint8)


TYPES = {
    "token ids": (torch.tensor([[1, 2]]), {"mean": 1.5, "min": 1, "max": 2}),
    "a mask": (torch.tensor([True, False]), {"mean": 0.5, "min": 0, "max": 1}),
    "int8": (torch.tensor([-128], dtype=torch.int8), {"absmax": 128, "min": -128, "l2": 128}),
    "int16": (torch.tensor([-32768], dtype=torch.int16), {"absmax": 32768}),
    "int32": (torch.tensor([-(2**31)], dtype=torch.int32), {"absmax": 2.0**31}),
    "int64": (torch.tensor([-(2**63)]), {"absmax": 2.0**63, "mean": -(2.0**63)}),
    "uint8": (torch.tensor([255, 1], dtype=torch.uint8), {"max": 255, "mean": 128}),
    "bfloat16": (torch.ones(4, dtype=torch.bfloat16), {"mean": 1, "l2": 2, "std": 0}),
    "float16": (torch.full((4,), 300.0, dtype=torch.float16), {"l2": 600, "std": 0}),
    "qint8": (quantised(), {"min": -1.2, "max": 12.0, "mean": 2.775}),
}


@pytest.mark.parametrize("name", TYPES)
def test_a_type_without_statistics_of_its_own_is_measured_as_numbers(name):
    t, expected = TYPES[name]
    (row,) = through(t).df.to_dict("records")
    assert row["status"] == "ok"
    for stat, value in expected.items():
        assert row[stat] == pytest.approx(value, rel=1e-6), stat
    assert row["dtype"] == str(t.dtype).removeprefix("torch.")


@pytest.mark.parametrize("name", TYPES)
def test_a_type_without_statistics_of_its_own_aborts_no_forward(name):
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.layer = nn.Identity(), nn.Linear(2, 2)

        def forward(self, t, x):
            self.inside(t)
            return self.layer(x)

    t, _ = TYPES[name]
    model, x = Around(), torch.ones(1, 2)
    expected = model(x, x)
    with no_faults(), probe.watch(model, live=False) as run:
        assert torch.equal(model(t, x), expected)
    assert set(run.df["status"]) == {"ok"}


def test_a_tensor_of_more_elements_than_quantile_takes_is_counted_exactly():
    t = torch.zeros(2**24 + 1, dtype=torch.bfloat16)
    t[-1] = 4
    run = through(t)
    (row,) = run.df.to_dict("records")
    assert (row["numel"], row["zero_count"], row["max"], row["l2"]) == (2**24 + 1, 2**24, 4, 4)
    assert run.histogram("(root)").signed() == [(1, 2, 1)]


DEGENERATE = {
    "a loss": torch.tensor(3.0),
    "one element": torch.tensor([3.0]),
    "one element of a batch": torch.full((1, 1, 1), 3.0),
    "one integer": torch.tensor([3]),
    "half": torch.tensor([3.0]).half(),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_one_element_has_no_spread_and_is_no_alarm(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = through(DEGENERATE[name])
    (row,) = run.df.to_dict("records")
    assert (row["status"], row["mean"], row["std"], row["nan_count"]) == ("ok", 3.0, 0.0, 0)
    assert repr(run).startswith("✓")


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.cfloat])
def test_an_expert_without_tokens_is_empty_and_no_alarm(shape, dtype):
    run = through(torch.empty(shape, dtype=dtype))
    (row,) = run.frame().to_dict("records")
    assert (row["status"], row["numel"], row["shape"]) == ("empty", 0, shape)
    assert run.df[list(oracle.STATISTICS)].isna().all(axis=None)
    assert "Nothing was measured" in repr(run).splitlines()[0]


def test_an_expert_without_tokens_has_gradients_that_are_empty_too():
    class Routes(nn.Module):
        """Sends every row to the first of two experts."""

        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))

        def forward(self, x):
            return torch.cat([self.experts[0](x), self.experts[1](x[:0])])

    run = watched(Routes(), torch.ones(3, 2, requires_grad=True))
    idle = run.frame(module="experts.1")
    flowing = idle[idle["role"].isin(["input", "output", "grad_output", "grad_input"])]
    assert set(flowing["role"]) == {"input", "output", "grad_output", "grad_input"}
    assert set(flowing["status"]) == {"empty"}
    assert idle[idle["role"] == "param_grad"]["absmax"].tolist() == [0.0, 0.0]
    assert repr(run).startswith("✓")


def test_complex_numbers_are_measured_by_their_modulus():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = through(torch.tensor([3 + 4j, complex("nan"), complex(NAN, 1), complex(1, INF)]))
    (row,) = run.df.to_dict("records")
    assert row["dtype"] == "complex64"
    assert (row["max"], row["l2"], row["absmax"]) == (5.0, 5.0, 5.0)
    assert (row["nan_count"], row["posinf_count"], row["numel"]) == (2, 1, 4)


@pytest.mark.parametrize("dtype", [torch.cfloat, torch.cdouble])
def test_a_complex_layer_trains_with_gradients_of_its_own(dtype):
    torch.manual_seed(0)
    model = nn.Linear(3, 3, dtype=dtype)
    x = torch.randn(2, 3, dtype=dtype, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = watched(model, x, loss=lambda y: y.abs().sum())
    assert set(run.df["status"]) == {"ok"}
    for role, leaf, t in [
        ("param_grad", "weight", model.weight.grad),
        ("param_grad", "bias", model.bias.grad),
        ("grad_input", "0", x.grad),
    ]:
        found = run.frame(role=role, leaf=leaf)["l2"].item()
        assert found == pytest.approx(torch.linalg.vector_norm(t).item(), rel=1e-5)
    assert run.frame(role="grad_output")["absmax"].item() == pytest.approx(1.0)


def test_a_transform_to_frequencies_is_measured():
    class Spectrum(nn.Module):
        def forward(self, x):
            return torch.fft.rfft(x)

    run = watched(nn.Sequential(Spectrum()), torch.ones(8, requires_grad=True))
    (row,) = run.frame(module="0", role="output").to_dict("records")
    assert (row["max"], row["zero_count"], row["numel"]) == (8.0, 4, 5)
    assert row["l2"] == pytest.approx(8.0)


FLOAT8 = {
    torch.float8_e4m3fn: (448.0, 0, 1, "saturated"),
    torch.float8_e5m2: (2.0, 1, 0, "+Inf"),
}


@pytest.mark.parametrize("dtype", FLOAT8)
def test_an_overflow_in_float8_is_seen_with_infinities_or_without(dtype):
    most, infinities, clipped, word = FLOAT8[dtype]
    run = through(torch.tensor([1.0, 2.0, 1e6]).to(dtype))
    (row,) = run.df.to_dict("records")
    assert (row["min"], row["max"], row["posinf_count"]) == (1.0, most, infinities)
    assert row["at_max_count"] == clipped
    assert row["dtype"] == str(dtype).removeprefix("torch.")
    assert word in repr(run)


def test_masks_are_counted_by_the_sign_of_their_infinities():
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.softmax = nn.Softmax(-1)

        def forward(self, scores, mask):
            return self.softmax(scores.masked_fill(mask, -INF))

    causal = torch.ones(3, 3, dtype=torch.bool).triu(1)
    model = Attends()
    with no_faults(), probe.watch(model, live=False) as run:
        assert model(torch.zeros(3, 3), causal).isfinite().all()
        model(torch.zeros(1, 3), torch.ones(1, 3, dtype=torch.bool))
    inputs = run.frame(module="softmax", role="input")
    outputs = run.frame(module="softmax", role="output")
    assert inputs["neginf_count"].tolist() == [3, 3]
    assert inputs["posinf_count"].tolist() == inputs["nan_count"].tolist() == [0, 0]
    assert outputs["nan_count"].tolist() == [0, 3]
    assert outputs["status"].tolist() == ["ok", "no_finite"]


def test_two_masks_of_the_lowest_number_add_up_to_minus_infinity():
    low = torch.tensor(torch.finfo(torch.bfloat16).min, dtype=torch.bfloat16)
    run = through(low, low * 2)
    assert run.df["at_max_count"].tolist() == [1, 0]
    assert run.df["neginf_count"].tolist() == [0, 1]
    assert run.df["posinf_count"].tolist() == [0, 0]
    assert run.df["min"].tolist()[0] == -3.3895313892515355e38


def test_a_row_that_is_masked_whole_is_the_first_fault_and_a_causal_mask_is_none():
    softmax = nn.Softmax(-1)
    causal = torch.zeros(3, 3).masked_fill(torch.ones(3, 3, dtype=torch.bool).triu(1), -INF)
    with probe.watch(softmax, live=False) as run:
        softmax(causal)
    assert run.first_nonfinite() is None
    with probe.watch(softmax, live=False) as run:
        softmax(causal)
        softmax(torch.full((1, 3), -INF))
    born = run.first_nonfinite()
    assert (born.phase, born.step, born.kind) == ("forward", 1, "NaN")


def test_a_where_whose_other_branch_is_not_finite_is_born_in_the_parents_backward():
    """The forward is finite; 0 * exp(100)' is NaN between the two layers."""

    class Switch(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(1, 1, bias=False), nn.Linear(1, 1)
            nn.init.constant_(self.first.weight, 100.0)

        def forward(self, x):
            hidden = self.first(x)
            return self.last(torch.where(hidden <= 0, torch.exp(hidden), 1 + hidden))

    model = Switch()
    with probe.watch(model, live=False) as run:
        model(torch.ones(1, 1, requires_grad=True)).sum().backward()
    assert run.frame(direction="forward")[["nan_count", "posinf_count"]].to_numpy().sum() == 0
    born = run.first_nonfinite()
    assert (born.phase, born.module, born.between) == ("backward", "", ("last", "first"))
    assert {("first", "grad_input"), ("first", "param_grad")} <= set(
        zip(born.after["module"], born.after["role"], strict=True)
    )


def test_one_element_and_none_are_no_alarm():
    layer = nn.Identity()
    with probe.watch(layer, live=False) as run:
        for x in (torch.tensor(3.0), torch.tensor([3.0]), torch.empty(0, 4)):
            layer(x)
    assert run.first_nonfinite() is None
    assert run.findings().empty
