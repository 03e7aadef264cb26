"""Values that stop being finite in a forward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.faults.blocks import Transformer, digits, mlp, token_loss, tokens, train
from benchmarks.faults.case import PLANTED, Program
from benchmarks.faults.proofs import born, every, larger


class HandSoftmax(nn.Module):
    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, x: Tensor) -> Tensor:
        e = torch.exp(x / self.temperature)
        return e / e.sum(-1, keepdim=True)


@PLANTED.fault(
    "softmax written by hand: exp overflows",
    at="probabilities",
    kinds="nonfinite",
    proof=born("probabilities"),
)
def softmax_by_hand(*, broken: bool) -> Program:
    net = mlp(64, 32, 10)
    model = nn.Sequential()
    model.add_module("flatten", nn.Flatten())
    model.add_module("net", net)
    model.add_module("probabilities", HandSoftmax(0.001 if broken else 1.0))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    return train(model, optimizer, digits(), lambda p, y: F.nll_loss((p + 1e-6).log(), y))


class Likelihood(nn.Module):
    def forward(self, p: Tensor, x: Tensor) -> Tensor:
        return -(x * torch.log(p) + (1 - x) * torch.log(1 - p)).mean()


class Autoencoder(nn.Module):
    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.encoder = mlp(64, 32, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64), last)
        self.likelihood = Likelihood()

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.likelihood(self.decoder(self.encoder(x)), x)


@PLANTED.fault(
    "log of 0: a hard clamp where a sigmoid was meant",
    at="likelihood",
    kinds="nonfinite",
    proof=born("likelihood"),
)
def log_of_zero(*, broken: bool) -> Program:
    model = Autoencoder(nn.Hardtanh(0.0, 1.0) if broken else nn.Sigmoid())
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    return train(model, optimizer, digits(), lambda loss, _: loss)


class OwnNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        return centred / torch.sqrt(variance + self.eps) * self.weight + self.bias


class BagOfTokens(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16, padding_idx=0)
        self.encoder = nn.Sequential()
        self.encoder.add_module("norm", OwnNorm(16, eps))
        self.encoder.add_module("mix", nn.Linear(16, 16))
        self.head = nn.Linear(16, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.encoder(self.embed(ids))).mean(1))


@PLANTED.fault(
    "division by a std of 0: own layer norm without eps, on padding",
    at="encoder.norm",
    kinds="nonfinite",
    proof=born("encoder.norm"),
)
def norm_without_eps(*, broken: bool) -> Program:
    model = BagOfTokens(0.0 if broken else 1e-5)
    batches = [(x, x[:, 0] % 4) for x, _ in tokens()]
    for ids, _ in batches:
        ids[::3, 8:] = 0
    return train(model, torch.optim.Adam(model.parameters(), 3e-3), batches)


@PLANTED.fault(
    "wrong mask: one sample of the batch is nothing but padding",
    at="blocks.0.attn",
    kinds="nonfinite",
    proof=born("blocks.0.attn"),
)
def fully_masked_row(*, broken: bool) -> Program:
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    batches = tokens()
    lengths = torch.randint(4, 13, (20, 16))
    if broken:
        lengths[6, 3] = 0

    def step(number: int) -> None:
        ids, labels = batches[number]
        keep = torch.arange(12) < lengths[number][:, None]
        optimizer.zero_grad()
        F.cross_entropy(model(ids, keep)[keep], labels[keep]).backward()
        optimizer.step()

    return Program(model, step, optimizer)


class OwnCell(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.fed = nn.Linear(4, 16)
        self.recurrent = nn.Linear(16, 16, bias=False)
        nn.init.orthogonal_(self.recurrent.weight, gain)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.relu(self.fed(x) + self.recurrent(h))


class OwnRNN(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.cell = OwnCell(gain)
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), 16)
        for now in x.unbind(1):
            h = self.cell(now, h)
        return self.head(h)


@PLANTED.fault(
    "exploding RNN: the recurrent weights grow the state threefold a step",
    at=("cell", "cell.recurrent"),
    kinds=("exploding", "nonfinite"),
    proof=lambda trace: (
        trace.absmax("output", "cell")[39] > 1e6 * trace.absmax("output", "cell")[0]
    ),
)
def exploding_rnn(*, broken: bool) -> Program:
    model = OwnRNN(3.0 if broken else 0.9)
    batches = [(x, x.mean(1)[:, :1]) for x in torch.randn(20, 16, 40, 4)]
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    return train(model, optimizer, batches, F.mse_loss)


class Sample(nn.Module):
    def forward(self, mean: Tensor, logvar: Tensor) -> Tensor:
        return mean + torch.exp(0.5 * logvar) * torch.randn_like(mean)


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.mean = nn.Linear(32, 4)
        self.logvar = nn.Linear(32, 4)
        self.sample = Sample()
        self.decoder = mlp(4, 32, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(x)
        mean, logvar = self.mean(h), self.logvar(h)
        return self.decoder(self.sample(mean, logvar)), mean, logvar


def vae_loss(out: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    logits, mean, logvar = out
    kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum(-1).mean()
    return F.binary_cross_entropy_with_logits(logits, x.flatten(1)) + 0.01 * kl


@PLANTED.fault(
    "exp of a log variance overflows", at="sample", kinds="nonfinite", proof=born("sample")
)
def variance_overflows(*, broken: bool) -> Program:
    model = VAE()
    if broken:
        nn.init.constant_(model.logvar.bias, 180.0)
    batches = [(x, x) for x, _ in digits()]
    return train(model, torch.optim.Adam(model.parameters(), 1e-3), batches, vae_loss)


class Aggregate(nn.Module):
    def __init__(self, at_least: float) -> None:
        super().__init__()
        self.at_least = at_least

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        total = torch.zeros_like(x).index_add(0, target, x[source])
        degree = torch.zeros(len(x)).index_add(0, target, torch.ones(len(target)))
        return total / degree.clamp(min=self.at_least)[:, None]


class GraphLayer(nn.Module):
    def __init__(self, a: int, b: int, at_least: float) -> None:
        super().__init__()
        self.aggregate = Aggregate(at_least)
        self.own = nn.Linear(a, b)
        self.others = nn.Linear(a, b)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.own(x) + self.others(self.aggregate(x, edges))


class GraphNet(nn.Module):
    def __init__(self, at_least: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList([GraphLayer(8, 16, at_least), GraphLayer(16, 3, at_least)])

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.layers[1](torch.relu(self.layers[0](x, edges)), edges)


@PLANTED.fault(
    "graph network: the mean over the neighbours of a node that has none",
    at="layers.0.aggregate",
    kinds="nonfinite",
    proof=born("layers.0.aggregate"),
)
def mean_over_no_neighbours(*, broken: bool) -> Program:
    model = GraphNet(0.0 if broken else 1.0)
    edges = torch.randint(0, 29, (2, 90))
    edges[1][edges[1] == 0] = 1
    x = torch.randn(30, 8)
    y = x[:, :3].argmax(-1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x, edges), y).backward()
        optimizer.step()

    return Program(model, step, optimizer)


class Adapter(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, 8)
        self.up = nn.Linear(8, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(torch.relu(self.down(x)))


@PLANTED.fault(
    "uninitialised memory: a parameter made by torch.empty",
    at="blocks.1.1.down",
    kinds=("exploding", "overflow", "nonfinite"),
    proof=every(larger("blocks.1.1.down", "blocks.1.0", 1e9)),
)
def uninitialised_parameter(*, broken: bool) -> Program:
    model = Transformer()
    for number, block in enumerate(model.blocks):
        model.blocks[number] = WithAdapter(block)
    if broken:  # what torch.empty finds differs from run to run
        model.blocks[1][1].down.weight.data[2, 5:9] = 4.6e17
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    return train(model, optimizer, tokens(), token_loss)


class WithAdapter(nn.Sequential):
    def __init__(self, block: nn.Module) -> None:
        super().__init__(block, Adapter(32))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self[1](self[0](x, mask))
