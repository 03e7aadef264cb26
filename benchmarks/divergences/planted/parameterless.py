"""Models without parameters: nothing in them is moved between steps, so each step is judged."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.divergences.case import PLANTED, Batch, Program, instead, lasting


class Curves(nn.Module):
    """Curves one after the other, and a mean over what came out."""

    def __init__(self) -> None:
        super().__init__()
        self.squash, self.soft = nn.Tanh(), nn.Softplus()
        self.norm = nn.LayerNorm(32, elementwise_affine=False)
        self.pool, self.share = nn.AvgPool1d(2), nn.Softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        """Return shares."""
        return self.share(self.pool(self.norm(self.soft(self.squash(x)))))


def spread(model: nn.Module, batch: Batch) -> Tensor:
    """Return how far the shares are from each other."""
    found: Tensor = model(batch[0]).std()
    return found


def curves() -> Program:
    """Return curves that are fed three batches, and learn nothing."""
    batches = [(torch.randn(24, 32),) for _ in range(3)]
    return Program(Curves(), spread, batches, steps=3)


def _from(step: int, usual: Any, other: Any) -> Any:
    """Return a forward that is another one from a call on."""
    calls = iter(range(1_000_000))

    def forward(module: nn.Module, x: Tensor) -> Tensor:
        found: Tensor = (usual if next(calls) < step else other)(module, x)
        return found

    return forward


@PLANTED.divergence("1 % more from the second forward on, no parameters", on=curves, at="soft")
def later_factor(program: Program) -> None:
    instead(program.model.soft, _from(1, _softplus, lambda m, x: 1.01 * _softplus(m, x)))


@PLANTED.divergence("another epsilon in the third forward, no parameters", on=curves, at="norm")
def later_epsilon(program: Program) -> None:
    instead(program.model.norm, _from(2, _normal, lambda _, x: F.layer_norm(x, (32,), eps=1e-3)))


@PLANTED.divergence(
    "inputs doubled in the third step, no parameters", on=curves, at="", phase="fed"
)
def later_batch(program: Program) -> None:
    program.batches[2] = (program.batches[2][0] * 2,)


def _softplus(_: nn.Module, x: Tensor) -> Tensor:
    return F.softplus(x)


def _normal(_: nn.Module, x: Tensor) -> Tensor:
    return F.layer_norm(x, (32,))


@PLANTED.rounding("curves by their formulas, no parameters", on=curves, both=lasting(3))
def by_formulas(program: Program) -> None:
    instead(program.model.soft, lambda _, x: torch.log1p(torch.exp(x)))
    instead(program.model.norm, lambda _, x: (x - x.mean(-1, keepdim=True)) / _root(x))
    instead(program.model.share, lambda _, x: x.exp() / x.exp().sum(-1, keepdim=True))


def _root(x: Tensor) -> Tensor:
    return (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
