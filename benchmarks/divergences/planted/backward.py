"""The forward is the same, and a gradient is not."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.divergences.case import PLANTED, Program, instead
from benchmarks.divergences.models import Block, decoder, gan, gpt, moe, resnet, tower


class _Doubled(torch.autograd.Function):
    """A linear map with twice its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


@PLANTED.divergence(
    "the backward of a layer is twice too large", on=tower, at="fc2", phase="backward"
)
def twice(program: Program) -> None:
    instead(program.model.fc2, lambda m, x: F.linear(_Doubled.apply(x), m.weight, m.bias))


class _Clamped(torch.autograd.Function):
    """A ReLU whose gradient is not stopped below 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


@PLANTED.divergence(
    "the backward of a ReLU lets all through", on=resnet, at="relu", phase="backward"
)
def leaking(program: Program) -> None:
    instead(program.model.relu, lambda _, x: _Clamped.apply(x))


@PLANTED.divergence(
    "the queries are detached", on=decoder, at=("layers.1", "layers.1.q"), phase="backward"
)
def detached(program: Program) -> None:
    block = program.model.layers[1]
    block.attention = lambda q, k, v: Block.attention(block, q.detach(), k, v)


@PLANTED.divergence(
    "a branch is detached",
    on=decoder,
    at=("layers.1", "layers.1.*"),
    phase="backward",
)
def branch(program: Program) -> None:
    def forward(m: Block, x: Tensor) -> Tensor:
        h = m.norm1(x)
        x = x + m.o(m.attention(*(m.split(f(h)) for f in (m.q, m.k, m.v))))
        return x + m.down(m.act(m.up(m.norm2(x)))).detach()

    instead(program.model.layers[1], forward)


@PLANTED.divergence(
    "the router gets no gradient", on=moe, at=("moe1", "moe1.router"), phase="backward"
)
def router(program: Program) -> None:
    layer = program.model.moe1.router
    instead(layer, lambda m, x: F.linear(x, m.weight.detach()))


@PLANTED.divergence("the generator gets the critic's gradient with the wrong sign",
                    on=gan, at=("", "generator*", "critic*"), phase="backward")  # fmt: skip
def sign(program: Program) -> None:
    class Turned(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return -grad

    def forward(m: Any, noise: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        return m.critic(Turned.apply(m.generator(noise))), m.critic(real)

    instead(program.model, forward)


@PLANTED.divergence(
    "the bias of a layer gets the mean of its gradient, not the sum",
    on=gpt,
    at="transformer.h.1.mlp.c_fc",
    phase="backward",
)
def mean_of_bias(program: Program) -> None:
    layer = program.model.transformer.h[1].mlp.c_fc

    class Averaged(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, bias: Tensor) -> Tensor:
            return bias.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad / 48

    instead(layer, lambda m, x: x @ m.weight + Averaged.apply(m.bias))
