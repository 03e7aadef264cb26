"""The truth is what numpy gives in float64, and errors are measured against it as said."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.unit.replay.replaying import called, error, steps, watched, wide


def linear(seed=0, size=64):
    torch.manual_seed(seed)
    return nn.Linear(size, size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_truth_of_a_linear_layer_is_numpys_and_the_error_is_measured_from_it(dtype):
    model = nn.Sequential(linear().to(dtype))
    x = torch.randn(32, 64).to(dtype)
    run, out = called(model, x)
    found = run.replay("0", model)
    truth = wide(x) @ wide(model[0].weight).T + wide(model[0].bias)
    assert found.truth().dtype == torch.float64
    np.testing.assert_allclose(found.truth().numpy(), truth, rtol=1e-13, atol=1e-13)
    row = found.df.iloc[0]
    assert row["error"] == pytest.approx(error(out, truth), rel=1e-9)
    worst = np.abs(wide(out) - truth).max() / np.abs(truth).max()
    assert row["worst"] == pytest.approx(worst, rel=1e-9)
    assert (row["run"], row["role"], row["leaf"], row["device"]) == ("run", "output", "0", "cpu")
    assert row["dtype"] == str(dtype).removeprefix("torch.")
    assert row["shape"] == (32, 64)
    assert row["ratio"] == pytest.approx(
        max(row["error"] / row["bound"], row["worst"] / row["worst_bound"])
    )
    assert found.verdict == row["verdict"] == "within"


class Norm(nn.Module):
    """As in Llama: it goes to float32 by itself, whatever it is given."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.scale = torch.full((size,), 0.1)  # no buffer: `to` does not move it

    def forward(self, x):
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        mask = torch.zeros(x.shape[-1], dtype=torch.float32, device=x.device)
        return self.weight * wide.to(x.dtype) * self.scale + mask


def test_what_goes_to_float32_by_itself_is_in_float64_too():
    model = Norm(16)
    x = torch.randn(4, 16) * 3
    run = watched(model, x)
    a = wide(x)
    truth = a / np.sqrt((a**2).mean(-1, keepdims=True) + 1e-6) * np.float64(np.float32(0.1))
    np.testing.assert_allclose(run.replay("(root)", model).truth().numpy(), truth, rtol=1e-14)


class Less(nn.Module):
    def forward(self, x):
        return x - 999.0


@pytest.mark.parametrize(
    ("module", "x", "factor"),
    [
        (Less(), 1000.0, 1000.0),  # x f'(x) / f(x)
        (nn.Identity(), 3.0, 1.0),
        (nn.Tanh(), 0.5, 0.5 * (1 - math.tanh(0.5) ** 2) / math.tanh(0.5)),
    ],
)
def test_the_amplification_is_the_condition_number(module, x, factor):
    model = nn.Sequential(module)
    run = watched(model, torch.tensor([x]))
    found = run.replay("0", model)
    assert found.amplification == pytest.approx(factor, rel=1e-3)
    assert ("differences behind it are to be expected" in repr(found)) == (factor >= 10)


def test_without_broken_numbers_in_the_inputs_nothing_is_amplified():
    model = nn.Embedding(10, 4)
    run = watched(model, torch.tensor([1, 2]))
    found = run.replay("(root)", model)
    assert found.amplification is None
    assert "amplifies" not in repr(found)
    assert found.verdict == "within"
    assert found.df["error"].item() == 0
    assert found.truth().equal(model.weight[[1, 2]].double())


class Half(nn.Linear):
    """Adds up in float16, as a device must not."""

    def forward(self, x):
        return (x.half() @ self.weight.half().T + self.bias.half()).to(x.dtype)


class NoBias(nn.Linear):
    def forward(self, x):
        return F.linear(x, self.weight)


class Turned(nn.Linear):
    def forward(self, x):
        return F.linear(x, self.weight.T, self.bias)


class OneElement(nn.Linear):
    def forward(self, x):
        out = F.linear(x, self.weight, self.bias).clone()
        out[3, 5] += 0.2
        return out


@pytest.mark.parametrize("wrong", [Half, NoBias, Turned, OneElement])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_kernel_is_not_explained_by_rounding(wrong, dtype):
    right = linear().to(dtype)
    faulty = wrong(64, 64).to(dtype)
    faulty.load_state_dict(right.state_dict())
    x = torch.randn(32, 64).to(dtype)
    run, out = called(faulty, x)
    found = run.replay("(root)", right)
    truth = wide(x) @ wide(right.weight).T + wide(right.bias)
    if wrong is Half and dtype == torch.bfloat16:
        assert found.verdict == "within"  # of float16 the units are finer
        return
    assert found.verdict == "above"
    assert found.df["error"].item() == pytest.approx(error(out, truth), rel=1e-6)
    assert "is not explained by rounding" in found.sentence
    assert "on cpu" in found.sentence


def test_one_element_that_is_far_off_counts_where_the_norm_hides_it():
    class Off(nn.Identity):
        def forward(self, x):
            out = x * 1.5
            out[0, 0] += 0.2
            return out

    class On(nn.Identity):
        def forward(self, x):
            return x * 1.5

    x = steps(1000, 100).to(torch.bfloat16)
    run = watched(Off(), x)
    found = run.replay("(root)", On())
    row = found.df.iloc[0]
    assert row["error"] < row["bound"]
    assert row["worst"] > row["worst_bound"]
    assert found.verdict == "above"
    assert "an element is off by" in row["reason"]


HEALTHY = {
    "conv": lambda: (nn.Conv2d(4, 8, 3), torch.randn(2, 4, 12, 12)),
    "layer norm far from 0": lambda: (nn.LayerNorm(64), torch.randn(8, 64) + 100),
    "softmax": lambda: (nn.Softmax(-1), torch.randn(8, 2000) * 5),
    "gelu": lambda: (nn.GELU(), torch.randn(500)),
    "lstm": lambda: (nn.LSTM(8, 16), torch.randn(6, 2, 8)),
    "batch norm": lambda: (nn.BatchNorm1d(16), torch.randn(64, 16)),
    "deep": lambda: (
        nn.Sequential(
            *[nn.Sequential(nn.Linear(32, 32), nn.SiLU(), nn.LayerNorm(32)) for _ in range(8)]
        ),
        torch.randn(16, 32),
    ),
    "attention": lambda: (
        nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval(),
        torch.randn(2, 10, 32),
    ),
    "all of one sign": lambda: (linear(), torch.rand(16, 64)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", HEALTHY)
def test_what_the_cpu_gives_is_within_rounding(name, dtype):
    torch.manual_seed(1)
    model, x = HEALTHY[name]()
    run = watched(model.to(dtype), x.to(dtype))
    found = run.replay("(root)", model)
    assert found.verdict == "within", found
    assert (found.df["ratio"] < 1).all()


def test_a_format_that_may_have_been_used_is_allowed_for():
    right = linear(size=256)

    class Narrow(nn.Linear):
        def forward(self, x):
            def tf32(t):
                bits = t.detach().view(torch.int32)
                return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)

            return F.linear(tf32(x), tf32(self.weight), self.bias)

    model = Narrow(256, 256)
    model.load_state_dict(right.state_dict())
    run = watched(model, torch.randn(16, 256))
    assert run.replay("(root)", right).verdict == "above"
    assert run.replay("(root)", right, tolerance="tf32").verdict == "within"
    assert run.replay("(root)", right, tolerance=1e4).verdict == "within"


def test_what_a_format_cannot_hold_is_no_fault_of_the_device():
    class Large(nn.Module):
        def forward(self, x):
            return x * 60000

    x = torch.tensor([0.5, 1.0, 2.0, -2.0], dtype=torch.float16)
    model = Large()
    found = watched(model, x).replay("(root)", model)
    assert found.verdict == "within"
    assert found.df["reason"].item() == "2 elements beyond the range of float16"

    class Saturated(nn.Module):
        def forward(self, x):
            return (x * 60000).clamp(-65504, 65504)

    assert watched(Saturated(), x).replay("(root)", model).verdict == "within"


def test_nan_where_the_truth_is_a_number_is_a_fault():
    class Bad(nn.ReLU):
        def forward(self, x):
            return x.relu() / (x > 0)

    found = watched(Bad(), steps(4)).replay("(root)", nn.ReLU())
    assert found.verdict == "above"
    assert found.df["mismatched"].item() == 2
    assert "2 elements NaN or Inf where the truth is not" in found.sentence


def test_nan_where_the_truth_is_nan_as_well_is_none():
    model = nn.Softmax(-1)
    found = watched(model, torch.tensor([[math.nan, 1.0], [1.0, 2.0]])).replay("(root)", model)
    assert found.verdict == "within"
    assert found.df["mismatched"].item() == 0


def test_numbers_below_the_smallest_normal_one_may_be_lost():
    class Flushed(nn.Module):
        def forward(self, x):
            out = x * 2.0**-100
            return torch.where(out.abs() < torch.finfo(torch.float32).smallest_normal, 0.0, out)

    class Small(nn.Module):
        def forward(self, x):
            return x * 2.0**-100

    x = torch.tensor([2.0**-30, 2.0**-31])
    assert watched(Flushed(), x).replay("(root)", Small()).verdict == "within"


def test_gradients_are_replayed_where_they_were_kept():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    x = torch.randn(4, 8)
    run = watched(model, x, backward=True)
    found = run.replay("1", model)
    hidden = wide(run.tensor("1"))
    assert found.df["role"].tolist() == ["output", "grad_input"]
    np.testing.assert_allclose(
        found.truth(role="grad_input").numpy(), 1 - np.tanh(hidden) ** 2, rtol=1e-13
    )
    assert found.verdict == "within"


def test_a_wrong_backward_is_seen_though_the_forward_is_right():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.tanh()

        @staticmethod
        def backward(ctx, grad):
            return grad * (1 - ctx.saved_tensors[0] ** 2)  # of x, where tanh(x) is meant

    class Faulty(nn.Module):
        def forward(self, x):
            return Wrong.apply(x)

    x = steps(6).requires_grad_()
    found = watched(Faulty(), x, backward=True).replay("(root)", nn.Tanh())
    assert found.df["verdict"].tolist() == ["within", "above"]
    a = wide(x)
    off = np.linalg.norm((1 - a**2) - (1 - np.tanh(a) ** 2)) / np.linalg.norm(1 - np.tanh(a) ** 2)
    assert found.df["error"].iloc[1] == pytest.approx(off, rel=1e-6)
    assert found.verdict == "above"
    assert "gradient of the input" in found.sentence


def test_complex_numbers_keep_their_phase():
    class Turn(nn.Module):
        def forward(self, x):
            return x * 1j

    class Mirror(nn.Module):
        def forward(self, x):
            return (x * 1j).conj().resolve_conj()

    x = torch.complex(steps(6), steps(6, high=0.5))
    assert watched(Turn(), x).replay("(root)", Turn()).verdict == "within"
    assert watched(Mirror(), x).replay("(root)", Turn()).verdict == "above"


def test_autocast_inside_is_known_from_the_rows_and_allowed_for():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.down(self.up(x)).float()

    torch.manual_seed(0)
    model = nn.Sequential(Block())
    run = watched(model, torch.randn(16, 64))
    assert run.replay("0", model).verdict == "within"
    assert run.replay("0.up", model).verdict == "within"
    assert run.replay("0", model).df["error"].item() > 1e-4
