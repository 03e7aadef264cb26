"""Healthy models in which a part has no effect, by design: what cancels must raise no alarm."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.faults.blocks import digits, mlp, train
from benchmarks.faults.case import PLANTED, Program


class Vgg(nn.Sequential):
    def __init__(self, *channels: int) -> None:
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise((1, *channels)):
            layers += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(b, 10))


@PLANTED.sound("VGG with BatchNorm, and biases before it, SGD with a small learning rate")
def vgg() -> Program:
    model = Vgg(8, 16, 16, 16)
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    return train(model, optimizer, digits(), steps=30)


@PLANTED.sound("a head that compares two batches: what is the same in both cancels")
def compared_means() -> Program:
    model = mlp(6, 32, 32, 1, act=nn.LeakyReLU)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    ours, theirs = torch.randn(20, 64, 6), torch.randn(20, 64, 6) * 1.5 + 0.5

    def step(number: int) -> Tensor:
        optimizer.zero_grad()
        apart = model(ours[number]).mean() - model(theirs[number]).mean()
        loss = F.softplus(apart) + 0.1 * apart.square()
        loss.backward()
        optimizer.step()
        return loss

    return Program(model, step, optimizer, 20)


@PLANTED.sound("weights that are kept within bounds after every step, where many of them stay")
def bounded_weights() -> Program:
    model = nn.Sequential(nn.Flatten(), *mlp(64, 48, 48, 10, act=nn.Tanh))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    inner = train(model, optimizer, digits())

    def step(number: int) -> object:
        loss = inner.step(number)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.1, 0.1)
        return loss

    return Program(model, step, optimizer, 30)


@PLANTED.sound("BatchNorm behind biases, small learning rate: their gradient is rounding noise")
def bias_that_cancels() -> Program:
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Tanh()),
        *(nn.Conv2d(16, 16, 3, stride=2), nn.BatchNorm2d(16), nn.Tanh()),
        *(nn.Flatten(), nn.Linear(144, 10)),
    )
    return train(model, torch.optim.SGD(model.parameters(), 0.01), digits(128, 10), steps=40)


@PLANTED.sound(
    "two domains made alike by a critic, whose last bias cancels in its own loss", learns=False
)
def domains() -> Program:
    features, critic = mlp(6, 24, 8), mlp(8, 24, 1)
    model = nn.ModuleDict({"features": features, "critic": critic})
    of_f = torch.optim.SGD(features.parameters(), 0.02)
    of_c = torch.optim.SGD(critic.parameters(), 0.02)
    ours, theirs = torch.randn(20, 64, 6), torch.randn(20, 64, 6) * 1.5 + 0.5

    def step(number: int) -> None:
        a, b = features(ours[number]), features(theirs[number])
        of_c.zero_grad()
        (critic(a.detach()).mean() - critic(b.detach()).mean()).backward()
        of_c.step()
        of_f.zero_grad()
        critic(b).mean().sub(1).square().backward()
        of_f.step()

    return Program(model, step, [of_c, of_f], 20)
