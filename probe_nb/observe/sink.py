"""What `observe` hands over: the only thing it knows of the rest of the house."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from probe_nb.observe.calls import Call
from probe_nb.observe.select import Watched
from probe_nb.terms import Direction, Role, Status

Where = tuple[Role, str] | tuple[Role, str, Direction]
"""The place of a tensor in its call: role, leaf path, and direction where it is not the role's own.
"""


_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
"""Classes whose shape is made of plain numbers."""


class Facts(NamedTuple):
    """What a row says of a tensor beside its numbers; outlives the tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    device: torch.device
    numel: int
    requires_grad: bool

    @classmethod
    def of(cls, t: Tensor) -> Facts:
        """Read the facts of a tensor; a ragged or unbuilt one has no shape."""
        if type(t) in _PLAIN and not t.is_nested:
            return cls(t.dtype, tuple(t.shape), t.device, t.numel(), t.requires_grad)
        try:
            shape, numel = tuple(int(n) for n in t.shape), int(t.numel())
        except (AttributeError, RuntimeError, TypeError, ValueError):
            shape, numel = (), -1
        return cls(t.dtype, shape, t.device, numel, t.requires_grad)


class Sink(Protocol):
    """Takes observations. None of its methods raises, waits for a device or keeps a tensor."""

    def tensor(
        self,
        call: Call,
        where: Where,
        t: Tensor,
        backward: int = -1,
        scale: Tensor | None = None,
    ) -> None:
        """Take a tensor; it is only valid during this call.

        `scale` is what a gradient that an optimizer sees is multiplied by; of what a backward
        gives the sink knows it.
        """

    def absent(
        self, call: Call, where: Where, facts: Facts, status: Status, backward: int = -1
    ) -> None:
        """Take note of a tensor whose numbers cannot be had, with the reason."""

    def fault(self, watched: Watched | None, where: str, error: Exception) -> None:
        """Take note of an error of our own; it never reaches the user's code."""


class Extras(Protocol):
    """Computes what was asked for beside the rows; none of its methods raises or keeps a tensor."""

    def entering(self, call: Call, module: nn.Module, leaves: Sequence[tuple[str, Tensor]]) -> None:
        """Look at what a module is called with, before it can change it."""

    def leaving(self, call: Call, module: nn.Module, leaves: Sequence[tuple[str, Tensor]]) -> None:
        """Look at what a module gives."""

    def before_step(
        self, call: Call, name: str, grad: Tensor | None, kept: Sequence[tuple[str, Tensor]]
    ) -> None:
        """Look at what an optimizer keeps of a parameter before it moves it."""
