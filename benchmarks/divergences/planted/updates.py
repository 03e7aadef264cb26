"""Forward and backward are the same, and the parameters move otherwise."""

from __future__ import annotations

import torch

from benchmarks.divergences.case import PLANTED, Program
from benchmarks.divergences.models import decoder, encoder, gan, gpt, lstm, moe, resnet, tower, unet


@PLANTED.divergence("Adam with epsilon 1e-4, not 1e-8", on=tower, at="*", phase="optimizer")
def adam_epsilon(program: Program) -> None:
    program.optimizer.param_groups[0]["eps"] = 1e-4


@PLANTED.divergence("Adam with epsilon 1e-7, not 1e-8", on=gpt, at="*", phase="optimizer")
def small_adam_epsilon(program: Program) -> None:
    program.optimizer.param_groups[0]["eps"] = 1e-7


@PLANTED.divergence("Adam with beta1 0.8, not 0.9", on=lstm, at="*", phase="optimizer")
def beta(program: Program) -> None:
    program.optimizer.param_groups[0]["betas"] = (0.8, 0.999)


@PLANTED.divergence("weight decay 0.1, not 0.01", on=decoder, at="*", phase="optimizer")
def decay(program: Program) -> None:
    program.optimizer.param_groups[0]["weight_decay"] = 0.1


@PLANTED.divergence("Adam where AdamW was meant", on=encoder, at="*", phase="optimizer")
def not_decoupled(program: Program) -> None:
    program.optimizer = torch.optim.Adam(program.model.parameters(), lr=1e-3, weight_decay=0.01)


@PLANTED.divergence("Adam's epsilon is 0 in float16", on=moe, at="*", phase="optimizer")
def no_epsilon(program: Program) -> None:
    program.model.half()


@PLANTED.divergence("SGD without its momentum", on=resnet, at="*", phase="optimizer")
def momentum(program: Program) -> None:
    program.optimizer.param_groups[0]["momentum"] = 0.0


@PLANTED.divergence("gradients are clipped on one side", on=unet, at="*", phase="optimizer")
def clipped(program: Program) -> None:
    program.clip = 0.01


def accumulated() -> Program:
    """Return a transformer whose batches come in two parts."""
    program = decoder()
    program.parts = 2
    return program


@PLANTED.divergence(
    "the gradients of the first part of a batch are lost",
    on=accumulated,
    at="*",
    phase=("optimizer", "backward"),
)
def lost(program: Program) -> None:
    program.forgets = True


@PLANTED.divergence("the loss is twice as large", on=gan, at="*", phase="backward")
def doubled(program: Program) -> None:
    program.scale = 2.0


@PLANTED.divergence("the loss is a sum of parts, not their mean", on=accumulated, at="*",
                    phase="backward")  # fmt: skip
def summed(program: Program) -> None:
    program.scale = 2.0
