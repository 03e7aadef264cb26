"""What the zoo is made of: one architecture, how it is built, fed and asked to generate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

Feed = tuple[tuple[Any, ...], dict[str, Any]]

LARGEST = 20_000_000
"""Parameters that a specimen may have; a recipe that would build more is refused on `meta`."""


@dataclass(frozen=True)
class Specimen:
    """One architecture with random weights, small enough for a laptop.

    `build`, `feed` and `generate` draw from torch's global generator only, so that two runs
    after the same `torch.manual_seed` see the same numbers.
    """

    name: str
    family: str
    """`module_db`, or what it is: encoder, decoder, encoder-decoder, mixture of experts, ..."""
    build: Callable[[], nn.Module]
    feed: Callable[[nn.Module], Feed]
    generate: Callable[[nn.Module], Any] | None = None
    """Generates a few tokens from a model in eval mode; None where it cannot."""
    trains: bool = True
    """Whether a backward through its outputs is possible."""

    def __repr__(self) -> str:
        return self.name
