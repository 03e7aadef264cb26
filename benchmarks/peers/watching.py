"""What a package asks of a training loop; without torch, which reading files may not need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def _backward(loss: Any) -> None:
    loss.backward()


def _nothing() -> None:
    pass


@dataclass
class Watching:
    """The three places of a step where a package may want to be called."""

    forward: Callable[..., Any]
    backward: Callable[[Any], Any] = _backward
    after: Callable[[], Any] = _nothing
