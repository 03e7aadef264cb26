"""Models whose graph, or whose order of calls, is not a plain chain."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.models import Piece, x


class Shared(nn.Module):
    """One module under two names, called three times."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first
        self.act = nn.Tanh()

    def forward(self, x):
        return self.first(self.act(self.second(self.act(self.first(x)))))


class Tied(nn.Module):
    """The head uses the embedding's weight."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.embed(ids)))


class Recursive(nn.Module):
    """Calls itself, one level down each time."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x, depth=2):
        y = self.lin(x).relu()
        return y if depth == 0 else y + self(y, depth - 1)


class FrozenPrefix(nn.Module):
    """Nothing before the head requires grad."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(True)).requires_grad_(False)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x.detach()))


class Branches(nn.Module):
    """One branch runs without grad, one result is never used."""

    def __init__(self):
        super().__init__()
        self.student = nn.Linear(4, 4)
        self.teacher = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            target = self.teacher(x)
        self.unused(x)
        return (self.student(x) - target).square()


class Doubles(torch.autograd.Function):
    """A function with a backward of its own."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a)
        return a * 2 + b, a.detach().clone()

    @staticmethod
    def backward(ctx, g, _):
        (a,) = ctx.saved_tensors
        return g * 2 + 0 * a, g


class Custom(nn.Module):
    """Calls a custom function between two layers."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.out = nn.Linear(4, 4)

    def forward(self, x):
        h = self.lin(x)
        y, _ = Doubles.apply(h, h.sin())
        return self.out(y)


class Checkpointed(nn.Module):
    """Recomputes its blocks in the backward."""

    def __init__(self, *, reentrant):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4), nn.ReLU(True), nn.Dropout(0.3), nn.Linear(4, 4))
            for _ in range(2)
        )
        self.reentrant = reentrant

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


class Raises(nn.Module):
    """Its second layer always raises."""

    def __init__(self, error=ValueError):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.bad = Bad(error)

    def forward(self, x):
        return self.bad(self.first(x))


class Bad(nn.Module):
    """Raises in the middle of its forward."""

    def __init__(self, error):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.error = error

    def forward(self, x):
        self.lin(x)
        raise self.error("broken")


class Survives(nn.Module):
    """A child raises, the parent catches it and goes on."""

    def __init__(self):
        super().__init__()
        self.risky = Raises()
        self.safe = nn.Linear(4, 4)

    def forward(self, x):
        try:
            return self.risky(x)
        except ValueError:
            return self.safe(x)


class Penalty(nn.Module):
    """Takes a gradient inside its forward and backs through it again."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        y = self.lin(x).tanh().square().sum()
        if not y.requires_grad:
            return y
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        return y + g.square().sum()


class Mapped(nn.Module):
    """Runs a child under vmap and under a functional gradient."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        y = torch.vmap(self.lin)(x)
        values = dict(self.lin.named_parameters())
        each = torch.func.grad(lambda w: torch.func.functional_call(self.lin, w, (x,)).sum())
        return y + each(values)["bias"].detach()


class Unbinds(nn.Module):
    """Gives views of one projection to several children."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.parts = nn.ModuleList(nn.Linear(4, 2) for _ in range(3))

    def forward(self, x):
        y = self.up(x)
        a, b = y.chunk(2, dim=-1)
        return self.parts[0](a) + self.parts[1](b) + self.parts[2](y.narrow(-1, 2, 4))


PIECES = [
    Piece("shared_module", Shared),
    Piece("tied_weights", Tied, lambda: ((torch.randint(6, (2, 3)),), {})),
    Piece("recursive", Recursive),
    Piece("frozen_prefix", FrozenPrefix),
    Piece("branches_without_grad", Branches),
    Piece("custom_function", Custom),
    Piece("checkpoint", lambda: Checkpointed(reentrant=False), not_in=("inference",)),
    Piece(
        "checkpoint_reentrant",
        lambda: Checkpointed(reentrant=True),
        not_in=("inference", "no_grad"),
    ),
    Piece("raises", Raises, raises=ValueError),
    Piece("survives", Survives),
    Piece("gradient_penalty", Penalty, not_in=("inference",)),
    Piece("vmap", Mapped, lambda: ((x(3, 4, grad=False),), {}), not_in=("inference",)),
    Piece("views_to_children", Unbinds),
]
