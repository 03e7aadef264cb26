"""Bad data, and values that a file brought along."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.faults.blocks import ConvNet, ResNet, digits, mlp, train
from benchmarks.faults.case import PLANTED, Program
from benchmarks.faults.proofs import born, first_is


@PLANTED.fault(
    "bad batch: one pixel of batch 7 is NaN",
    at=("", "conv1"),
    roles=("input",),
    kinds="nonfinite",
    proof=first_is("input", ""),
)
def batch_with_nan(*, broken: bool) -> Program:
    model, batches = ConvNet(), digits()
    if broken:
        batches[7][0][5, 0, 3, 3] = math.nan
    return train(model, torch.optim.Adam(model.parameters(), 1e-3), batches)


@PLANTED.fault(
    "bad batch: batch 9 was not divided by 255",
    at=("", "conv1"),
    roles=("input",),
    kinds=("sudden", "exploding"),
    proof=lambda t: t.absmax("input", "")[9] > 200 * max(t.absmax("input", "")[:9]),
)
def batch_not_scaled(*, broken: bool) -> Program:
    model, batches = ConvNet(), digits()
    if broken:
        batches[9] = (batches[9][0] * 255, batches[9][1])
    return train(model, torch.optim.Adam(model.parameters(), 1e-3), batches, steps=16)


@PLANTED.fault(
    "a NaN in one weight of a checkpoint",
    at="5",
    kinds="nonfinite",
    proof=first_is("param", "5", "weight"),
)
def checkpoint_with_nan(*, broken: bool) -> Program:
    model = nn.Sequential(nn.Flatten(), *mlp(64, 32, 32, 32, 10))
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    if broken:
        saved["5.weight"][3, 7] = math.nan
    model.load_state_dict(saved)
    return train(model, torch.optim.Adam(model.parameters(), 1e-3), digits())


@PLANTED.fault(
    "a NaN in the running variance of a BatchNorm, seen when it evaluates",
    at="blocks.1.bn1",
    kinds="nonfinite",
    proof=born("blocks.1.bn1"),
)
def running_variance_is_nan(*, broken: bool) -> Program:
    model, batches = ResNet(), digits()
    if broken:
        model.blocks[1].bn1.running_var[2] = math.nan
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)

    def step(number: int) -> None:
        x, y = batches[number]
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if number % 4 == 3:  # validation
            model.eval()
            with torch.no_grad():
                model(batches[15][0])

    return Program(model, step, optimizer)


@PLANTED.fault(
    "no label of batch 5 counts: the mean over none is 0/0",
    at=("", "head"),
    roles=("grad_output",),
    kinds="nonfinite",
    proof=lambda t: (
        (first := t.first_bad()) is not None
        and (first.role, first.step) == ("grad_output", 5)
        and first.module in {"", "head"}
    ),
)
def labels_all_ignored(*, broken: bool) -> Program:
    model, batches = ConvNet(), digits()
    if broken:
        batches[5] = (batches[5][0], torch.full_like(batches[5][1], -1))

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        counts = (y >= 0).float()
        each = F.cross_entropy(logits, y.clamp(min=0), reduction="none")
        return (each * counts).sum() / counts.sum()

    return train(model, torch.optim.Adam(model.parameters(), 1e-3), batches, loss)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)
        self.aux = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.head(h), self.aux(h)


@PLANTED.fault(
    "the second loss is divided by a count that is 0",
    at=("aux", ""),
    roles=("grad_output",),
    kinds="nonfinite",
    proof=lambda t: (
        (first := t.first_bad()) is not None
        and (first.role, first.module) in {("grad_output", "aux"), ("grad_output", "")}
        and not any(s.bad for s in t.rows("grad_output", "head") if s.step == first.step)
    ),
)
def second_loss_divided_by_zero(*, broken: bool) -> Program:
    model, batches = TwoHeads(), digits()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step(number: int) -> None:
        x, y = batches[number]
        count = (y > (9 if broken and number == 4 else 6)).sum()
        main, aux = model(x)
        loss = F.cross_entropy(main, y)
        loss = loss + F.cross_entropy(aux, y % 2, reduction="sum") / count
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Program(model, step, optimizer)


@PLANTED.fault(
    "the loss of step 6 is summed over everything, and not averaged",
    at=("", "head"),
    roles=("grad_output", "grad_input"),
    kinds=("sudden", "exploding"),
    proof=lambda t: t.absmax("grad_output", "head")[6] > 500 * t.absmax("grad_output", "head")[5],
)
def summed_once(*, broken: bool) -> Program:
    model, batches = nn.Sequential(), digits()
    model.add_module("flatten", nn.Flatten())
    model.add_module("body", mlp(64, 48, 48))
    model.add_module("act", nn.Tanh())
    model.add_module("head", nn.Linear(48, 64))
    optimizer = torch.optim.SGD(model.parameters(), 0.5)

    def step(number: int) -> None:
        x, _ = batches[number]
        reduction = "sum" if broken and number == 6 else "mean"
        loss = F.mse_loss(model(x), x.flatten(1), reduction=reduction)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Program(model, step, optimizer)
