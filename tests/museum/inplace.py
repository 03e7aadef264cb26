"""Models that write into their tensors."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.models import Piece, x


class AddsInPlace(nn.Module):
    """A residual with `+=`."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x):
        y = self.first(x)
        y += x
        y = self.second(y)
        y += y.detach()
        return y


class NormedBranches(nn.Module):
    """Linear and batch norm branches joined by a residual, with dropout."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3)) for _ in range(3)
        )
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        for branch in self.branches:
            x = x + branch(x)
        return self.head(x)


class Block(nn.Module):
    """A residual block as torchvision writes it."""

    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class Packed(nn.Module):
    """Slices of a packed projection, and a write to the whole after slicing: stale views."""

    def __init__(self, starts):
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.gate = nn.Linear(4, 4)
        self.out = nn.Linear(4, 4)
        self.starts = starts

    def forward(self, x):
        y = self.qkv(x)
        q, k, v = (y[..., start : start + 4] for start in self.starts)
        y.mul_(0.5)
        attention = (q @ self.gate(k).transpose(-1, -2)).softmax(-1)
        return self.out(attention @ v) + q.sin() * v + y[..., :4]


class Joins(nn.Module):
    """Takes two tensors."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, a, b):
        return self.lin(a.sigmoid()) * b


class StaleArguments(nn.Module):
    """Hands stale views to a child and gives one back."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 8)
        self.child = Joins()

    def forward(self, x):
        y = self.qkv(x)
        q, k = y[..., :4], y[..., 4:]
        y.mul_(0.5)
        return self.child(q, k), q, y.sum()


class WritesHalf(nn.Module):
    """A child writes into half of an output."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.act = nn.ReLU(inplace=True)
        self.down = nn.Linear(8, 4)

    def forward(self, x):
        y = self.up(x)
        self.act(y[..., 4:])
        return self.down(y)


class WritesBuffer(nn.Module):
    """Keeps a running mean as a buffer and writes it in place."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        y = self.lin(x)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return y - self.mean


class Functional(nn.Module):
    """In-place functions between modules."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x):
        y = F.relu_(self.a(x)).clamp(max=1.0)
        y = self.b(y)
        y[:, 0] = 0.5
        return y.t_().mul_(2)


PIECES = [
    Piece(
        "inplace_relu",
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(True), nn.Linear(4, 4), nn.ReLU6(True)),
    ),
    Piece("inplace_residual", AddsInPlace),
    Piece("residual_batchnorm", NormedBranches, lambda: ((x(6, 4),), {})),
    Piece(
        "resnet",
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.ReLU(True),
            Block(4),
            Block(4),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16, 3),
        ),
        lambda: ((x(2, 2, 4, 4),), {}),
    ),
    Piece(
        "flatten_then_inplace_relu",
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3),
            nn.Flatten(),
            nn.ReLU(True),
            nn.Linear(8, 3),
            nn.LeakyReLU(0.1, True),
        ),
        lambda: ((x(2, 1, 4, 4),), {}),
    ),
    Piece(
        "inplace_dropout",
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5, inplace=True), nn.Linear(4, 4)),
    ),
    Piece("stale_slices", lambda: Packed((0, 4, 8)), lambda: ((x(2, 3, 4),), {})),
    Piece("stale_windows", lambda: Packed((0, 2, 4)), lambda: ((x(2, 3, 4),), {})),
    Piece("stale_arguments", StaleArguments),
    Piece("inplace_half", WritesHalf),
    Piece("buffer_written", WritesBuffer),
    Piece("inplace_functions", Functional),
]
