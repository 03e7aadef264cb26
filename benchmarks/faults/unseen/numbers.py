"""Held out: do not tune rules to it. Values that stop being finite."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.faults.blocks import digits, mlp, tokens, train
from benchmarks.faults.case import UNSEEN, Program
from benchmarks.faults.proofs import born, born_backward


class Scale(nn.Module):
    def __init__(self, log_scale: float) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(log_scale))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.log_scale.exp() * F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T


class TwoTowers(nn.Module):
    def __init__(self, log_scale: float) -> None:
        super().__init__()
        self.image = mlp(64, 32, 16)
        self.text = nn.Embedding(10, 16)
        self.logits = Scale(log_scale)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.logits(self.image(x.flatten(1)), self.text(y))


def contrastive(model: TwoTowers) -> Program:
    """Train images against their labels' embeddings."""
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.01)
    batches = digits(10)

    def step(number: int) -> Tensor:
        x, y = batches[number % 20]
        logits = model(x, y)
        same = (y[:, None] == y).float()
        optimizer.zero_grad()
        loss = F.cross_entropy(logits, same / same.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        return loss

    return Program(model, step, optimizer, 20)


@UNSEEN.fault(
    "contrastive: the learned temperature overflows in exp",
    at="logits",
    kinds="nonfinite",
    proof=born("logits"),
)
def temperature_overflows(*, broken: bool) -> Program:
    return contrastive(TwoTowers(95.0 if broken else 1.0))


class Unit(nn.Module):
    def __init__(self, least: float) -> None:
        super().__init__()
        self.least = least

    def forward(self, x: Tensor) -> Tensor:
        return x / x.norm(dim=-1, keepdim=True).clamp(min=self.least)


class Documents(nn.Module):
    def __init__(self, least: float) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(20, 16, mode="sum", padding_idx=0)
        self.index = nn.Sequential()
        self.index.add_module("unit", Unit(least))
        self.index.add_module("map", nn.Linear(16, 16))
        self.head = nn.Linear(16, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.index(self.words(ids))))


@UNSEEN.fault(
    "an empty document: a vector of zeros is divided by its norm",
    at="index.unit",
    kinds="nonfinite",
    proof=born("index.unit"),
)
def empty_document(*, broken: bool) -> Program:
    model = Documents(0.0 if broken else 1e-6)
    batches = [(x, x[:, 0] % 4) for x, _ in tokens()]
    batches[3][0][7] = 0
    return train(model, torch.optim.Adam(model.parameters(), 1e-2), batches)


class Distance(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.sqrt((a - b).square().sum(-1) + self.eps)


class Triplet(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Flatten(), *mlp(64, 32, 8))
        self.metric = nn.ModuleDict({"near": Distance(eps), "far": Distance(1e-6)})

    def forward(self, x: Tensor, near: Tensor, far: Tensor) -> Tensor:
        x, near, far = self.tower(x), self.tower(near), self.tower(far)
        return F.relu(self.metric["near"](x, near) - self.metric["far"](x, far) + 1.0).mean()


@UNSEEN.fault(
    "triplet loss: an anchor that is its own positive, backward of sqrt at 0",
    at="metric.near",
    kinds="nonfinite",
    proof=born_backward("metric.near"),
)
def distance_to_itself(*, broken: bool) -> Program:
    model = Triplet(0.0 if broken else 1e-6)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    batches = digits(32)

    def step(number: int) -> Tensor:
        x, y = batches[number]
        near = torch.stack([x[(y == label).nonzero()[-1, 0]] for label in y])
        optimizer.zero_grad()
        loss = model(x, near, x.roll(5, 0))
        loss.backward()
        optimizer.step()
        return loss

    return Program(model, step, optimizer)


class Distill(nn.Module):
    def __init__(self, *, careful: bool) -> None:
        super().__init__()
        self.careful = careful

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        p, log_q = teacher.softmax(-1), student.log_softmax(-1)
        each = torch.xlogy(p, p) if self.careful else p * p.log()
        return (each - p * log_q).sum(-1).mean()


class Student(nn.Module):
    def __init__(self, *, careful: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), *mlp(64, 32, 10))
        self.distill = Distill(careful=careful)

    def forward(self, x: Tensor, teacher: Tensor) -> Tensor:
        return self.distill(self.net(x), teacher)


@UNSEEN.fault(
    "distillation: 0 * log(0) where the teacher rules a class out with -inf",
    at="distill",
    kinds="nonfinite",
    proof=born("distill"),
)
def teacher_rules_out(*, broken: bool) -> Program:
    model = Student(careful=not broken)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    batches = digits()

    def step(number: int) -> Tensor:
        x, y = batches[number]
        teacher = 4.0 * F.one_hot(y, 10)
        teacher[:, 0] = torch.where(y == 0, 4.0, -math.inf)
        optimizer.zero_grad()
        loss = model(x, teacher)
        loss.backward()
        optimizer.step()
        return loss

    return Program(model, step, optimizer)


class Gamma(nn.Module):
    def __init__(self, least: float) -> None:
        super().__init__()
        self.least = least

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(min=self.least) ** (1 / 2.2)


class Restore(nn.Module):
    def __init__(self, least: float) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 8, 3, padding=1)
        self.up = nn.Conv2d(8, 1, 3, padding=1)
        self.gamma = Gamma(least)

    def forward(self, x: Tensor) -> Tensor:
        return self.gamma(x + 0.1 * self.up(torch.relu(self.down(x))))


@UNSEEN.fault(
    "a root of a negative number: gamma correction of what a network returns",
    at="gamma",
    kinds="nonfinite",
    proof=born("gamma"),
)
def root_of_negative(*, broken: bool) -> Program:
    model = Restore(-math.inf if broken else 1e-3)
    batches = [(x.clamp(0, 1), x.sqrt()) for x, _ in digits()]
    return train(model, torch.optim.Adam(model.parameters(), 1e-3), batches, F.mse_loss)


class Standardise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(0)
        variance = centred.square().sum(0) / (len(x) - 1)
        return centred / torch.sqrt(variance + 1e-5)


@UNSEEN.fault(
    "the last batch has one sample: its std is 0/0",
    at="1.standardise",
    kinds="nonfinite",
    proof=lambda t: born("1.standardise")(t) and t.first_bad().step == 8,
)
def batch_of_one(*, broken: bool) -> Program:
    middle = nn.Sequential()
    middle.add_module("linear", nn.Linear(64, 32))
    middle.add_module("standardise", Standardise())
    middle.add_module("act", nn.SiLU())
    model = nn.Sequential(nn.Flatten(), middle, nn.Linear(32, 10))
    batches = digits(48)
    if broken:
        x, y = batches[8]
        batches[8] = (x[:1], y[:1])
    return train(model, torch.optim.Adam(model.parameters(), 1e-3), batches)
