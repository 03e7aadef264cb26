"""Gradients that are cut, lost, or not finite."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.faults.blocks import Transformer, digits, mlp, token_loss, tokens, train
from benchmarks.faults.case import PLANTED, Program
from benchmarks.faults.proofs import born_backward, finite, no_gradient


class RootBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)
        self.least = 1e-3

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        root = torch.sqrt(h.clamp(min=self.least))
        return x + self.outer(torch.where(h > 0, root, torch.zeros_like(h)))


@PLANTED.fault(
    "where(h > 0, sqrt(h), 0): finite forward, NaN in the backward of sqrt",
    at="blocks.1",
    kinds="nonfinite",
    proof=born_backward("blocks.1"),
)
def root_behind_where(*, broken: bool) -> Program:
    model = nn.Sequential()
    model.add_module("stem", nn.Sequential(nn.Flatten(), nn.Linear(64, 16)))
    blocks = nn.Sequential(*(RootBlock(16) for _ in range(3)))
    blocks[1].least = -math.inf if broken else 1e-3
    model.add_module("blocks", blocks)
    model.add_module("head", nn.Linear(16, 10))
    return train(model, torch.optim.SGD(model.parameters(), 0.05), digits())


class Angle(nn.Module):
    def __init__(self, edge: float) -> None:
        super().__init__()
        self.edge = edge

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        cosine = F.cosine_similarity(a, b, dim=-1)
        return torch.acos(cosine.clamp(-self.edge, self.edge))


class Siamese(nn.Module):
    def __init__(self, edge: float) -> None:
        super().__init__()
        self.encoder = mlp(64, 32, 8)
        self.angle = Angle(edge)

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        a, b = (self.encoder(x.flatten(1)) for x in pair)
        return self.angle(a, b)


@PLANTED.fault(
    "acos at its edge: a pair of equal images, its gradient is infinite",
    at="angle",
    kinds="nonfinite",
    proof=born_backward("angle"),
)
def angle_of_equal_pair(*, broken: bool) -> Program:
    model = Siamese(1.0 if broken else 0.999)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    batches = digits()

    def step(number: int) -> None:
        x, y = batches[number]
        other = x.roll(1, 0).clone()
        other[:8] = x[:8]
        same = (y == y.roll(1, 0)).float()
        same[:8] = 1.0
        optimizer.zero_grad()
        F.mse_loss(model((x, other)), 1.0 - same).backward()
        optimizer.step()

    return Program(model, step, optimizer)


class Stages(nn.Module):
    def __init__(self, *, cut: bool) -> None:
        super().__init__()
        self.stage1 = mlp(64, 32, 32)
        self.stage2 = mlp(32, 32, 32)
        self.stage3 = mlp(32, 32, 32)
        self.cut = cut

    def forward(self, x: Tensor) -> Tensor:
        memory = torch.tanh(self.stage1(x))
        mixed = self.stage2(memory)
        return memory + self.stage3(mixed.detach() if self.cut else mixed)


@PLANTED.fault(
    "gradient cut by detach: a branch gets none",
    at=("1.stage2", "1.stage2.*", "1"),
    kinds=("unused", "dead", "stuck"),
    proof=no_gradient("1.stage2.0", "1.stage2.2"),
)
def cut_by_detach(*, broken: bool) -> Program:
    model = nn.Sequential(nn.Flatten(), Stages(cut=broken), nn.Linear(32, 10))
    return train(model, torch.optim.Adam(model.parameters(), 1e-3), digits())


class Summary(nn.Module):
    def __init__(self, *, cut: bool) -> None:
        super().__init__()
        self.score = nn.Linear(16, 1)
        self.value = nn.Linear(16, 16)
        self.cut = cut

    def forward(self, x: Tensor) -> Tensor:
        weights = self.score(x).softmax(1)
        if self.cut:  # to round them, they go through NumPy
            weights = torch.from_numpy(weights.detach().numpy().round(4))
        return (weights * self.value(x)).sum(1)


class Pooled(nn.Module):
    def __init__(self, *, cut: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.summary = Summary(cut=cut)
        self.head = nn.Linear(16, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.summary(self.embed(ids)))


@PLANTED.fault(
    "attention weights go through NumPy, so the scores learn nothing",
    at=("summary.score", "summary"),
    kinds=("unused", "dead", "stuck"),
    proof=no_gradient("summary.score"),
)
def cut_by_numpy(*, broken: bool) -> Program:
    model = Pooled(cut=broken)
    batches = [(x, x[:, 0] % 4) for x, _ in tokens()]
    return train(model, torch.optim.Adam(model.parameters(), 3e-3), batches)


def _first_over_last(trace: object) -> float:
    rows = trace.rows("param_grad", leaf="weight")  # type: ignore[attr-defined]
    by = {s.module: s.absmax for s in rows}
    linears = [by[name] for name in sorted(by, key=lambda n: int(n.split(".")[-1]))]
    return linears[0] / linears[-1]


@PLANTED.fault(
    "vanishing gradients: twenty layers with sigmoids",
    at=("deep", "deep.0", "deep.1", "deep.2", "deep.3", "deep.4", "deep.5"),
    kinds="vanishing",
    proof=lambda t: _first_over_last(t) < 1e-6,
)
def twenty_sigmoids(*, broken: bool) -> Program:
    model = nn.Sequential()
    model.add_module("flatten", nn.Flatten())
    act = nn.Sigmoid if broken else nn.ReLU
    deep = mlp(64, *[32] * 20, 10, act=act)
    if not broken:
        for layer in deep[::2]:
            nn.init.kaiming_normal_(layer.weight)
    model.add_module("deep", deep)
    return train(model, torch.optim.Adam(model.parameters(), 1e-3), digits())


class WithAux(nn.Module):
    def __init__(self, *, calls: bool = True) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)
        self.aux = nn.Linear(32, 2)
        self.calls = calls

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.head(h), self.aux(h) if self.calls else h[:, :2]


@PLANTED.fault(
    "unused head: it is made, and never called",
    at="aux",
    kinds="unused",
    proof=lambda t: "aux" in t.parents and not t.rows("output", "aux") and finite()(t),
)
def head_never_called(*, broken: bool) -> Program:
    model = WithAux(calls=not broken)

    def loss(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        return F.cross_entropy(out[0], y) + F.cross_entropy(out[1], y % 2)

    return train(model, torch.optim.Adam(model.parameters(), 1e-3), digits(), loss)


@PLANTED.fault(
    "unused head: it is called, and its loss was forgotten",
    at="aux",
    kinds="unused",
    proof=lambda t: bool(t.rows("output", "aux")) and no_gradient("aux")(t),
)
def head_not_in_the_loss(*, broken: bool) -> Program:
    model = WithAux()

    def loss(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        main = F.cross_entropy(out[0], y)
        return main if broken else main + F.cross_entropy(out[1], y % 2)

    return train(model, torch.optim.Adam(model.parameters(), 1e-3), digits(), loss)


class NoGradBlock(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        with torch.no_grad():  # left over from a look at the attention
            seen = self.block.attn(self.block.norm1(x), mask)
        x = x + seen
        return x + self.block.mlp(self.block.norm2(x))


@PLANTED.fault(
    "a no_grad left around the attention of one block",
    at=("blocks.1", "blocks.1.block", "blocks.1.block.attn", "blocks.1.block.attn.*"),
    kinds=("unused", "dead", "stuck"),
    proof=no_gradient(
        "blocks.1.block.norm1", *(f"blocks.1.block.attn.{n}" for n in ("q", "k", "v", "proj"))
    ),
)
def no_grad_left_behind(*, broken: bool) -> Program:
    model = Transformer()
    if broken:
        model.blocks[1] = NoGradBlock(model.blocks[1])
    return train(model, torch.optim.AdamW(model.parameters(), 1e-3), tokens(), token_loss)
