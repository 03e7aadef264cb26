"""One layer computes something else."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.divergences.case import PLANTED, Program, instead
from benchmarks.divergences.models import (  # fmt: skip
    decoder,
    deep,
    encoder,
    gan,
    gpt,
    lstm,
    moe,
    resnet,
    tower,
    unet,
)


@PLANTED.divergence("LayerNorm with epsilon 1e-3", on=tower, at="norm1")
def layer_epsilon(program: Program) -> None:
    program.model.norm1.eps = 1e-3


@PLANTED.divergence("LayerNorm with epsilon 1e-6, not 1e-5", on=gpt, at="transformer.h.1.ln_2")
def small_epsilon(program: Program) -> None:
    program.model.transformer.h[1].ln_2.eps = 1e-6


@PLANTED.divergence("BatchNorm with epsilon 1e-3", on=resnet, at="layers.1.bn1")
def batch_epsilon(program: Program) -> None:
    program.model.layers[1].bn1.eps = 1e-3


@PLANTED.divergence("dropped bias", on=encoder, at="encoder.layers.1.linear1")
def no_bias(program: Program) -> None:
    instead(program.model.encoder.layers[1].linear1, lambda m, x: F.linear(x, m.weight))


@PLANTED.divergence("transposed weight of a square matrix", on=tower, at="fc3")
def transposed(program: Program) -> None:
    instead(program.model.fc3, lambda m, x: F.linear(x, m.weight.t(), m.bias))


@PLANTED.divergence("GELU by tanh, not erf", on=gpt, at="transformer.h.2.mlp.act")
def other_gelu(program: Program) -> None:
    instead(program.model.transformer.h[2].mlp.act, lambda _, x: F.gelu(x))


@PLANTED.divergence("GELU by tanh in layer 12 of 24", on=deep, at="layers.12.act")
def deep_gelu(program: Program) -> None:
    program.model.layers[12].act.approximate = "tanh"


@PLANTED.divergence("another operation: SiLU where ReLU was meant", on=moe, at="moe1.experts.2.act")
def other_activation(program: Program) -> None:
    instead(program.model.moe1.experts[2].act, lambda _, x: F.silu(x))


@PLANTED.divergence("LeakyReLU with slope 0.01, not 0.2", on=gan, at="critic.1")
def slope(program: Program) -> None:
    program.model.critic[1].negative_slope = 0.01


@PLANTED.divergence("mean pooling where maximum was meant", on=resnet, at="pool")
def other_pool(program: Program) -> None:
    instead(program.model.pool, lambda _, x: F.avg_pool2d(x, 3, 2, padding=1))


@PLANTED.divergence("padding by reflection, not by zeros", on=unet, at="down2.0")
def padding(program: Program) -> None:
    def forward(m: nn.Conv2d, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), m.weight, m.bias)

    instead(program.model.down2[0], forward)


@PLANTED.divergence("upsampling with aligned corners", on=unet, at="up1")
def corners(program: Program) -> None:
    program.model.up1.align_corners = True


@PLANTED.divergence("upsampling by nearest neighbours", on=unet, at="up1")
def nearest(program: Program) -> None:
    program.model.up1.mode, program.model.up1.align_corners = "nearest", None


@PLANTED.divergence("GroupNorm with other groups", on=unet, at="right2.1")
def groups(program: Program) -> None:
    program.model.right2[1].num_groups = 4


@PLANTED.divergence("other random numbers in a dropout", on=tower, at="drop")
def other_dropout(program: Program) -> None:
    def forward(m: nn.Dropout, x: Tensor) -> Tensor:
        keep = torch.rand(x.shape, generator=torch.Generator().manual_seed(9)) > m.p
        return x * keep / (1 - m.p)

    instead(program.model.drop, forward)


@PLANTED.divergence("dropout is off on one side", on=gpt, at="transformer.h.0.attn.resid_dropout")
def no_dropout(program: Program) -> None:
    program.model.transformer.h[0].attn.resid_dropout.eval()


@PLANTED.divergence("stale running mean: batch norm without momentum", on=resnet, at="bn")
def stale_statistics(program: Program) -> None:
    program.model.bn.momentum = 0.0


@PLANTED.divergence("BatchNorm with momentum 0.2, not 0.1", on=gan, at="generator.1")
def other_momentum(program: Program) -> None:
    program.model.generator[1].momentum = 0.2


@PLANTED.divergence("input and forget gate of an LSTM are swapped", on=lstm, at="lstm")
def gates(program: Program) -> None:
    def forward(x: Tensor) -> tuple[Tensor, Any]:
        flat = list(program.model.lstm._flat_weights)  # noqa: SLF001
        turned = [torch.cat([p.chunk(4)[n] for n in (1, 0, 2, 3)]) for p in flat]
        state = torch.zeros(2, len(x), 24)
        found = torch.lstm(x, (state, state), turned, True, 2, 0.0, True, False, True)
        return found[0], found[1:]

    program.model.lstm.forward = forward


@PLANTED.divergence("the state of an LSTM begins with 1, not 0", on=lstm, at="lstm")
def state(program: Program) -> None:
    def forward(m: nn.LSTM, x: Tensor) -> Any:
        begin = torch.ones(2, len(x), 24)
        return nn.LSTM.forward(m, x, (begin, begin * 0))

    instead(program.model.lstm, forward)


@PLANTED.divergence("positions begin with 1: of an embedding", on=gpt, at="transformer.wpe")
def positions(program: Program) -> None:
    instead(program.model.transformer.wpe, lambda m, ids: F.embedding(ids + 1, m.weight))


@PLANTED.divergence("truncated embedding: the last tokens are one", on=decoder, at="embed")
def truncated(program: Program) -> None:
    instead(program.model.embed, lambda m, ids: F.embedding(ids.clamp(max=50), m.weight))


@PLANTED.divergence("NaN on one side: root of what is below 0", on=tower, at="act3")
def root(program: Program) -> None:
    instead(program.model.act3, lambda _, x: torch.where(x > 0, x, x.sqrt()))


@PLANTED.divergence("saturation where the other side overflows", on=encoder, at="head")
def saturated(program: Program) -> None:
    instead(program.model.head, lambda m, x: _wide(m, x).clamp(-65504, 65504))


def _overflowing(program: Program) -> None:
    instead(program.model.fc2, _wide)


def _wide(m: nn.Linear, x: Tensor) -> Tensor:
    return (F.linear(x, m.weight, m.bias).half() * 60_000).float()


def overflowing() -> Program:
    """Return a perceptron one layer of which overflows in float16."""
    program = tower()
    _overflowing(program)
    return program


@PLANTED.divergence("the largest number where the other side has Inf", on=overflowing, at="fc2")
def saturating(program: Program) -> None:
    def forward(m: nn.Linear, x: Tensor) -> Tensor:
        return torch.nan_to_num(_wide(m, x).half()).float()

    instead(program.model.fc2, forward)


@PLANTED.divergence("log of a probability without its floor", on=moe, at="norm2")
def infinite(program: Program) -> None:
    def forward(m: nn.LayerNorm, x: Tensor) -> Tensor:
        out = nn.LayerNorm.forward(m, x)
        return torch.where(out == out.min(), -math.inf, out)

    instead(program.model.norm2, forward)
