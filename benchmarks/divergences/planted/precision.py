"""One layer rounds more than the rest."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.divergences.case import PLANTED, Program, instead
from benchmarks.divergences.models import deep, lstm, resnet, tower, unet


@PLANTED.divergence("one product in float16", on=tower, at="fc2")
def half(program: Program) -> None:
    def forward(m: nn.Linear, x: Tensor) -> Tensor:
        return F.linear(x.half(), m.weight.half(), m.bias.half()).float()

    instead(program.model.fc2, forward)


@PLANTED.divergence("one sum in bfloat16, term by term", on=lstm, at="head")
def summed_in_half(program: Program) -> None:
    def forward(m: nn.Linear, x: Tensor) -> Tensor:
        total = m.bias.bfloat16()
        for n in range(m.in_features):
            total = total + (x[..., n, None] * m.weight[:, n]).bfloat16()
        return total.float()

    instead(program.model.head, forward)


@PLANTED.divergence("one product in float16, in layer 18 of 24", on=deep, at="layers.18.down")
def deep_half(program: Program) -> None:
    def forward(m: nn.Linear, x: Tensor) -> Tensor:
        return F.linear(x.half(), m.weight.half(), m.bias.half()).float()

    instead(program.model.layers[18].down, forward)


@PLANTED.divergence("weights are rounded to 8 bits in the forward", on=resnet, at="layers.0.conv2")
def quantised(program: Program) -> None:
    def forward(m: nn.Conv2d, x: Tensor) -> Tensor:
        step = m.weight.abs().max() / 127
        return F.conv2d(x, (m.weight / step).round() * step, m.bias, padding=1)

    instead(program.model.layers[0].conv2, forward)


@PLANTED.divergence("a transposed convolution in bfloat16", on=unet, at="up2")
def transposed_in_half(program: Program) -> None:
    def forward(m: nn.ConvTranspose2d, x: Tensor) -> Tensor:
        weights = (each.bfloat16() for each in (m.weight, m.bias))
        return F.conv_transpose2d(x.bfloat16(), *weights, stride=2).float()

    instead(program.model.up2, forward)


@PLANTED.divergence("the variance of a layer norm in float16", on=lstm, at="norm")
def variance(program: Program) -> None:
    def forward(m: nn.LayerNorm, x: Tensor) -> Tensor:
        half = x.half()
        centred = half - half.mean(-1, keepdim=True)
        spread = centred.square().mean(-1, keepdim=True).float()
        return centred.float() * torch.rsqrt(spread + m.eps) * m.weight + m.bias

    instead(program.model.norm, forward)
