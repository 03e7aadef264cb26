"""Values that are finite and wrong: dead, saturated, too large, stuck."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.faults.blocks import (
    ConvNet,
    Transformer,
    digits,
    mlp,
    token_loss,
    tokens,
    train,
)
from benchmarks.faults.case import PLANTED, Program
from benchmarks.faults.proofs import finite, larger, only_zeros


@PLANTED.fault(
    "dead ReLU: a very negative bias",
    at=("conv2", "relu2"),
    kinds="dead",
    proof=only_zeros("relu2"),
)
def dead_relu(*, broken: bool) -> Program:
    model = ConvNet()
    if broken:
        nn.init.constant_(model.conv2.bias, -10.0)
    return train(model, torch.optim.SGD(model.parameters(), 0.05), digits())


@PLANTED.fault(
    "tanh saturates: the layer before it was initialised far too large",
    at=("2.0", "2.1", "2"),
    kinds=("saturation", "exploding"),
    proof=lambda t: (
        min(t.absmax("output", "2.1")) > 0.9999 and min(t.absmax("output", "2.0")) > 100
    ),
)
def tanh_saturates(*, broken: bool) -> Program:
    def stage(a: int, b: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(a, b), nn.Tanh())

    model = nn.Sequential(nn.Flatten(), stage(64, 32), stage(32, 32), stage(32, 32))
    model.append(nn.Linear(32, 10))
    if broken:
        nn.init.normal_(model[2][0].weight, std=30.0)
    return train(model, torch.optim.Adam(model.parameters(), 1e-3), digits())


@PLANTED.fault(
    "one layer initialised fifty times too large",
    at=("5", "6"),
    kinds=("exploding", "ratio", "overflow"),
    proof=larger("5", "3", 20),
)
def init_too_large(*, broken: bool) -> Program:
    model = nn.Sequential(nn.Flatten(), *mlp(64, 64, 64, 64, 10))
    for layer in model[1::2]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    if broken:
        model[5].weight.data *= 50
    return train(model, torch.optim.Adam(model.parameters(), 1e-3), digits())


class PlainBlock(nn.Module):
    def __init__(self, width: int, gain: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, width)
        self.fc2 = nn.Linear(width, width)
        self.gain = gain

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * self.fc2(torch.relu(self.fc1(x)))


class EncoderDecoder(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 32)
        self.encoder = nn.Sequential(*(PlainBlock(32, 0.3) for _ in range(6)))
        self.norm = nn.LayerNorm(32)
        self.decoder = nn.Sequential(*(PlainBlock(32, gain) for _ in range(10)))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.decoder(self.norm(self.encoder(self.stem(x.flatten(1))))))


@PLANTED.fault(
    "a residual stream that grows: ten blocks without a norm and with a wrong gain",
    at=("decoder", "decoder.*"),
    kinds=("exploding", "overflow", "nonfinite"),
    proof=lambda t: t.absmax("output", "decoder")[0] > 1e4 * t.absmax("input", "decoder")[0],
)
def residual_stream_grows(*, broken: bool) -> Program:
    model = EncoderDecoder(25.0 if broken else 0.3)
    return train(model, torch.optim.SGD(model.parameters(), 0.01), digits())


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.gru = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 20)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.gru(self.embed(ids))[0])


@PLANTED.fault(
    "a GRU whose update gate is stuck shut: the state stays what it was, 0",
    at="gru",
    kinds=("dead", "saturation", "stuck", "vanishing"),
    proof=only_zeros("gru"),
)
def gate_stuck(*, broken: bool) -> Program:
    model = Tagger()
    if broken:  # r, z, n: a bias of the wrong size
        nn.init.constant_(model.gru.bias_hh_l0[16:32], 120.0)
    return train(model, torch.optim.Adam(model.parameters(), 3e-3), tokens(), token_loss)


@PLANTED.fault(
    "one row of an embedding is huge",
    at="embed",
    kinds=("exploding", "overflow", "sudden"),
    proof=larger("embed", "position", 1e4),
)
def embedding_row_explodes(*, broken: bool) -> Program:
    model = Transformer()
    if broken:  # a token that was added later, with memory for weights
        model.embed.weight.data[7] *= 1e7
    return train(model, torch.optim.AdamW(model.parameters(), 1e-3), tokens(), token_loss)


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.gate = nn.Sequential(nn.Linear(16, 16), nn.Sigmoid())
        self.head = nn.Linear(16, 20)
        self.embed = nn.Embedding(20, 16)

    def forward(self, ids: Tensor) -> Tensor:
        out, _ = self.lstm(self.embed(ids))
        return self.head(out * self.gate(out))


@PLANTED.fault(
    "a sigmoid gate is shut for good: its bias is very negative",
    at=("gate", "gate.0", "gate.1"),
    kinds=("saturation", "vanishing", "dead"),
    proof=lambda t: finite()(t) and max(t.absmax("output", "gate.1")) < 1e-8,
)
def gate_shut(*, broken: bool) -> Program:
    model = Attend()
    if broken:
        nn.init.constant_(model.gate[0].bias, -30.0)
    return train(model, torch.optim.Adam(model.parameters(), 3e-3), tokens(), token_loss)


@PLANTED.fault(
    "the last layer was set to zero and its input too, so nothing ever moves it",
    at=("net.2", "net.3"),
    kinds=("dead", "stuck", "vanishing"),
    proof=only_zeros("net.2"),
)
def zeros_meet_zeros(*, broken: bool) -> Program:
    model = nn.Sequential()
    model.add_module("flatten", nn.Flatten())
    model.add_module("net", mlp(64, 32, 32, 10))
    if broken:
        for tensor in (*model.net[2].parameters(), model.net[4].weight):
            nn.init.zeros_(tensor)
    return train(model, torch.optim.SGD(model.parameters(), 0.1), digits(), F.cross_entropy)
