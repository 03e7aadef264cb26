"""Pairs that compute the same, and round otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.divergences.case import PLANTED, Program, instead, lasting
from benchmarks.divergences.models import (
    Tower,
    adam,
    decoder,
    deep,
    encoder,
    gan,
    gpt,
    labelled,
    lstm,
    moe,
    resnet,
    tower,
    unet,
)
from benchmarks.divergences.planted.structure import renamed


def wide() -> Program:
    """Return a perceptron that is large enough for several threads."""
    model = Tower(512)
    batches = [(torch.randn(256, 32), torch.randint(0, 10, (256,))) for _ in range(3)]
    return Program(model, labelled, batches, adam(model))


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@PLANTED.rounding("two threads against one", on=wide)
def threads(program: Program) -> None:
    program.around = lambda: _threads(2)


def by_parts(model: nn.Module) -> None:
    """Sum every product of a linear layer in two halves, the second half first."""
    for module in model.modules():
        if type(module) is nn.Linear:
            instead(module, _halves)


def _halves(m: nn.Linear, x: Tensor) -> Tensor:
    cut = m.in_features // 2
    second = F.linear(x[..., cut:], m.weight[:, cut:])
    return second + F.linear(x[..., :cut], m.weight[:, :cut], m.bias)


@PLANTED.rounding("sums in two halves", on=decoder)
def halves(program: Program) -> None:
    by_parts(program.model)


@PLANTED.rounding("sums in two halves, 24 layers", on=deep)
def deep_halves(program: Program) -> None:
    by_parts(program.model)


@PLANTED.rounding("sums in two halves, 24 layers, eight steps", on=deep, both=lasting(8))
def long_halves(program: Program) -> None:
    by_parts(program.model)


@PLANTED.rounding("terms of every sum in another order", on=tower, both=lasting(10))
def permuted(program: Program) -> None:
    def forward(m: nn.Linear, x: Tensor) -> Tensor:
        by = torch.arange(m.in_features).flip(0)
        return F.linear(x[..., by], m.weight[:, by], m.bias)

    for module in program.model.modules():
        if type(module) is nn.Linear:
            instead(module, forward)


@PLANTED.rounding("products that are added up, not a product of matrices", on=encoder)
def added_up(program: Program) -> None:
    for module in program.model.modules():
        if type(module) is nn.Linear:
            instead(module, lambda m, x: (x[..., None, :] * m.weight).sum(-1) + m.bias)


@PLANTED.rounding("every sample of a batch by itself", on=unet)
def each_alone(program: Program) -> None:
    for module in program.model.modules():
        if type(module) is nn.Conv2d:
            instead(module, lambda m, x: torch.cat([_of(m, each) for each in x.split(1)]))


def _of(m: nn.Conv2d, x: Tensor) -> Tensor:
    return nn.Conv2d.forward(m, x)


@PLANTED.rounding("the samples of a batch in another order", on=resnet, whole=False)
def shuffled(program: Program) -> None:
    program.batches = [tuple(each.flip(0) for each in batch) for batch in program.batches]


@PLANTED.rounding("channels last", on=resnet, both=lasting(4))
def channels_last(program: Program) -> None:
    program.model.to(memory_format=torch.channels_last)


@PLANTED.rounding("convolutions as products of matrices", on=resnet)
def unfolded(program: Program) -> None:
    def forward(m: nn.Conv2d, x: Tensor) -> Tensor:
        size, stride = m.kernel_size[0], m.stride[0]
        columns = F.unfold(x, size, padding=m.padding[0], stride=stride)
        side = (x.shape[-1] + 2 * m.padding[0] - size) // stride + 1
        return (m.weight.flatten(1) @ columns).unflatten(-1, (side, side))

    for module in program.model.modules():
        if type(module) is nn.Conv2d:
            instead(module, forward)


@PLANTED.rounding("without oneDNN", on=unet)
def without_onednn(program: Program) -> None:
    program.around = lambda: torch.backends.mkldnn.flags(enabled=False)


@PLANTED.rounding("an LSTM as a loop over its cells", on=lstm)
def cells(program: Program) -> None:
    program.model.lstm.forward = lambda x: (_loop(program.model.lstm, x), None)


def _loop(m: nn.LSTM, x: Tensor) -> Tensor:
    for layer in range(m.num_layers):
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        w, u, b, c = (getattr(m, f"{name}_l{layer}") for name in names)
        h = s = torch.zeros(len(x), m.hidden_size)
        out = []
        for t in range(x.shape[1]):
            i, f, g, o = (x[:, t] @ w.T + b + h @ u.T + c).chunk(4, -1)
            s = f.sigmoid() * s + i.sigmoid() * g.tanh()
            h = o.sigmoid() * s.tanh()
            out.append(h)
        x = torch.stack(out, 1)
    return x


def _fusible(program: Program) -> None:
    program.steps = 4
    for block in program.model.transformer.h:
        block.attn.attn_dropout.p = 0.0  # with dropout nothing is fused


@PLANTED.rounding("fused attention against its formula", on=gpt, both=_fusible)
def fused_attention(program: Program) -> None:
    program.model.set_attn_implementation("sdpa")


@PLANTED.rounding("a fused optimizer against one that loops", on=decoder, both=lasting(5))
def fused_optimizer(program: Program) -> None:
    program.optimizer = adam(program.model, fused=True)


@PLANTED.rounding("GELU, SiLU and layer norm by their formulas", on=tower)
def formulas(program: Program) -> None:
    model: Any = program.model
    instead(model.act1, lambda _, x: 0.5 * x * (1 + torch.erf(x / 2**0.5)))
    instead(model.act2, lambda _, x: x / (1 + (-x).exp()))
    for norm in (model.norm1, model.norm2):
        instead(norm, _normal)


def _normal(m: nn.LayerNorm, x: Tensor) -> Tensor:
    spread, mean = torch.var_mean(x, -1, unbiased=False, keepdim=True)
    return (x - mean) / (spread + m.eps).sqrt() * m.weight + m.bias


@PLANTED.rounding("float64 against float32", on=resnet)
def doubled(program: Program) -> None:
    program.model.double()
    program.batches = [(x.double(), y) for x, y in program.batches]


@PLANTED.rounding("all in bfloat16 against float32", on=decoder)
def in_bfloat16(program: Program) -> None:
    program.model.to(torch.bfloat16)


@PLANTED.rounding("autocast to bfloat16 against float32", on=gan)
def autocast(program: Program) -> None:
    program.around = lambda: torch.autocast("cpu", torch.bfloat16)


def _plain(program: Program) -> None:
    program.optimizer = torch.optim.SGD(program.model.parameters(), 0.01)


@PLANTED.rounding(
    "all in float16 against float32",
    on=moe,
    both=_plain,
    corrected="Adam with an epsilon and second moments of 0 in float16 is no rounding: it gave NaN",
)
def in_float16(program: Program) -> None:
    program.model.half()


@PLANTED.rounding("the same under other names", on=tower)
def other_names(program: Program) -> None:
    renamed(program)


@PLANTED.rounding("twice the same", on=gan, both=lasting(3))
def twice(program: Program) -> None:
    program.compared = {}
