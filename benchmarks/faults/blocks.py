"""Small models, data and loops that several cases use, written as users write them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.faults.case import Program

Batches = list[tuple[Tensor, Tensor]]


@functools.cache
def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
    return images, torch.tensor(found.target)


def digits(size: int = 64, number: int = 20) -> Batches:
    """Return batches of 8 x 8 images of handwritten digits, pixels 0 to 1."""
    images, labels = _digits()
    parts = torch.arange(size * number).view(number, size) % len(images)
    return [(images[part], labels[part]) for part in parts]


def tokens(size: int = 16, length: int = 12, vocabulary: int = 20, number: int = 20) -> Batches:
    """Return sequences to be copied; token 0 is padding and does not appear."""
    draws = [torch.randint(1, vocabulary, (size, length)) for _ in range(number)]
    return [(x, x) for x in draws]


def counting(size: int = 16, length: int = 12, vocabulary: int = 20) -> Batches:
    """Return sequences of which each token is the one before it plus 1."""
    starts = torch.randint(0, vocabulary - 1, (20, size, 1))
    return [(x, x) for x in (starts + torch.arange(length)) % (vocabulary - 1) + 1]


def train(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Batches,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    *,
    steps: int = 12,
) -> Program:
    """Return the plain training loop."""

    def step(number: int) -> Tensor:
        x, y = batches[number % len(batches)]
        optimizer.zero_grad()
        found = loss(model(x), y)
        found.backward()
        optimizer.step()
        return found

    return Program(model, step, optimizer, steps)


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy of every position."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class ConvNet(nn.Module):
    """A small CNN for the digits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.relu2 = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(16 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.relu1(self.conv1(x))
        x = self.pool(self.relu2(self.conv2(x)))
        return self.head(x.flatten(1))


def mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return linear layers with an activation between each two."""
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


class Attention(nn.Module):
    """Self-attention by hand."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend; `mask` is True where a token may be seen."""
        q, k, v = (self._split(layer(x)) for layer in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        out = scores.softmax(-1) @ v
        return self.proj(out.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = mlp(width, 2 * width, width, act=nn.GELU)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Add attention, then the MLP."""
        x = x + self.attn(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """A small causal transformer over tokens."""

    def __init__(self, vocabulary: int = 20, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
        """Return logits; `keep` is True where a token is no padding."""
        length = ids.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
        if keep is not None:
            mask = keep[:, None, None, :]
        x = self.embed(ids) + self.position(torch.arange(length))
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


class Residual(nn.Module):
    """A residual block of convolutions with BatchNorm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Add what the two convolutions find."""
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(x + self.bn2(self.conv2(out)))


class ResNet(nn.Module):
    """A small ResNet for the digits."""

    def __init__(self, depth: int = 3, channels: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(channels)
        self.blocks = nn.Sequential(*(Residual(channels) for _ in range(depth)))
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.blocks(F.relu(self.bn(self.stem(x))))
        return self.head(x.mean((2, 3)))
