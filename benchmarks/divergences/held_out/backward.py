"""Other divergences in the backward, at the optimizer, and in what both were fed."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.divergences.case import HELD_OUT, Program, instead
from benchmarks.divergences.held_out.models import denoiser, graph, gru, llama, siamese, vae, vit


class _Straight(torch.autograd.Function):
    """An ELU whose backward takes its input for positive."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return F.elu(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


@HELD_OUT.divergence(
    "the backward of an activation is that of another", on=graph, at="act", phase="backward"
)
def straight(program: Program) -> None:
    instead(program.model.act, lambda _, x: _Straight.apply(x))


class _Lossy(torch.autograd.Function):
    """A linear map whose weight gradient is summed in bfloat16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        flat, told = grad.flatten(0, -2), x.flatten(0, -2)
        return grad @ weight, (flat.T.bfloat16() @ told.bfloat16()).float(), flat.sum(0)


@HELD_OUT.divergence(
    "the gradient of one weight is summed in bfloat16",
    on=vit,
    at="layers.1.fc1",
    phase="backward",
)
def weight_gradient_in_half(program: Program) -> None:
    instead(program.model.layers[1].fc1, lambda m, x: _Lossy.apply(x, m.weight, m.bias))


@HELD_OUT.divergence(
    "the shared projection learns from one of two inputs only",
    on=siamese,
    at=("", "projection"),
    phase="backward",
)
def one_of_two(program: Program) -> None:
    def forward(m: nn.Module, a: Tensor, b: Tensor) -> Tensor:
        left, right = (m.projection(m.encoder(x)) for x in (a, b))
        return F.cosine_similarity(left, right.detach(), dim=-1)

    instead(program.model, forward)


@HELD_OUT.divergence("Adam with beta2 0.99, not 0.999", on=denoiser, at="*", phase="optimizer")
def other_beta(program: Program) -> None:
    program.optimizer.param_groups[0]["betas"] = (0.9, 0.99)


@HELD_OUT.divergence("Nesterov momentum on one side", on=siamese, at="*", phase="optimizer")
def nesterov(program: Program) -> None:
    program.optimizer.param_groups[0]["nesterov"] = True


@HELD_OUT.divergence(
    "one matrix was not loaded from the checkpoint",
    on=llama,
    at="model.layers.1.mlp.gate_proj",
    phase="fed",
)
def not_loaded(program: Program) -> None:
    weight = program.model.model.layers[1].mlp.gate_proj.weight
    with torch.no_grad():
        weight.normal_(0, 0.02)


@HELD_OUT.divergence("a bias was loaded in bfloat16", on=vae, at="spread", phase="fed")
def bias_in_half(program: Program) -> None:
    with torch.no_grad():
        program.model.spread.bias.copy_(program.model.spread.bias.bfloat16())


@HELD_OUT.divergence("the tokens of the second step are shifted by one", on=gru, at="", phase="fed")
def shifted_tokens(program: Program) -> None:
    program.batches[1] = (program.batches[1][0].roll(1, 1),)
