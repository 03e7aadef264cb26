"""The candidate is built otherwise, and something in it is wrong as well."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.divergences.case import PLANTED, Program, instead
from benchmarks.divergences.models import Tower, adam, decoder, encoder, resnet, tower


@PLANTED.divergence("an extra layer norm", on=decoder, at=("", "added"))
def extra(program: Program) -> None:
    program.model.added = nn.LayerNorm(32)

    def forward(m: Any, ids: Tensor) -> Tensor:
        x = m.added(m.embed(ids) + m.place(torch.arange(ids.shape[1])))
        for layer in m.layers:
            x = layer(x)
        return m.head(m.norm(x))

    instead(program.model, forward)


@PLANTED.divergence("a layer is called twice", on=decoder, at=("", "layers.2"))
def again(program: Program) -> None:
    def forward(m: Any, ids: Tensor) -> Tensor:
        x = m.embed(ids) + m.place(torch.arange(ids.shape[1]))
        for number in (0, 1, 2, 2):
            x = m.layers[number](x)
        return m.head(m.norm(x))

    instead(program.model, forward)


@PLANTED.divergence("a layer is left out", on=encoder, at=("encoder", "encoder.layers.1*"))
def left_out(program: Program) -> None:
    instead(program.model.encoder.layers[1], lambda _, x, **__: x)


class Renamed(nn.Module):
    """The same tower under other names."""

    def __init__(self, of: Tower) -> None:
        super().__init__()
        self.first = nn.Sequential(of.fc1, of.act1, of.norm1)
        self.noise = of.drop
        self.second = nn.Sequential(of.fc2, of.act2, of.norm2)
        self.third = nn.Sequential(of.fc3, of.act3)
        self.out = of.head

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.out(self.third(self.second(self.noise(self.first(x)))))


NAMES = {
    "fc1": "first.0", "act1": "first.1", "norm1": "first.2", "drop": "noise", "fc2": "second.0",
    "act2": "second.1", "norm2": "second.2", "fc3": "third.0", "act3": "third.1", "head": "out",
}  # fmt: skip


def renamed(program: Program) -> None:
    """Give the modules other names, and say which is which."""
    program.model = Renamed(program.model)
    program.optimizer = adam(program.model)
    program.compared = {"mapping": NAMES}


@PLANTED.divergence("renamed modules, one of which has another epsilon", on=tower, at="norm2")
def renamed_epsilon(program: Program) -> None:
    renamed(program)
    program.model.second[2].eps = 1e-4


@PLANTED.divergence("a wrapped model, one layer of which has no bias", on=resnet, at="head")
def wrapped(program: Program) -> None:
    instead(program.model.head, lambda m, x: F.linear(x, m.weight))
    program.model = nn.ModuleDict({"module": program.model})
    instead(program.model, lambda m, x: m["module"](x))
