"""Other divergences in the forward, in other architectures."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.divergences.case import HELD_OUT, Program, instead
from benchmarks.divergences.held_out.models import (
    denoiser,
    graph,
    gru,
    llama,
    siamese,
    vae,
    vit,
)


@HELD_OUT.divergence(
    "RMSNorm with another epsilon (1e-5, not 1e-6)",
    on=llama,
    at="model.layers.1.post_attention_layernorm",
)
def rms_epsilon(program: Program) -> None:
    program.model.model.layers[1].post_attention_layernorm.variance_epsilon = 1e-5


@HELD_OUT.divergence(
    "rotary embedding in bfloat16",
    on=llama,
    at="model.rotary_emb",
)
def rotary_in_half(program: Program) -> None:
    rotary = program.model.model.rotary_emb
    told = rotary.forward
    rotary.forward = lambda *a, **k: tuple(x.bfloat16().float() for x in told(*a, **k))


@HELD_OUT.divergence(
    "rotation of the wrong half of query and key",
    on=llama,
    at=("model.layers.0.self_attn",),
)
def rotated_wrong(program: Program) -> None:
    import contextlib
    from collections.abc import Iterator

    from transformers.models.llama import modeling_llama

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        right = modeling_llama.rotate_half

        def wrong(x: Tensor) -> Tensor:
            first, second = x.chunk(2, -1)
            return torch.cat([second, -first], -1)

        modeling_llama.rotate_half = wrong
        try:
            yield
        finally:
            modeling_llama.rotate_half = right

    program.around = around


@HELD_OUT.divergence(
    "grouped keys: each query head gets the other group's key and value",
    on=llama,
    at=("model.layers.2.self_attn", "model.layers.2.self_attn.k_proj"),
)
def other_group(program: Program) -> None:
    attention = program.model.model.layers[2].self_attn
    for name in ("k_proj", "v_proj"):
        layer = getattr(attention, name)
        layer.register_forward_hook(
            lambda _m, _a, out: out.unflatten(-1, (2, -1)).flip(-2).flatten(-2)
        )


@HELD_OUT.divergence(
    "a shared encoder in eval mode: batch norm uses its running mean",
    on=siamese,
    at="encoder.2",
)
def eval_mode(program: Program) -> None:
    program.model.encoder[2].eval()


@HELD_OUT.divergence(
    "neighbours are summed, where their mean was meant",
    on=graph,
    at="first",
)
def sum_of_neighbours(program: Program) -> None:
    def forward(m: nn.Module, x: Tensor, edges: Tensor) -> Tensor:
        return m.own(x) + m.other(torch.zeros_like(x).index_add(0, edges[1], x[edges[0]]))

    instead(program.model.first, forward)


@HELD_OUT.divergence(
    "edges in the other direction in the second of two layers",
    on=graph,
    at=("", "second"),
)
def turned_edges(program: Program) -> None:
    told = program.model.second.forward
    program.model.second.forward = lambda x, edges: told(x, edges.flip(0))


@HELD_OUT.divergence(
    "groups of a depthwise convolution are shifted by one channel",
    on=denoiser,
    at="blocks.1.depthwise",
)
def shifted_groups(program: Program) -> None:
    def forward(m: nn.Module, x: Tensor) -> Tensor:
        return F.conv2d(x, m.weight.roll(1, 0), m.bias, padding=2, groups=m.groups)

    instead(program.model.blocks[1].depthwise, forward)


@HELD_OUT.divergence(
    "the time is added before the norm, not after it",
    on=denoiser,
    at=("blocks.2", "blocks.2.norm"),
)
def time_before_norm(program: Program) -> None:
    def forward(m: nn.Module, x: Tensor, time: Tensor) -> Tensor:
        h = m.norm(m.depthwise(x) + m.time(time)[..., None, None])
        return x + m.down(m.act(m.up(h)))

    instead(program.model.blocks[2], forward)


@HELD_OUT.divergence("dilation 1 where 2 was meant", on=gru, at="wide.1")
def dilation(program: Program) -> None:
    program.model.wide[1].dilation, program.model.wide[1].padding = (1,), (1,)


@HELD_OUT.divergence(
    "the backward direction of a GRU reads forward",
    on=gru,
    at="gru",
)
def one_direction(program: Program) -> None:
    gru_ = program.model.gru

    def forward(x: Tensor) -> tuple[Tensor, None]:
        out, _ = nn.GRU.forward(gru_, x)
        turned, _ = nn.GRU.forward(gru_, x.flip(1))
        return torch.cat([out[..., :24], turned[..., 24:]], -1), None

    gru_.forward = forward


@HELD_OUT.divergence("dropout scales by 1 - p once more", on=gru, at="drop")
def dropout_scale(program: Program) -> None:
    instead(program.model.drop, lambda m, x: F.dropout(x, m.p, m.training) * (1 - m.p))


@HELD_OUT.divergence(
    "tanh in float16",
    on=gru,
    at=("act",),
)
def tanh_in_half(program: Program) -> None:
    instead(program.model.act, lambda _, x: torch.tanh(x.half()).float())


@HELD_OUT.divergence(
    "the token of the class is at the end, not in front",
    on=vit,
    at="",
)
def token_last(program: Program) -> None:
    def forward(m: nn.Module, x: Tensor) -> Tensor:
        x = m.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([x, m.token.expand(len(x), -1, -1)], 1) + m.place
        for layer in m.layers:
            x = layer(x)
        return m.head(m.norm(x[:, -1]))

    instead(program.model, forward)


@HELD_OUT.divergence(
    "attention without the 1/sqrt(d), in torch's MultiheadAttention",
    on=vit,
    at="layers.1.attn",
)
def unscaled_attention(program: Program) -> None:
    attention = program.model.layers[1].attn

    def forward(q: Tensor, k: Tensor, v: Tensor, **_: object) -> tuple[Tensor, None]:
        parts = F.linear(q, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)
        q, k, v = (x.unflatten(-1, (4, -1)).transpose(1, 2) for x in parts)
        out = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        return attention.out_proj(out.transpose(1, 2).flatten(2)), None

    attention.forward = forward


@HELD_OUT.divergence(
    "other random numbers in the code of the model",
    on=vae,
    at="",
)
def other_noise(program: Program) -> None:
    def forward(m: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = m.encoder(x)
        mean, spread = m.mean(h), m.spread(h)
        drawn = torch.randn(mean.shape, generator=torch.Generator().manual_seed(7))
        return m.decoder(mean + drawn * (spread / 2).exp()), mean, spread

    instead(program.model, forward)


@HELD_OUT.divergence(
    "the log-variance is taken for the log of the standard deviation",
    on=vae,
    at="",
)
def log_of_what(program: Program) -> None:
    def forward(m: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = m.encoder(x)
        mean, spread = m.mean(h), m.spread(h)
        return m.decoder(mean + torch.randn_like(mean) * spread.exp()), mean, spread

    instead(program.model, forward)


@HELD_OUT.divergence(
    "a transposed convolution sums in bfloat16",
    on=vae,
    at="decoder.3",
)
def transposed_in_half(program: Program) -> None:
    def forward(m: nn.Module, x: Tensor) -> Tensor:
        found = F.conv_transpose2d(
            x.bfloat16(), m.weight.bfloat16(), m.bias.bfloat16(), stride=2, padding=1
        )
        return found.float()

    instead(program.model.decoder[3], forward)


@HELD_OUT.divergence(
    "gelu overflows to NaN for large inputs",
    on=vit,
    at="layers.2.act",
)
def nan_in_one(program: Program) -> None:
    def forward(_: nn.Module, x: Tensor) -> Tensor:
        return torch.where(x == x.max(), math.nan, F.gelu(x))

    instead(program.model.layers[2].act, forward)
