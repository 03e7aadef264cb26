"""The models of the measurements, and one step of each.

Imports torch only: msProbe's side uses it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Size:
    """A transformer encoder, and how many of its steps make one timing."""

    title: str
    width: int
    layers: int
    steps: int
    msprobe_steps: int


SIZES: Final = {
    "d256": Size("8 layers, d=256", 256, 8, 2, 1),
    "d64": Size("tiny: 4 layers, d=64", 64, 4, 12, 3),
}
BATCH: Final = (4, 64)
"""Sequences, and tokens in each."""


def encoder(width: int, layers: int) -> nn.Module:
    """Return a transformer encoder with the same weights every time, without dropout."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def batch(width: int) -> Tensor:
    """Return the input of every step, shape (4, 64, width)."""
    return torch.randn(*BATCH, width, generator=torch.Generator().manual_seed(1))


def train(model: nn.Module, x: Tensor) -> None:
    """Run one step: forward and backward. There is no optimizer, on either side."""
    model.zero_grad(set_to_none=True)
    model(x).square().mean().backward()
