"""The programs that every package watches: small, and with what real models have in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

from benchmarks.peers.watching import Watching

BATCH: Final = 8
WIDTH: Final = 16
BAD_STEP: Final = 3
"""The step in which a number first becomes NaN, in the programs that have one."""


class Attend(nn.Module):
    """What comes in goes to three layers, so its gradient is a sum of three."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
        """Attend; `scale` has one number for each key."""
        weights = (self.q(x) @ self.k(x).T * scale).softmax(-1)
        return self.out(weights @ self.v(x))


class Block(nn.Module):
    """A layer before an activation in place, two residuals; a dropout in one program."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attend = nn.LayerNorm(WIDTH), Attend()
        self.up, self.act = nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(inplace=True)
        self.down, self.drop = nn.Linear(2 * WIDTH, WIDTH), nn.Identity()
        self.aside = nn.Identity()

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        """Give the positional and the named argument on."""
        x = x + self.attend(self.norm(x), scale=scale)
        return x + self.aside(self.drop(self.down(self.act(self.up(x)))))


class Model(nn.Module):
    """Two blocks, one layer that is called twice, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.twice, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        """Return the logits."""
        for block in self.blocks:
            x = block(x, scale)
        return self.head(self.twice(self.twice(x)))


class _Clock(nn.Module):
    """Counts its calls, one in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def now(self) -> bool:
        self.calls += 1
        return self.calls == BAD_STEP + 1


class BadForward(_Clock):
    """Divides zero by zero in one element."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x, one of whose elements may be NaN."""
        mask = torch.ones_like(x)
        mask[0, 0] = 0.0
        return x * mask / mask if self.now() else x


class BadBackward(_Clock):
    """Takes the root of zero, whose slope is infinite, and multiplies that by zero."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x in every step: only its gradient may be NaN."""
        return x + (x * 0).square().sqrt() if self.now() else x


class Spoil(nn.Module):
    """A part of it, on which nothing depends, gives three NaN and two Inf."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Part()

    def forward(self, x: Tensor) -> Tensor:
        """Return x."""
        return x + 0 * self.part(x.detach()).nan_to_num(0, 0, 0)


class Part(nn.Module):
    """See `Spoil`."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x, spoiled."""
        return spoiled(x)


class SpoilGradient(nn.Module):
    """The gradient of its weight has three NaN and two Inf."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return x."""
        return x * _SpoiledBackward.apply(self.weight)


class _SpoiledBackward(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, weight: Tensor) -> Tensor:
        return weight.clone()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return spoiled(gradient)


def spoiled(x: Tensor) -> Tensor:
    """Return x with three NaN and two Inf in it."""
    x = x.clone()
    x.view(-1)[[1, 5, 9]] = float("nan")
    x.view(-1)[[3, 7]] = float("inf")
    return x


PROGRAMS: Final[dict[str, Callable[[], nn.Module] | None]] = {
    "plain": None,
    "dropout": None,
    "bad_forward": BadForward,
    "bad_backward": BadBackward,
    "spoiled": Spoil,
    "spoiled_gradient": SpoilGradient,
}
"""What stands at `blocks.1.aside`; nothing but an identity in the plain program."""
BAD: Final = "blocks.1.aside"


def model(program: str) -> nn.Module:
    """Return the model of a program, with the same weights every time."""
    torch.manual_seed(0)
    made = Model()
    if program == "dropout":
        for block in made.blocks:
            block.drop = nn.Dropout(0.1)
    extra = PROGRAMS[program]
    if extra is not None:
        made.blocks[1].aside = extra()
    return made


def batches(steps: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield input, scale and labels of each step."""
    numbers = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(BATCH, WIDTH, generator=numbers)
        scale = torch.rand(BATCH, generator=numbers) / 4
        yield x, scale, torch.randint(0, 4, (BATCH,), generator=numbers)


def train(
    watching: Watching, optimizer: torch.optim.Optimizer, steps: int, *, autocast: bool = False
) -> list[float]:
    """Train, and return the losses. Random numbers begin anew."""
    torch.manual_seed(2)
    losses = []
    for x, scale, labels in batches(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = nn.functional.cross_entropy(watching.forward(x, scale), labels)
        watching.backward(loss)
        optimizer.step()
        watching.after()
        losses.append(loss.item())
    return losses
