"""What a planted fault and a healthy model are: a program, the answers that count, a proof.

Every case builds its program twice, broken and whole, with the same random numbers. The proof looks
at the broken one with plain hooks and has to fail on the whole one: so the fault is really there,
and it alone is what was planted. The whole twins are healthy models as well.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.faults.trace import Trace

Proof = Callable[[Trace], bool]


@dataclass
class Program:
    """A model and its training loop, as a user has them.

    Attributes:
        model: The model that is watched.
        step: One step of the loop; it is told its number, and may return its loss.
        optimizer: What steps the parameters; None where the loop only infers.
        steps: How often the loop runs.
        scaler: The `GradScaler`, where there is one.
    """

    model: nn.Module
    step: Callable[[int], object]
    optimizer: Optimizer | list[Optimizer] | None = None
    steps: int = 12
    scaler: Any = None

    def run(self) -> None:
        """Run the loop."""
        for number in range(self.steps):
            self.step(number)

    def losses(self) -> list[float]:
        """Run the loop and return its losses; empty where its steps return none."""
        told = [self.step(number) for number in range(self.steps)]
        return [each.item() for each in told if isinstance(each, Tensor)]

    @property
    def optimizers(self) -> list[Optimizer]:
        """Return every optimizer as a list."""
        found = self.optimizer or []
        return found if isinstance(found, list) else [found]


class Build(Protocol):
    """Makes the program of a case, with its fault or without."""

    def __call__(self, *, broken: bool) -> Program:
        """Return the program; all random numbers come from torch's global generator."""
        ...


@dataclass(frozen=True)
class Case:
    """A planted fault.

    Attributes:
        title: What is wrong, in the words of a user.
        at: Patterns of module paths that count as right; the root is `""`. They were written down
            before the tool was asked.
        kinds: Kinds of finding that count as right, see `KINDS`.
        proof: Tells from what plain hooks saw whether the fault is there.
        roles: Roles that count as right; empty: any.
        build: Makes the program.
    """

    title: str
    at: tuple[str, ...]
    kinds: tuple[str, ...]
    proof: Proof
    build: Build
    roles: tuple[str, ...] = ()
    name: str = ""

    def names(self, module: str) -> bool:
        """Tell whether this module path counts as right."""
        return any(fnmatch.fnmatchcase(module, pattern) for pattern in self.at)

    def program(self, *, broken: bool = True) -> Program:
        """Build with the same random numbers every time."""
        torch.manual_seed(0)
        return self.build(broken=broken)


@dataclass(frozen=True)
class Healthy:
    """A model that trains as it should, and must raise no alarm.

    Attributes:
        title: What it is.
        build: Makes the program.
        learns: Whether its loss falls: not where it is at its end, or has none.
    """

    title: str
    build: Callable[[], Program]
    name: str = ""
    learns: bool = True

    def program(self) -> Program:
        """Build with the same random numbers every time."""
        torch.manual_seed(0)
        return self.build()


@dataclass
class Collection:
    """The cases of one set; the decorators add to it."""

    faults: list[Case] = field(default_factory=list)
    healthy: list[Healthy] = field(default_factory=list)

    def fault(
        self,
        title: str,
        *,
        at: str | tuple[str, ...],
        kinds: str | tuple[str, ...],
        proof: Proof,
        roles: tuple[str, ...] = (),
    ) -> Callable[[Build], Build]:
        """Return a decorator that makes a function a planted fault."""

        def add(build: Build) -> Build:
            name = getattr(build, "__name__", "")
            self.faults.append(
                Case(title, _several(at), _several(kinds), proof, build, roles, name)
            )
            return build

        return add

    def sound(
        self, title: str, *, learns: bool = True
    ) -> Callable[[Callable[[], Program]], Callable[[], Program]]:
        """Return a decorator that makes a function a healthy model."""

        def add(build: Callable[[], Program]) -> Callable[[], Program]:
            self.healthy.append(Healthy(title, build, getattr(build, "__name__", ""), learns))
            return build

        return add


def _several(one: str | tuple[str, ...]) -> tuple[str, ...]:
    return (one,) if isinstance(one, str) else one


PLANTED: Final = Collection()
"""The set on which the rules of the findings may be developed."""

UNSEEN: Final = Collection()
"""The set that is held out: no rule may be tuned to it."""
