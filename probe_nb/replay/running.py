"""One replay: the copy is called, nothing global is changed, and its results are handed back."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from probe_nb.observe import leaves
from probe_nb.replay.copies import again
from probe_nb.replay.wide import Noise, Unanswerable, Wide, widened

Leaves = dict[str, Tensor]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Replayed:
    """What one replay gave.

    Attributes:
        results: Tensors by their leaf paths: of the output, and of the gradients of the inputs.
        drawn: Operators that drew random numbers.
    """

    results: dict[tuple[str, str], Tensor]
    drawn: list[str]


@dataclass(frozen=True)
class Task:
    """What is replayed: a copy of a module, or a function, and what it is given.

    Attributes:
        called: The copy or the function.
        arguments: In float64 on the CPU.
        gradients: Of the outputs, by leaf; empty if the backward is not replayed.
        wanted: Leaves of inputs whose gradients are.
    """

    called: nn.Module | Callable[..., Any]
    arguments: Arguments
    gradients: Leaves
    wanted: tuple[str, ...]

    def run(
        self,
        seed: int,
        noise: Noise | None = None,
        change: Callable[[Tensor], Tensor] | None = None,
    ) -> Replayed:
        """Replay once.

        Args:
            seed: What random numbers of the module are drawn with.
            noise: Imitates rounding.
            change: What is done to each input that has broken numbers.

        Raises:
            Unanswerable: It cannot be done; the message says why.
        """
        args, kwargs = tree_map(lambda v: _fresh(v, change), self.arguments)
        called = again(self.called) if isinstance(self.called, nn.Module) else self.called
        given = dict(leaves.arguments(args, kwargs, set()))
        wanted = {leaf: given[leaf].requires_grad_() for leaf in self.wanted if leaf in given}
        mode = Wide(noise)
        try:
            with _undisturbed(seed), torch.set_grad_enabled(bool(wanted)), mode:
                # an input that is written in place must not be a leaf of the graph
                handed = tree_map(_off_the_leaf, (args, kwargs)) if wanted else (args, kwargs)
                output = called(*handed[0], **handed[1])
                results = dict(leaves.results(output, set()))
                found = {("output", leaf): _copy(each) for leaf, each in results.items()}
                found |= self._backward(results, wanted)
        except Unanswerable:
            raise
        except Exception as error:
            raise Unanswerable(f"it raises {type(error).__name__}: {error}") from error
        return Replayed(found, mode.drawn)

    def _backward(self, results: Leaves, wanted: Leaves) -> dict[tuple[str, str], Tensor]:
        ends = [leaf for leaf in self.gradients if _has_graph(results.get(leaf))]
        if not wanted or not ends:
            return {}
        grads: Sequence[Tensor | None] = torch.autograd.grad(
            [results[leaf] for leaf in ends],
            list(wanted.values()),
            [self.gradients[leaf] for leaf in ends],
            allow_unused=True,
        )
        there = zip(wanted, grads, strict=True)
        return {("grad_input", leaf): _copy(g) for leaf, g in there if g is not None}


def _has_graph(value: Tensor | None) -> bool:
    return value is not None and value.requires_grad


def _fresh(value: Any, change: Callable[[Tensor], Tensor] | None) -> Any:
    if not isinstance(value, Tensor):
        return value
    made = widened(value.detach()).clone()
    return made if change is None else change(made)


def _off_the_leaf(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) and value.requires_grad else value


def _copy(value: Tensor) -> Tensor:
    return widened(value.detach()).clone()


@contextlib.contextmanager
def _undisturbed(seed: int) -> Iterator[None]:
    """Draw from generators seeded anew, and put back where they were; cast nothing."""
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.autocast("cpu", enabled=False))
            fused = torch.backends.mha.get_fastpath_enabled()
            stack.callback(torch.backends.mha.set_fastpath_enabled, fused)
            torch.backends.mha.set_fastpath_enabled(False)
            if "torch._dynamo" in sys.modules:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002 - it is this one that modules draw from
            yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])  # noqa: NPY002
