"""What optimizers keep: nested dicts and lists -> (leaf path, tensor or number)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

_DEPTH: Final = 8
"""Deeper than any optimizer nests what it keeps; bounds the way along what holds itself."""

_KEPT: Final = 1024
"""Numbers of which a tensor is kept: most are the same in every step."""

_NUMBERS: Final = {bool: torch.bool, int: torch.int64, float: torch.float64}


class Values:
    """Finds what can be recorded; a number is recorded as a tensor of one element."""

    def __init__(self) -> None:
        """Know of no number."""
        self._tensors: dict[tuple[type, Any], Tensor] = {}

    def of(self, value: Any, leaf: str, depth: int = _DEPTH) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors and numbers in a value; text, None and objects are passed over."""
        if isinstance(value, Tensor):
            yield leaf, value
        elif isinstance(value, (bool, int, float)):
            with contextlib.suppress(OverflowError):  # beyond float64
                yield leaf, self.tensor(value)
        elif depth and isinstance(value, (dict, list, tuple)):
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            for key, each in list(pairs):
                yield from self.of(each, f"{leaf}.{key}" if leaf else str(key), depth - 1)

    def tensor(self, number: float) -> Tensor:
        """Return a number as a tensor: bool, int64 or float64."""
        kind = next(kind for kind in _NUMBERS if isinstance(number, kind))
        key = (kind, str(number) if number != number else number)  # noqa: PLR0124 - a NaN
        found = self._tensors.get(key)
        if found is None:
            if len(self._tensors) >= _KEPT:
                self._tensors.clear()
            found = self._tensors[key] = _made(kind, number)
        return found


def _made(kind: type, number: float) -> Tensor:
    try:
        return torch.tensor(kind(number), dtype=_NUMBERS[kind], device="cpu")
    except (OverflowError, RuntimeError, ValueError):  # more than 64 bits
        return torch.tensor(float(number), dtype=torch.float64, device="cpu")
