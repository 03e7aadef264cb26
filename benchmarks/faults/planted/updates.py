"""Faults that only the optimizer makes, or that only show where it steps."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.faults.blocks import (
    ConvNet,
    ResNet,
    Transformer,
    digits,
    mlp,
    token_loss,
    tokens,
    train,
)
from benchmarks.faults.case import PLANTED, Program
from benchmarks.faults.proofs import moves_faster, never_moves


@PLANTED.fault(
    "frozen by mistake: one block in the middle does not require gradients",
    at=("blocks.1.mlp", "blocks.1.mlp.*"),
    kinds=("frozen", "stuck", "unused"),
    proof=never_moves(*(f"blocks.1.mlp.{n}.{leaf}" for n in (0, 2) for leaf in ("weight", "bias"))),
)
def frozen_by_mistake(*, broken: bool) -> Program:
    model = Transformer()
    if broken:
        model.blocks[1].mlp.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    return train(model, optimizer, tokens(), token_loss)


@PLANTED.fault(
    "a new head that the optimizer was never given",
    at="head",
    kinds=("stuck", "frozen"),
    proof=never_moves("head.weight", "head.bias"),
)
def head_not_in_the_optimizer(*, broken: bool) -> Program:
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    if broken:
        model.head = nn.Linear(8, 10)
    return train(model, optimizer, digits())


@PLANTED.fault(
    "the learning rate of one group is a hundred times too large",
    at=("conv2",),
    kinds=("ratio", "exploding", "sudden"),
    proof=moves_faster("conv2.", 5),
)
def learning_rate_100x(*, broken: bool) -> Program:
    model = ConvNet()
    rest = [p for name, p in model.named_parameters() if not name.startswith("conv2")]
    groups = [
        {"params": rest},
        {"params": model.conv2.parameters(), "lr": 1e-1 if broken else 1e-3},
    ]
    return train(model, torch.optim.Adam(groups, 1e-3), digits(), steps=20)


@PLANTED.fault(
    "a learning rate of 0 in one group",
    at=("blocks.0", "blocks.0.*"),
    kinds=("stuck", "ratio", "frozen"),
    proof=lambda t: (
        {n.rpartition(".")[0] for n, steps in t.moved.items() if not any(steps)}
        == {n.rpartition(".")[0] for n in t.moved if n.startswith("blocks.0.")}
    ),
)
def learning_rate_zero(*, broken: bool) -> Program:
    model = Transformer()
    rest = [p for name, p in model.named_parameters() if not name.startswith("blocks.0.")]
    groups = [
        {"params": rest},
        {"params": model.blocks[0].parameters(), "lr": 0.0 if broken else 5e-4},
    ]
    return train(model, torch.optim.AdamW(groups, 1e-3), tokens(), token_loss)


@PLANTED.fault(
    "Adam with eps=0: 0/0 where a row of the embedding has no gradient",
    at="embed",
    kinds="nonfinite",
    proof=lambda t: (
        (first := t.first_bad()) is not None and (first.role, first.module) == ("param", "embed")
    ),
)
def adam_without_eps(*, broken: bool) -> Program:
    model = Transformer(vocabulary=30)
    model.position.requires_grad_(False)
    batches = tokens()  # tokens 20 to 29 never appear
    optimizer = torch.optim.Adam(
        [
            {"params": model.embed.parameters(), "eps": 0.0 if broken else 1e-8},
            {
                "params": [
                    p
                    for n, p in model.named_parameters()
                    if n not in {"embed.weight", "position.weight"}
                ]
            },
        ],
        1e-3,
    )
    return train(model, optimizer, batches, token_loss)


@PLANTED.fault(
    "weight decay far too large: one part shrinks to nothing",
    at=("features", "features.*"),
    kinds=("ratio", "vanishing", "sudden", "exploding"),
    proof=lambda t: (
        max(t.absmax("param", "features.0", "weight")[-1:]) < 5e-3
        and max(t.absmax("param", "head", "weight")[-1:]) > 1e-2
    ),
)
def weight_decay_too_large(*, broken: bool) -> Program:
    model = nn.Sequential()
    model.add_module("flatten", nn.Flatten())
    model.add_module("features", mlp(64, 32, 32))
    model.add_module("act", nn.ReLU())
    model.add_module("head", nn.Linear(32, 10))
    groups = [
        {"params": model.features.parameters(), "weight_decay": 400.0 if broken else 0.01},
        {"params": model.head.parameters(), "weight_decay": 0.01},
    ]
    return train(model, torch.optim.AdamW(groups, 1e-3), digits(), steps=24)


class GAN(nn.Module):
    """Both nets in one module, so that one watch sees both."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = mlp(8, 32, 64)
        self.discriminator = mlp(64, 32, 1, act=nn.LeakyReLU)


def gan(model: GAN, batches: list[tuple[Tensor, Tensor]], of_d: list[nn.Parameter]) -> Program:
    """Return the usual loop of two optimizers."""
    g = torch.optim.Adam(model.generator.parameters(), 1e-3, (0.5, 0.999))
    d = torch.optim.Adam(of_d, 1e-3, (0.5, 0.999))
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)

    def step(number: int) -> None:
        real = batches[number % len(batches)][0].flatten(1)
        fake = model.generator(torch.randn(64, 8)).sigmoid()
        d.zero_grad()
        loss = F.binary_cross_entropy_with_logits
        both = loss(model.discriminator(real), ones) + loss(
            model.discriminator(fake.detach()), zeros
        )
        both.backward()
        d.step()
        g.zero_grad()
        loss(model.discriminator(fake), ones).backward()
        g.step()

    return Program(model, step, [d, g], 16)


@PLANTED.fault(
    "GAN: the discriminator's optimizer was given the generator's parameters",
    at=("discriminator", "discriminator.*"),
    kinds=("stuck", "frozen"),
    proof=never_moves(
        *(f"discriminator.{n}.{leaf}" for n in (0, 2) for leaf in ("weight", "bias"))
    ),
)
def gan_steps_the_wrong_net(*, broken: bool) -> Program:
    model = GAN()
    of_d = (model.generator if broken else model.discriminator).parameters()
    return gan(model, digits(), list(of_d))
