"""Loss scales that overflow, and devices that have no float64 and must not be waited for."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import probe_nb as probe
from probe_nb.stats.kernels import eager
from tests import measuring, oracle
from tests.cases.watching import norm
from tests.models import no_faults

OPTIMIZERS = {
    "SGD": torch.optim.SGD,
    "SGD, fused": lambda p, lr: torch.optim.SGD(p, lr=lr, fused=True),
    "AdamW": torch.optim.AdamW,
    "AdamW, foreach": lambda p, lr: torch.optim.AdamW(p, lr=lr, foreach=True),
    "AdamW, fused": lambda p, lr: torch.optim.AdamW(p, lr=lr, fused=True),
}


class Half(nn.Module):
    """Gives its result in half precision, where gradients end at 65,504."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1, bias=False)

    def forward(self, x):
        return self.layer(x).half()


def scaled_training(model, make, scale, values):
    """Train one step per value under a scaler; return the run and the weights before each step."""
    optimizer = make(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    weights, scales = [], []
    with no_faults(), probe.watch(model, optimizer=optimizer, scaler=scaler, live=False) as run:
        for value in values:
            weights.append(next(model.parameters()).detach().clone())
            scales.append(scaler.get_scale())
            optimizer.zero_grad()
            scaler.scale(model(torch.full((1, 2), value)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    return run, weights, [*scales, scaler.get_scale()]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_that_the_scaler_skips_is_seen_and_the_gradient_is_the_users(name):
    model = nn.Linear(2, 1, bias=False)
    run, weights, scales = scaled_training(model, OPTIMIZERS[name], 1024.0, [1.0, math.inf, 1.0])
    assert scales == [1024.0, 1024.0, 512.0, 512.0]
    gradients = run.frame(role="param_grad", direction="backward")
    assert gradients["step"].tolist() == [0, 1, 2]
    assert gradients["loss_scale"].tolist() == [1024.0, 1024.0, 512.0]
    assert gradients["max"].tolist()[0] == gradients["max"].tolist()[2] == 1.0
    assert gradients["posinf_count"].tolist() == [0, 2, 0]
    assert run.frame(role="grad_output")["mean"].tolist() == [1.0, 1.0, 1.0]
    found = run.frame(role="param", direction="forward")["l2"].tolist()
    assert found == [norm(w) for w in weights]
    assert torch.equal(weights[1], weights[2])  # the skipped step has changed nothing


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_overflow_while_the_scale_is_looked_for_is_news_and_no_alarm(name):
    run, weights, scales = scaled_training(Half(), OPTIMIZERS[name], 65536.0, [1.0, 1.0, 1.0])
    assert scales == [65536.0, 32768.0, 32768.0, 32768.0]
    assert torch.equal(weights[0], weights[1])
    gradients = run.frame(role="param_grad", direction="backward")
    assert gradients["posinf_count"].tolist() == [2, 0, 0]
    assert gradients["max"].tolist()[1:] == [1.0, 1.0]
    assert repr(run).startswith("✓")
    assert "overflowed under the loss scale in 1 step" in " ".join(repr(run).split())


@pytest.mark.parametrize("made", ["unscaled and clipped", "accumulated"])
def test_gradients_under_a_scale_are_what_the_user_means_by_them(made):
    torch.manual_seed(0)
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with no_faults(), probe.watch(model, optimizer=optimizer, scaler=scaler, live=False) as run:
        for value in (3.0, 5.0) if made == "accumulated" else (3.0,):
            scaler.scale(model(torch.full((1, 2), value)).sum()).backward()
        if made != "accumulated":
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    rows = run.frame(role="param_grad", direction="backward")
    found = dict(zip(zip(rows["leaf"], rows["micro_step"], strict=True), rows["max"], strict=True))
    if made == "accumulated":
        assert found == {("weight", 0): 3.0, ("weight", 1): 5.0, ("weight.grad", 1): 8.0}
    else:
        assert found == {("weight", 0): 3.0}


# -- a device without float64 -------------------------------------------------------------------

WAITS = {"item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__"}


class NoFloat64(TorchFunctionMode):
    """Refuse float64 as an NPU does, and count what is called."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls[getattr(func, "__name__", str(func))] += 1
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.dtype == torch.float64:
            raise TypeError("no float64")
        return out


def on_a_device(t):
    """Measure as on such a device: no float64, nothing fetched before the words are ready."""
    with NoFloat64() as mode:
        rows = eager.summarize(t, float64=False)
        words = torch.stack(rows.words)
    assert mode.calls, "the mode sees nothing, so this holds nothing"
    assert not WAITS & set(mode.calls)
    return measuring.named(eager.decode(words.numpy(), rows.repeats, rows.kind))


HARD = {
    "float32": torch.linspace(-3, 5, 101),
    "tiny": torch.tensor([3e-25, 4e-25]),
    "huge": torch.tensor([3e25, 4e25]),
    "far from zero": 10_000 + 0.01 * torch.linspace(-1, 1, 1001),
    "float16 whose squares overflow": torch.full((64,), 60000.0).half(),
    "bfloat16": torch.linspace(-3, 5, 101).bfloat16(),
    "float8_e4m3fn": torch.tensor([1.0, 2.0, 1e6]).to(torch.float8_e4m3fn),
    "float8_e5m2": torch.tensor([1.0, 2.0, 1e6]).to(torch.float8_e5m2),
    "not finite": torch.tensor([1.0, math.nan, math.inf, -math.inf, 0.0, 1e-40]),
    "nothing finite": torch.tensor([math.nan, math.inf]),
    "token ids": torch.arange(50_000, 50_100),
    "large integers": torch.tensor([2**40 + 1, -(2**40), 3]),
    "a mask": torch.arange(100) % 3 == 0,
    "int8": torch.tensor([-128, 127, 0], dtype=torch.int8),
    "expanded": torch.tensor([[1.5], [-2.0]]).expand(2, 300),
    "transposed": torch.linspace(-1, 1, 60).reshape(3, 20).t(),
    "strided": torch.linspace(-1, 1, 60)[::3],
    "a scalar": torch.tensor(3.0),
}


@pytest.mark.parametrize("name", HARD)
def test_a_tensor_is_measured_without_float64_and_without_waiting(name):
    t = HARD[name]
    assert oracle.faults(oracle.expected(t), *on_a_device(t)) == []


def test_the_device_of_these_tests_refuses_float64_and_sees_who_waits():
    with NoFloat64() as mode:
        for asks in (lambda t: t.double(), lambda t: t.sum(dtype=torch.float64)):
            with pytest.raises(TypeError, match="no float64"):
                asks(torch.ones(2))
        torch.ones(2).sum().item()
    assert WAITS & set(mode.calls) == {"item"}
