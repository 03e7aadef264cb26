"""Models that train as they should."""

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
from benchmarks.faults.planted.forward import VAE, vae_loss
from benchmarks.faults.planted.updates import GAN, gan
from benchmarks.faults.planted.values import Tagger


@PLANTED.sound("CNN on the digits, Adam")
def digits_cnn() -> Program:
    model = ConvNet()
    return train(model, torch.optim.Adam(model.parameters(), 3e-3), digits(), steps=30)


@PLANTED.sound("small causal transformer, copies tokens, AdamW")
def copying_transformer() -> Program:
    model = Transformer()
    return train(model, torch.optim.AdamW(model.parameters(), 3e-3), tokens(), token_loss, steps=30)


@PLANTED.sound("small ResNet with BatchNorm, SGD with momentum, evaluated in between")
def resnet() -> Program:
    model, batches = ResNet(), digits()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    inner = train(model, optimizer, batches).step

    def step(number: int) -> object:
        model.train()
        loss = inner(number)
        if number % 10 == 9:
            model.eval()
            with torch.no_grad():
                model(batches[19][0])
        return loss

    return Program(model, step, optimizer, 30)


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 32, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x.squeeze(1))[0][:, -1])


@PLANTED.sound("LSTM of two layers, rows of the digits, gradients clipped")
def lstm() -> Program:
    model, batches = Digits(), digits()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)

    def step(number: int) -> Tensor:
        x, y = batches[number % 20]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return Program(model, step, optimizer, 30)


def _mixed(dtype: torch.dtype) -> Program:
    model, batches = nn.Sequential(nn.Flatten(), *mlp(64, 64, 64, 10)), digits()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)

    def step(number: int) -> Tensor:
        x, y = batches[number % 20]
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Program(model, step, optimizer, 30, scaler)


@PLANTED.sound("MLP under autocast, float16, with a GradScaler")
def autocast_float16() -> Program:
    return _mixed(torch.float16)


@PLANTED.sound("MLP under autocast, bfloat16")
def autocast_bfloat16() -> Program:
    return _mixed(torch.bfloat16)


@PLANTED.sound("a frozen backbone, on purpose; its head is trained")
def frozen_backbone() -> Program:
    model = ResNet()
    train(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), digits(), steps=25).run()
    model.requires_grad_(False)
    model.head = nn.Linear(8, 10)
    model.eval()
    optimizer = torch.optim.Adam(model.head.parameters(), 2e-2)
    return train(model, optimizer, digits(), steps=30)


@PLANTED.sound("GAN of two small MLPs, two optimizers", learns=False)
def healthy_gan() -> Program:
    model = GAN()
    return gan(model, digits(), list(model.discriminator.parameters()))


@PLANTED.sound("VAE on the digits")
def healthy_vae() -> Program:
    model = VAE()
    batches = [(x, x) for x, _ in digits()]
    return train(model, torch.optim.Adam(model.parameters(), 1e-3), batches, vae_loss, steps=30)


@PLANTED.sound("GRU tagger, gradients accumulated over two batches")
def accumulated_gru() -> Program:
    model, batches = Tagger(), tokens()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)

    def step(number: int) -> Tensor:
        optimizer.zero_grad()
        for half in range(2):
            x, y = batches[(2 * number + half) % 20]
            loss = token_loss(model(x), y) / 2
            loss.backward()
        optimizer.step()
        return loss

    return Program(model, step, optimizer, 20)
