"""The museum: one tiny model per trap that is known to break tools which watch models.

A `Piece` says how a model is built and what it is fed. Both draw from torch's global generator,
so two runs after the same `torch.manual_seed` see the same numbers.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from probe_nb.errors import ProbeWarning

Feed = tuple[tuple[Any, ...], dict[str, Any]]

_built: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def x(*shape: int, grad: bool = True) -> Tensor:
    """Return normal numbers that require grad."""
    return torch.randn(*shape or (3, 4), requires_grad=grad)


@dataclass(frozen=True)
class Piece:
    """One model of the museum and how to use it."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Feed] = lambda: ((x(3, 4),), {})
    raises: type[BaseException] | None = None
    """What its forward raises each time."""
    not_in: tuple[str, ...] = ()
    """Modes in which torch itself cannot run it."""

    def build(self) -> nn.Module:
        """Return a new model; it is remembered, to look for hooks on it after the test."""
        model = self.make()
        _built.add(model)
        return model

    def __repr__(self) -> str:
        return self.name


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested values; the tests' own way, shared with nothing."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors(each)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from tensors(getattr(value, name))


def total(output: Any) -> Tensor | None:
    """Return a loss over every differentiable tensor of an output, None if there is none."""
    parts = [t for t in tensors(output) if t.requires_grad]
    if not parts:
        return None
    return sum((t.abs() * (1 + t.detach().abs())).sum().float() for t in parts)


@contextlib.contextmanager
def no_faults() -> Iterator[None]:
    """Fail if a fault of ours is reported; where warnings are errors it would pass in silence."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ProbeWarning)
        yield
    faults = [str(w.message) for w in caught]
    assert not faults, faults


def hook_tables(module: nn.Module) -> dict[str, dict[Any, Any]]:
    """Return every table of hooks that one module carries."""
    return {k: v for k, v in vars(module).items() if "hooks" in k and isinstance(v, dict)}


def hooks_of_probe_nb() -> list[str]:
    """Name the hooks of ours on any model that was built here and still lives."""
    return [
        f"{type(module).__name__}.{name}: {hook!r}"
        for model in _built
        for module in _modules(model)
        for name, table in hook_tables(module).items()
        for hook in table.values()
        if _module_of(hook).startswith("probe_nb")
    ]


def _modules(model: nn.Module) -> list[nn.Module]:
    """Return the modules below a model, also if it contains itself."""
    return list(model.modules())


def _module_of(hook: Any) -> str:
    return getattr(hook, "__module__", "") or type(hook).__module__


def named(*parts: list[Piece]) -> dict[str, Piece]:
    """Return pieces by name; a name stands for one piece."""
    found = [piece for part in parts for piece in part]
    by_name = {piece.name: piece for piece in found}
    assert len(by_name) == len(found), "two pieces have one name"
    return by_name


def pieces() -> dict[str, Piece]:
    """Return the whole museum by name."""
    from tests.museum import containers, graphs, hooks, inplace, layers

    return named(containers.PIECES, graphs.PIECES, hooks.PIECES, inplace.PIECES, layers.PIECES)
