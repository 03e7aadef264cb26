"""What a planted divergence and a healthy pair are: a program, built twice, and what parts the two.

Both sides of a case are built with the same random numbers; a plant then changes the second, as a
wrong port would. Where it has to be named was written down before the tool was asked, and is held
to what plain hooks see: both sides run on one machine, so the first tensor that differs in a bit
is where the plant is. `proof.py` looks for it and owes nothing to the tool.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Batch = tuple[Any, ...]


@dataclass
class Program:
    """A model and its training loop, as a user has them.

    Attributes:
        model: The model that is watched.
        loss: Runs the model on a batch and returns the loss.
        batches: What it is fed; each step takes the next, in `parts` pieces.
        optimizer: What steps the parameters; None where the program only infers.
        parts: How many pieces of a batch are accumulated in one step.
        clip: The norm that gradients are clipped to.
        forgets: Whether the gradients of all pieces but the last are lost.
        steps: How often the loop runs.
        around: A context that the whole loop runs in.
        scale: The loss is multiplied by it.
        compared: Options for `compare`.
        device: `"npu"`: it runs on the simulated NPU of the tests, in a process of its own.
        kernel: The wrong kernel that this device has, one of `npu.KERNELS`.
    """

    model: nn.Module
    loss: Callable[[nn.Module, Batch], Tensor]
    batches: list[Batch]
    optimizer: Optimizer | None = None
    parts: int = 1
    clip: float | None = None
    forgets: bool = False
    steps: int = 2
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    scale: float = 1.0
    compared: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    kernel: str = ""

    def run(self) -> None:
        """Run the loop; each step begins with the same random numbers on every machine."""
        with self.around():
            for number in range(self.steps):
                torch.manual_seed(1_000 + number)
                self.step(self.batches[number % len(self.batches)])

    def step(self, batch: Batch) -> None:
        """Forward, backward, optimizer."""
        if self.optimizer is None:
            with torch.no_grad():
                self.loss(self.model, batch)
            return
        self.optimizer.zero_grad()
        for part in self._parts(batch):
            if self.forgets:
                self.optimizer.zero_grad()
            (self.loss(self.model, part) * (self.scale / self.parts)).backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()

    def _parts(self, batch: Batch) -> Iterator[Batch]:
        return zip(*(each.chunk(self.parts) for each in batch), strict=True)


Build = Callable[[], Program]
Change = Callable[[Program], None]


@dataclass(frozen=True)
class Case:
    """A planted divergence.

    Attributes:
        title: What is wrong, in the words of a user.
        on: Builds the program.
        at: Patterns of module paths that count as right; the root is `""`.
        phases: Phases that count as right.
        plant: Changes the candidate.
        corrected: What of the program itself was wrong and was put right after it was first asked.
    """

    title: str
    on: Build
    at: tuple[str, ...]
    phases: tuple[str, ...]
    plant: Change
    corrected: str = ""

    @property
    def name(self) -> str:
        """The name of the function that plants it."""
        return getattr(self.plant, "__name__", "")

    @property
    def architecture(self) -> str:
        """The name of what it is planted in."""
        return getattr(self.on, "__name__", "")

    def names(self, module: str) -> bool:
        """Tell whether this module path counts as right."""
        return any(fnmatch.fnmatchcase(module, pattern) for pattern in self.at)

    def program(self, *, broken: bool) -> Program:
        """Build with the same random numbers every time, and plant it or not."""
        return built(self.on, self.plant if broken else None)


@dataclass(frozen=True)
class Pair:
    """Two programs that compute the same, each rounding in its own way.

    Attributes:
        title: What parts them.
        on: Builds both.
        other: Makes of the second another way to compute the same.
        whole: Whether kept tensors can be compared: not where elements are in another order.
        both: What is done to both, if they differ from what `on` builds.
        corrected: What of the program itself was wrong and was put right after it was first asked.
    """

    title: str
    on: Build
    other: Change
    whole: bool = True
    both: Change | None = None
    corrected: str = ""

    @property
    def name(self) -> str:
        """The name of the function that makes the second."""
        return getattr(self.other, "__name__", "")

    @property
    def architecture(self) -> str:
        """The name of what both are."""
        return getattr(self.on, "__name__", "")

    def program(self, *, second: bool) -> Program:
        """Build the first or the second."""
        program = built(self.on, self.both)
        if second:
            self.other(program)
        return program


def built(on: Build, change: Change | None = None) -> Program:
    """Build a program with the same random numbers every time, and change it."""
    torch.manual_seed(0)
    program = on()
    if change is not None:
        change(program)
    return program


@dataclass
class Collection:
    """The cases of one set; the decorators add to it."""

    cases: list[Case] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)

    def divergence(
        self,
        title: str,
        *,
        on: Build,
        at: str | tuple[str, ...],
        phase: str | tuple[str, ...] = "forward",
        corrected: str = "",
    ) -> Callable[[Change], Change]:
        """Return a decorator that makes a function a planted divergence."""

        def add(plant: Change) -> Change:
            self.cases.append(Case(title, on, _several(at), _several(phase), plant, corrected))
            return plant

        return add

    def rounding(
        self,
        title: str,
        *,
        on: Build,
        whole: bool = True,
        both: Change | None = None,
        corrected: str = "",
    ) -> Callable[[Change], Change]:
        """Return a decorator that makes a function the second of a healthy pair."""

        def add(other: Change) -> Change:
            self.pairs.append(Pair(title, on, other, whole, both, corrected))
            return other

        return add


def _several(one: str | tuple[str, ...]) -> tuple[str, ...]:
    return (one,) if isinstance(one, str) else one


PLANTED: Final = Collection()
"""The set on which the rules of the comparison may be tried."""

HELD_OUT: Final = Collection()
"""The set that is held out: no rule may be tuned to it."""


def instead(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Give a module another forward; it is passed the module first."""
    module.forward = lambda *args, **kwargs: forward(module, *args, **kwargs)  # type: ignore[method-assign]


def lasting(steps: int) -> Change:
    """Return a change that makes a program run for so many steps."""

    def change(program: Program) -> None:
        program.steps = steps

    return change
