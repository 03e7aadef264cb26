"""The models of the measurements, and one step of each.

Imports torch only: msProbe's side uses it too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
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


@contextlib.contextmanager
def items(model: nn.Module) -> Iterator[None]:
    """Watch as most people begin: six numbers of every output, each asked for at once."""

    def look(_: nn.Module, __: object, out: object) -> None:
        if isinstance(out, Tensor):
            x = out.detach().float()
            for value in (x.min(), x.max(), x.mean(), x.std(), x.norm(), x.isnan().sum()):
                value.item()

    with _until_the_end([each.register_forward_hook(look) for each in model.modules()]):
        yield


@contextlib.contextmanager
def histograms(model: nn.Module) -> Iterator[None]:
    """Watch as `wandb.watch` does: a histogram of 64 bins of every parameter's gradient."""

    def look(g: Tensor) -> None:
        x = g.detach().flatten()
        low, high = x.min().item(), x.max().item()
        torch.histc(x, bins=64, min=low, max=high).tolist()

    with _until_the_end([each.register_hook(look) for each in model.parameters()]):
        yield


@contextlib.contextmanager
def _until_the_end(handles: list[torch.utils.hooks.RemovableHandle]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
