"""Other pairs that only rounding parts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.divergences.case import HELD_OUT, Program, instead, lasting
from benchmarks.divergences.held_out.models import denoiser, graph, gru, llama, siamese, vit


@HELD_OUT.rounding("all in bfloat16 against float32", on=llama)
def llama_in_bfloat16(program: Program) -> None:
    program.model.to(torch.bfloat16)


@HELD_OUT.rounding("fused attention against its formula", on=llama)
def llama_fused(program: Program) -> None:
    program.model.set_attn_implementation("sdpa")


@HELD_OUT.rounding("edges in another order", on=graph, whole=False)
def edges_sorted(program: Program) -> None:
    for place, (x, edges, labels) in enumerate(program.batches):
        program.batches[place] = (x, edges[:, edges[1].argsort()], labels)


@HELD_OUT.rounding("channels last", on=denoiser)
def last_channels(program: Program) -> None:
    program.model.to(memory_format=torch.channels_last)


@HELD_OUT.rounding("without oneDNN, five steps", on=gru, both=lasting(5))
def without_onednn(program: Program) -> None:
    program.around = lambda: torch.backends.mkldnn.flags(enabled=False)


@HELD_OUT.rounding("attention by its formula, GELU by erf", on=vit)
def by_formula(program: Program) -> None:
    for layer in program.model.layers:
        instead(layer.act, lambda _, x: x * 0.5 * (1 + torch.erf(x * 0.5**0.5)))
        instead(layer.attn, _attention)


def _attention(
    m: nn.MultiheadAttention, q: Tensor, k: Tensor, v: Tensor, **_: object
) -> tuple[Tensor, None]:
    parts = F.linear(q, m.in_proj_weight, m.in_proj_bias).chunk(3, -1)
    q, k, v = (x.unflatten(-1, (4, -1)).transpose(1, 2) for x in parts)
    out = ((q / q.shape[-1] ** 0.5) @ k.transpose(-1, -2)).softmax(-1) @ v
    return m.out_proj(out.transpose(1, 2).flatten(2)), None


@HELD_OUT.rounding("float64 against float32, four steps", on=siamese, both=lasting(4))
def doubled(program: Program) -> None:
    program.model.double()
    program.batches = [tuple(x.double() for x in batch) for batch in program.batches]


def _plain(program: Program) -> None:
    program.optimizer = torch.optim.SGD(program.model.parameters(), 0.01)


@HELD_OUT.rounding(
    "float16 against float32",
    on=vit,
    both=_plain,
    corrected="Adam with an epsilon and second moments of 0 in float16 is no rounding: it gave NaN",
)
def in_float16(program: Program) -> None:
    program.model.half()
    for place, (x, y) in enumerate(program.batches):
        program.batches[place] = (x.half(), y)
