"""Held out: do not tune rules to it. What a zero does to a division or a logarithm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.faults.blocks import digits, mlp, train
from benchmarks.faults.case import UNSEEN, Program
from benchmarks.faults.proofs import born


class WeightNormed(nn.Module):
    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.randn(b, a))
        self.length = nn.Parameter(torch.ones(b, 1))
        self.bias = nn.Parameter(torch.zeros(b))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.length * self.direction / self.direction.norm(dim=1, keepdim=True)
        return F.linear(x, weight, self.bias)


@UNSEEN.fault(
    "weight norm of a direction that was set to zero",
    at="layers.2",
    kinds="nonfinite",
    proof=born("layers.2"),
)
def direction_of_nothing(*, broken: bool) -> Program:
    model = nn.Sequential()
    model.add_module("flatten", nn.Flatten())
    layers = [
        WeightNormed(64, 24),
        nn.ReLU(),
        WeightNormed(24, 24),
        nn.ReLU(),
        WeightNormed(24, 10),
    ]
    model.add_module("layers", nn.Sequential(*layers))
    if broken:  # pruned
        model.layers[2].direction.data[5] = 0.0
    return train(model, torch.optim.SGD(model.parameters(), 0.05), digits())


class LogProbability(nn.Module):
    def __init__(self, *, safe: bool) -> None:
        super().__init__()
        self.safe = safe

    def forward(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(-1) if self.safe else logits.softmax(-1).log()


class Policy(nn.Module):
    def __init__(self, *, safe: bool) -> None:
        super().__init__()
        self.body = mlp(6, 32, 4, act=nn.Tanh)
        self.logp = LogProbability(safe=safe)

    def forward(self, state: Tensor) -> Tensor:
        return self.logp(20 * self.body(state))


@UNSEEN.fault(
    "policy: log of a softmax that is exactly 0, and that action was taken",
    at="logp",
    kinds="nonfinite",
    proof=lambda t: any(s.neginf for s in t.rows("output", "logp")),
)
def impossible_action(*, broken: bool) -> Program:
    model = Policy(safe=not broken)
    model.body[2].weight.data *= 30 if broken else 0.3
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    states = torch.randn(12, 128, 6)
    actions = states[..., :4].argmax(-1)

    def step(number: int) -> Tensor:
        logp = model(states[number])
        taken = logp.gather(1, actions[number][:, None])
        optimizer.zero_grad()
        loss = -taken.mean()
        loss.backward()
        optimizer.step()
        return loss

    return Program(model, step, optimizer)
