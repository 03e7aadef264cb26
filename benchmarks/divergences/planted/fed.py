"""What both began with, or were fed, is not the same."""

from __future__ import annotations

import torch

from benchmarks.divergences.case import PLANTED, Program
from benchmarks.divergences.models import decoder, encoder, gpt, resnet, tower


@PLANTED.divergence("all weights of a layer are off by 1e-3", on=gpt,
                    at="transformer.h.1.mlp.c_proj", phase="fed")  # fmt: skip
def perturbed(program: Program) -> None:
    weight = program.model.transformer.h[1].mlp.c_proj.weight
    with torch.no_grad():
        weight.mul_(1 + 1e-3)


@PLANTED.divergence("a layer was not copied", on=resnet, at="layers.2.conv1", phase="fed")
def not_copied(program: Program) -> None:
    with torch.no_grad():
        program.model.layers[2].conv1.weight.normal_(0, 0.1)


@PLANTED.divergence(
    "a layer was loaded transposed", on=decoder, at="layers.1.q", phase=("fed", "forward")
)
def loaded_transposed(program: Program) -> None:
    weight = program.model.layers[1].q.weight
    with torch.no_grad():
        weight.copy_(weight.t().clone())


@PLANTED.divergence("a buffer of positions is one place off", on=encoder, at="", phase="fed")
def places(program: Program) -> None:
    program.model.places.copy_(program.model.places.roll(1, 0) + 0.01)


@PLANTED.divergence("one batch is normalised otherwise", on=tower, at="", phase="fed")
def data(program: Program) -> None:
    x, y = program.batches[0]
    program.batches[0] = (x * 1.01, y)


@PLANTED.divergence("running mean was not loaded", on=resnet, at="layers.1.bn2", phase="fed")
def running_mean(program: Program) -> None:
    program.model.layers[1].bn2.running_mean.add_(0.1)
