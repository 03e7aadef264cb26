"""Held out: do not tune rules to it. Finite values that are wrong."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.faults.blocks import digits, mlp, train
from benchmarks.faults.case import UNSEEN, Program
from benchmarks.faults.proofs import finite, larger, only_zeros


def stage(a: int, b: int) -> nn.Sequential:
    """Return convolution, BatchNorm and ReLU."""
    model = nn.Sequential()
    model.add_module("conv", nn.Conv2d(a, b, 3, stride=2, padding=1))
    model.add_module("bn", nn.BatchNorm2d(b))
    model.add_module("relu", nn.ReLU())
    return model


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(stage(1, 8), stage(8, 16))
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.down(x).flatten(1)))


@UNSEEN.fault(
    "BatchNorm with a very negative bias: the ReLU behind it is dead",
    at=("down.1.bn", "down.1.relu", "down.1"),
    kinds="dead",
    proof=only_zeros("down.1.relu"),
)
def batchnorm_kills_relu(*, broken: bool) -> Program:
    model = Classifier()
    if broken:
        nn.init.constant_(model.down[1].bn.bias, -9.0)
    return train(model, torch.optim.SGD(model.parameters(), 0.05), digits())


@UNSEEN.fault(
    "dropout of everything: the probability is 1", at="drop", kinds="dead", proof=only_zeros("drop")
)
def everything_dropped(*, broken: bool) -> Program:
    model = Classifier()
    if broken:
        model.drop.p = 1.0
    return train(model, torch.optim.Adam(model.parameters(), 2e-3), digits())


class Squeeze(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc = nn.Linear(channels, channels)
        self.gate = nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.fc(x.mean((2, 3))))[..., None, None]


class Excited(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(self._block(1, 8), self._block(8, 8))
        self.head = nn.Linear(8, 10)

    @staticmethod
    def _block(a: int, b: int) -> nn.Sequential:
        block = nn.Sequential()
        block.add_module("conv", nn.Conv2d(a, b, 3, padding=1))
        block.add_module("act", nn.SiLU())
        block.add_module("se", Squeeze(b))
        return block

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x).mean((2, 3)))


@UNSEEN.fault(
    "squeeze and excite: a hard sigmoid that is shut",
    at=("blocks.1.se", "blocks.1.se.*"),
    kinds=("dead", "saturation", "vanishing"),
    proof=only_zeros("blocks.1.se.gate"),
)
def hard_gate_shut(*, broken: bool) -> Program:
    model = Excited()
    if broken:
        nn.init.constant_(model.blocks[1].se.fc.bias, -8.0)
    return train(model, torch.optim.Adam(model.parameters(), 2e-3), digits())


class Coupling(nn.Module):
    def __init__(self, width: int, gain: float) -> None:
        super().__init__()
        self.shift = mlp(width // 2, 16, width // 2, act=nn.Tanh)
        self.log_scale = mlp(width // 2, 16, width // 2, act=nn.Tanh)
        self.gain = gain

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.chunk(2, -1)
        log_scale = self.gain * self.log_scale(a)
        return torch.cat([b * log_scale.exp() + self.shift(a), a], -1), log_scale.sum(-1)


class Flow(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        gains = (1.0, 1.0, gain, 1.0)
        self.couplings = nn.ModuleList(Coupling(6, each) for each in gains)

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(len(x))
        for coupling in self.couplings:
            x, log_det = coupling(x)
            total = total + log_det
        return 0.5 * x.square().sum(-1) - total


@UNSEEN.fault(
    "normalising flow: the scale of one coupling is not bounded",
    at=("couplings.2", "couplings.2.*"),
    kinds=("exploding", "overflow", "nonfinite", "sudden"),
    proof=lambda t: (
        t.absmax("output", "couplings.2")[0] > 1e4 * t.absmax("output", "couplings.1")[0]
    ),
)
def flow_not_bounded(*, broken: bool) -> Program:
    model = Flow(40.0 if broken else 1.0)
    batches = [(x, x) for x in torch.randn(20, 64, 6)]
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    return train(model, optimizer, batches, lambda nll, _: nll.mean())


class Units(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


@UNSEEN.fault(
    "micrometres taken for metres between two stages: nothing gets through, in either direction",
    at="units",
    kinds=("vanishing", "dead", "underflow"),
    proof=lambda t: finite()(t) and larger("early", "units", 1e5)(t),
)
def wrong_units(*, broken: bool) -> Program:
    model = nn.Sequential()
    model.add_module("flatten", nn.Flatten())
    model.add_module("early", mlp(64, 32, 32))
    model.add_module("units", Units(1e-6 if broken else 1.0))
    model.add_module("late", mlp(32, 32, 10))
    return train(model, torch.optim.SGD(model.parameters(), 0.1), digits())
