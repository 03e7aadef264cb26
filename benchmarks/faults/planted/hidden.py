"""Faults that hide: deep in containers, behind an optimizer that bounds them, in one leaf."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.faults.blocks import digits, mlp, train
from benchmarks.faults.case import PLANTED, Program
from benchmarks.faults.proofs import (
    born_backward,
    finite,
    only_zeros,
)


def unit(a: int, b: int) -> nn.Sequential:
    """Return a linear layer, a norm and a ReLU."""
    parts = nn.Sequential()
    parts.add_module("linear", nn.Linear(a, b))
    parts.add_module("norm", nn.LayerNorm(b))
    parts.add_module("act", nn.ReLU())
    return parts


@PLANTED.fault(
    "dead ReLU at the end of a stage, in a stage, in a stage",
    at=("body.1.1.norm", "body.1.1.act"),
    kinds="dead",
    proof=only_zeros("body.1.1.act"),
)
def dead_at_the_end_of_stages(*, broken: bool) -> Program:
    model = nn.Sequential()
    model.add_module("flatten", nn.Flatten())
    stages = [nn.Sequential(unit(64, 32), unit(32, 32)), nn.Sequential(unit(32, 32), unit(32, 32))]
    model.add_module("body", nn.Sequential(*stages))
    model.add_module("head", nn.Linear(32, 10))
    if broken:
        nn.init.constant_(model.body[1][1].norm.bias, -7.0)
    return train(model, torch.optim.SGD(model.parameters(), 0.05), digits())


@PLANTED.fault(
    "value network: one reward of step 7 is 1e6, and Adam bounds what it does",
    at=("", "value", "value.2"),
    roles=("grad_output", "grad_input"),
    kinds=("sudden", "exploding"),
    proof=lambda t: t.absmax("grad_output", "value")[7] > 1e4 * t.absmax("grad_output", "value")[6],
)
def reward_outlier(*, broken: bool) -> Program:
    model = nn.Sequential()
    model.add_module("body", nn.Sequential(nn.Linear(6, 32), nn.Tanh()))
    model.add_module("value", mlp(32, 32, 1))
    states = torch.randn(20, 64, 6)
    rewards = states[..., :1] + 0.1 * torch.randn(20, 64, 1)
    if broken:
        rewards[7, 5] = 1e6
    batches = list(zip(states, rewards, strict=True))
    return train(model, torch.optim.Adam(model.parameters(), 1e-3), batches, F.mse_loss)


class Divide(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return x / self.by


@PLANTED.fault(
    "pixels are divided by 65535, after they were already",
    at="prepare",
    kinds=("vanishing", "underflow"),
    proof=lambda t: finite()(t) and max(t.absmax("output", "prepare")) < 1e-4,
)
def divided_twice(*, broken: bool) -> Program:
    model = nn.Sequential()
    model.add_module("prepare", Divide(65535.0 if broken else 1.0))
    model.add_module("conv", nn.Conv2d(1, 8, 3))
    model.add_module("act", nn.ReLU())
    model.add_module("flatten", nn.Flatten())
    model.add_module("head", nn.Linear(288, 10))
    return train(model, torch.optim.SGD(model.parameters(), 0.05), digits())


class Exp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(x)


@PLANTED.fault(
    "exp as an activation where nothing bounds it: ever larger, until another module overflows",
    at=("hidden.1.act", "hidden.1", "hidden.1.linear"),
    kinds=("exploding", "overflow", "nonfinite", "sudden"),
    proof=lambda t: (
        t.absmax("output", "hidden.1.act")[0] > 1e4 and t.absmax("output", "hidden.0.act")[0] < 100
    ),
)
def exp_activation(*, broken: bool) -> Program:
    model = nn.Sequential()
    model.add_module("flatten", nn.Flatten())
    model.add_module("hidden", nn.Sequential(unit(64, 32), unit(32, 32), unit(32, 32)))
    if broken:
        model.hidden[1].norm = nn.Identity()
        model.hidden[1].act = Exp()
        model.hidden[1].linear.weight.data *= 12
    model.add_module("head", nn.Linear(32, 10))
    return train(model, torch.optim.SGD(model.parameters(), 0.01), digits())


@PLANTED.fault(
    "the loss is multiplied by 1e34: Adam's squares overflow, and nothing moves",
    at=("", "head"),
    roles=("grad_output", "grad_input"),
    kinds=("exploding", "overflow", "sudden"),
    proof=lambda t: (
        finite()(t)
        and min(t.absmax("grad_output", "head")) > 1e16
        and not any(any(steps) for steps in t.moved.values())
    ),
)
def loss_multiplied(*, broken: bool) -> Program:
    model = nn.Sequential()
    model.add_module("flatten", nn.Flatten())
    model.add_module("net", mlp(64, 32, 32))
    model.add_module("head", nn.Linear(32, 10))
    factor = 1e34 if broken else 1.0
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    return train(model, optimizer, digits(), lambda out, y: factor * F.cross_entropy(out, y))


class HalfNorm(nn.Module):
    """A norm over space, in the dtype of what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean((2, 3), keepdim=True)
        variance = (centred * centred).mean((2, 3), keepdim=True)
        return centred * torch.rsqrt(variance + 1e-3)


class Conv(nn.Module):
    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(a, b, 3, padding=1)
        self.norm = HalfNorm()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


@PLANTED.fault(
    "float16: the variance in a norm overflows and all that comes out is 0",
    at="layers.1.norm",
    kinds=("dead", "overflow", "nonfinite"),
    proof=lambda t: (
        finite()(t)
        and only_zeros("layers.1.norm", 0.95)(t)
        and max(t.absmax("input", "layers.1.norm")) < 2e4
    ),
)
def variance_overflows_in_float16(*, broken: bool) -> Program:
    model = nn.Sequential()
    model.add_module("layers", nn.Sequential(Conv(1, 8), Conv(8, 8), Conv(8, 8)))
    model.add_module("flatten", nn.Flatten())
    model.add_module("head", nn.Linear(512, 10))
    model.layers[1].conv.weight.data *= 1500 if broken else 1
    model = model.half().eval()
    batches = [x.half() for x, _ in digits()]

    def step(number: int) -> None:
        with torch.no_grad():
            model(batches[number])

    return Program(model, step, None, 8)


class LogCounts(nn.Module):
    def forward(self, counts: Tensor) -> Tensor:
        return counts.log()


class Ratio(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log = LogCounts()
        self.net = mlp(6, 16, 3)

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return self.net(self.log(pair[0]) - self.log(pair[1]))


@PLANTED.fault(
    "a module that is called twice, and fed a count of 0 the second time only: -Inf, then NaN",
    at=("log", ""),
    kinds="nonfinite",
    proof=lambda t: (
        any(s.neginf for s in t.rows("output", "log"))
        and not any(s.neginf or s.bad for s in t.rows("output", "log")[:10:2])
        and any(s.bad for s in t.rows("output", "net.0"))
    ),
)
def second_call_fed_zero(*, broken: bool) -> Program:
    model = Ratio()
    a, b = torch.randint(1, 9, (2, 20, 32, 6)).float()
    y = (a - b)[..., :3].argmax(-1)
    if broken:
        b[4, 3, 2] = 0.0
    batches = [((i, j), k) for i, j, k in zip(a, b, y, strict=True)]
    return train(model, torch.optim.Adam(model.parameters(), 1e-2), batches)


class Apart(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.left = nn.Linear(16, 16)
        self.right = nn.Linear(16, 16)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        apart = (self.left(x) - self.right(x)).square().sum(-1, keepdim=True)
        return x + 0.1 * torch.sqrt(apart + self.eps)


@PLANTED.fault(
    "two branches begin equal, sqrt at 0; clipping the norm spreads it to every parameter",
    at="blocks.2",
    kinds="nonfinite",
    proof=born_backward("blocks.2"),
)
def clipping_spreads_inf(*, broken: bool) -> Program:
    model = nn.Sequential()
    model.add_module("stem", nn.Sequential(nn.Flatten(), nn.Linear(64, 16)))
    model.add_module("blocks", nn.Sequential(*(Apart(1e-3) for _ in range(4))))
    model.add_module("head", nn.Linear(16, 10))
    if broken:
        model.blocks[2].eps = 0.0
        model.blocks[2].right.load_state_dict(model.blocks[2].left.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    batches = digits()

    def step(number: int) -> None:
        x, y = batches[number]
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return Program(model, step, optimizer)
