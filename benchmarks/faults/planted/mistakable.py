"""Healthy models that look ill: what is on purpose in them, or harmless, must raise no alarm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.faults.blocks import (
    ConvNet,
    ResNet,
    Transformer,
    counting,
    digits,
    mlp,
    token_loss,
    tokens,
    train,
)
from benchmarks.faults.case import PLANTED, Program


@PLANTED.sound("convolutions with a bias that the BatchNorm after them takes away again")
def bias_before_batchnorm() -> Program:
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16, 10)),
    )
    return train(model, torch.optim.SGD(model.parameters(), 0.05), digits(), steps=20)


@PLANTED.sound("residual blocks that begin as the identity: their last norm is set to zero")
def zero_init_residual() -> Program:
    model = ResNet()
    for block in model.blocks:
        nn.init.zeros_(block.bn2.weight)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    return train(model, optimizer, digits(), steps=30)


@PLANTED.sound("a warm-up whose first learning rate is 0")
def warm_up_from_zero() -> Program:
    model, batches = Transformer(), counting()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))
    inner = train(model, optimizer, batches, token_loss)

    def step(number: int) -> object:
        loss = inner.step(number)
        schedule.step()
        return loss

    return Program(model, step, optimizer, 24)


@PLANTED.sound("trained to the end: the loss is almost 0, and so are the gradients", learns=False)
def converged() -> Program:
    model = mlp(64, 64, 10)
    batches = [(x.flatten(1), y) for x, y in digits(64, 2)]
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    train(model, optimizer, batches, steps=300).run()
    return train(model, optimizer, batches, steps=30)


@PLANTED.sound("a GradScaler that begins too high, skips some steps and finds its scale")
def scale_found() -> Program:
    model, batches = nn.Sequential(nn.Flatten(), *mlp(64, 64, 10)), digits()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)

    def step(number: int) -> Tensor:
        x, y = batches[number % 20]
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Program(model, step, optimizer, 30, scaler)


@PLANTED.sound("fine-tuning with a learning rate of 1e-5", learns=False)
def fine_tuned() -> Program:
    model, batches = Transformer(), counting()
    train(model, torch.optim.AdamW(model.parameters(), 1e-2), batches, token_loss, steps=20).run()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5, weight_decay=0.0)
    return train(model, optimizer, batches, token_loss, steps=20)


class Tied(Transformer):
    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.embed.weight


@PLANTED.sound("a language model whose head shares its weights with the embedding")
def tied_weights() -> Program:
    model = Tied()
    nn.init.normal_(model.embed.weight, std=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    return train(model, optimizer, counting(), token_loss, steps=20)


@PLANTED.sound("inputs in their own units, up to 1e5, that a BatchNorm takes first")
def large_inputs() -> Program:
    model = nn.Sequential(nn.BatchNorm1d(6), *mlp(6, 32, 1))
    units = torch.tensor([1e5, 3e4, 1.0, 0.1, 1e3, 50.0])
    x = torch.randn(20, 64, 6)
    y = x[..., :2].sum(-1, keepdim=True)
    batches = list(zip(x * units, y, strict=True))
    return train(model, torch.optim.Adam(model.parameters(), 1e-2), batches, F.mse_loss, steps=30)


class SparseFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Dropout(0.8)
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = (x.flatten(1) > 0.5).float()
        return self.net(self.mask(x))


@PLANTED.sound("inputs that are zeros for the most part, and much dropout")
def mostly_zeros() -> Program:
    model = SparseFeatures()
    return train(model, torch.optim.Adam(model.parameters(), 3e-3), digits(), steps=30)


@PLANTED.sound("hinge loss: no gradient at all in batches that are right by a margin")
def hinge() -> Program:
    model = nn.Linear(8, 1)
    x = torch.randn(20, 32, 8)
    side = x[..., :1].sign()
    x[..., :1] += side
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    batches = list(zip(x, side, strict=True))
    return train(model, optimizer, batches, lambda out, y: F.relu(1 - out * y).mean(), steps=30)


@PLANTED.sound("inference alone, of a trained model, in evaluation mode", learns=False)
def inference() -> Program:
    model, batches = ResNet(), digits()
    train(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), batches, steps=20).run()
    model.eval()

    def step(number: int) -> Tensor:
        x, y = batches[number]
        with torch.inference_mode():
            return F.cross_entropy(model(x), y)

    return Program(model, step, None, 10)


@PLANTED.sound("a teacher that is watched with its pupil, and takes no gradient")
def teacher_and_pupil() -> Program:
    model = nn.ModuleDict({"teacher": ConvNet(), "pupil": mlp(64, 16, 10)})
    batches = digits()
    teacher, pupil = model["teacher"], model["pupil"]
    train(teacher, torch.optim.Adam(teacher.parameters(), 3e-3), batches, steps=30).run()
    optimizer = torch.optim.Adam(pupil.parameters(), 1e-2)

    def step(number: int) -> Tensor:
        x, _ = batches[number % 20]
        with torch.no_grad():
            target = teacher(x).softmax(-1)
        loss = F.cross_entropy(pupil(x.flatten(1)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return Program(model, step, optimizer, 20)


@PLANTED.sound("LBFGS, which calls its closure many times a step")
def lbfgs() -> Program:
    model = mlp(64, 16, 10, act=nn.Tanh)
    batches = [(x.flatten(1), y) for x, y in digits()]
    optimizer = torch.optim.LBFGS(model.parameters(), 0.5, max_iter=4)

    def step(_: int) -> Tensor:
        x, y = batches[0]

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return Program(model, step, optimizer, 8)


@PLANTED.sound("sentences of different lengths: padding is masked, and its embedding is zero")
def padded() -> Program:
    model, batches = Transformer(), tokens()
    model.embed = nn.Embedding(20, 32, padding_idx=0)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    lengths = torch.randint(3, 13, (20, 16))

    def step(number: int) -> Tensor:
        ids, labels = batches[number % 20]
        keep = torch.arange(12) < lengths[number % 20][:, None]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids * keep, keep)[keep], labels[keep])
        loss.backward()
        optimizer.step()
        return loss

    return Program(model, step, optimizer, 24)


@PLANTED.sound("a transformer with SGD: attention does not feel the bias of its keys")
def bias_of_keys() -> Program:
    model = Transformer()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    return train(model, optimizer, counting(), token_loss, steps=24)


@PLANTED.sound("ranking pairs: the last bias cancels")
def ranking() -> Program:
    model = mlp(8, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    a, b = torch.randn(2, 20, 64, 8)
    better = (a - b)[..., :2].sum(-1, keepdim=True).sign()

    def step(number: int) -> Tensor:
        optimizer.zero_grad()
        loss = F.softplus(-better[number] * (model(a[number]) - model(b[number]))).mean()
        loss.backward()
        optimizer.step()
        return loss

    return Program(model, step, optimizer, 20)


@PLANTED.sound("regression of large targets, around 100, the mean of which the last bias begins at")
def large_targets() -> Program:
    model = mlp(4, 32, 1)
    nn.init.constant_(model[2].bias, 100.0)
    x = torch.randn(20, 64, 4)
    y = 100 + 10 * x[..., :1]
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    batches = list(zip(x, y, strict=True))
    return train(model, optimizer, batches, F.smooth_l1_loss, steps=30)
