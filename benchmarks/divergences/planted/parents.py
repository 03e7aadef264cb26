"""The code of a module that has modules inside it does something else."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.divergences.case import PLANTED, Batch, Program, instead
from benchmarks.divergences.models import (
    Block,
    Mixture,
    Residual,
    decoder,
    deep,
    encoder,
    gpt,
    moe,
    resnet,
    unet,
)


@PLANTED.divergence("swapped heads", on=decoder, at="layers.1")
def heads(program: Program) -> None:
    block = program.model.layers[1]
    block.attention = lambda q, k, v: Block.attention(block, q, k.flip(1), v)


@PLANTED.divergence("heads are split the other way round", on=decoder, at="layers.0")
def split(program: Program) -> None:
    block = program.model.layers[0]
    block.split = lambda x: x.unflatten(-1, (-1, block.heads)).permute(0, 3, 1, 2)


@PLANTED.divergence("attention is scaled by the wrong width", on=decoder, at="layers.2")
def factor(program: Program) -> None:
    program.model.layers[2].scale = 32**-0.5


@PLANTED.divergence("attention is scaled 1 % more, in layer 20 of 24", on=deep, at="layers.20")
def deep_factor(program: Program) -> None:
    program.model.layers[20].scale *= 1.01


@PLANTED.divergence("softmax along the wrong dimension", on=decoder, at="layers.1")
def dimension(program: Program) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
        scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~mask, -1e9)
        return (scores.softmax(-2) @ v).transpose(1, 2).flatten(2)

    program.model.layers[1].attention = attention


@PLANTED.divergence("each token sees one more", on=decoder, at="layers.0")
def mask(program: Program) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril(1)
        scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~seen, -math.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    program.model.layers[0].attention = attention


@PLANTED.divergence("softmax is computed in bfloat16", on=decoder, at="layers.1")
def soft_half(program: Program) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
        scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~seen, -math.inf)
        return (scores.bfloat16().softmax(-1).float() @ v).transpose(1, 2).flatten(2)

    program.model.layers[1].attention = attention


@PLANTED.divergence("padding is not masked", on=encoder, at=("", "encoder*"))
def unmasked(program: Program) -> None:
    def forward(m: nn.Module, ids: Tensor) -> Tensor:
        x = m.embed(ids) * math.sqrt(m.embed.embedding_dim) + m.places[: ids.shape[1]]
        return m.head(m.encoder(x, src_key_padding_mask=ids < 0))

    instead(program.model, forward)


@PLANTED.divergence("embedding is not scaled by the root of the width", on=encoder, at="")
def unscaled(program: Program) -> None:
    def forward(m: nn.Module, ids: Tensor) -> Tensor:
        x = m.embed(ids) + m.places[: ids.shape[1]]
        return m.head(m.encoder(x, src_key_padding_mask=ids == 0))

    instead(program.model, forward)


@PLANTED.divergence(
    "attention of GPT-2 is scaled by its layer too", on=gpt, at="transformer.h.1.attn"
)
def by_layer(program: Program) -> None:
    attention = program.model.transformer.h[1].attn
    attention.scale_attn_by_inverse_layer_idx = True
    attention.scaling = getattr(attention, "scaling", attention.head_dim**-0.5) / 2


@PLANTED.divergence("position ids begin with 1", on=gpt, at=("", "transformer"))
def position_ids(program: Program) -> None:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        places = torch.arange(1, batch[0].shape[1] + 1)[None]
        return model(input_ids=batch[0], labels=batch[0], position_ids=places).loss

    program.loss = loss


@PLANTED.divergence("missing residual", on=resnet, at="layers.2")
def no_residual(program: Program) -> None:
    instead(program.model.layers[2], lambda m, x: m.relu(m.bn2(m.conv2(m.relu(m.bn1(m.conv1(x)))))))


@PLANTED.divergence("in-place ReLU before the sum, not after it", on=resnet, at="layers.1")
def order(program: Program) -> None:
    def forward(m: Residual, x: Tensor) -> Tensor:
        return m.relu(m.bn2(m.conv2(m.relu(m.bn1(m.conv1(x)))))) + m.down(x)

    instead(program.model.layers[1], forward)


@PLANTED.divergence("what was seen on the way down is put on the other side", on=unet, at="")
def sides(program: Program) -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        first = m.down1(x)
        second = m.down2(m.pool(first))
        x = m.middle(m.pool(second))
        x = m.right2(torch.cat([m.up2(x), second], 1))
        return m.last(m.right1(torch.cat([first, m.up1(x)], 1)))

    instead(program.model, forward)


@PLANTED.divergence("weights of the experts are not normalised", on=moe, at="moe2")
def weights(program: Program) -> None:
    def forward(m: Mixture, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        share, chosen = m.router(flat).softmax(-1).topk(2)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(m.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, token, expert(flat[token]) * share[token, place, None])
        return out.view_as(x)

    instead(program.model.moe2, forward)


@PLANTED.divergence("each token goes to one expert, not two", on=moe, at="moe1*")
def one_expert(program: Program) -> None:
    def forward(m: Mixture, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        share, chosen = m.router(flat).softmax(-1).topk(1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(m.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, token, expert(flat[token]) * (share / share)[token, place, None])
        return out.view_as(x)

    instead(program.model.moe1, forward)


@PLANTED.divergence("bfloat16 between two layers", on=decoder, at="")
def cast(program: Program) -> None:
    def forward(m: Any, ids: Tensor) -> Tensor:
        x = m.embed(ids) + m.place(torch.arange(ids.shape[1]))
        x = m.layers[1](m.layers[0](x)).bfloat16().float()
        return m.head(m.norm(m.layers[2](x)))

    instead(program.model, forward)
