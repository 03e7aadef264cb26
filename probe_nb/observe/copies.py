"""Parameters as they were before an optimizer's step, within a budget of bytes.

What an optimizer adds to a parameter can only be seen by who has the parameter from before. The
copies are all that is held, from before the step to after it, and the difference is computed in
their memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from probe_nb import devices
from probe_nb.observe.shards import held
from probe_nb.terms import Status

BUDGET: Final = 2**30
"""Bytes that the copies of one optimizer's parameters may take."""

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


class Turns:
    """Which parameters are copied: all that fit, and where not all do, they take turns."""

    def __init__(self, budget: int | None = None) -> None:
        """Begin with the first parameter; `budget` is in bytes, `BUDGET` unless said."""
        self.budget = BUDGET if budget is None else budget
        self._first = 0

    def take(self, sizes: Sequence[int]) -> list[bool]:
        """Tell of each size whether it is taken; the next time begins where this one ended.

        >>> turns = Turns(10)
        >>> turns.take([4, 4, 4, 12]), turns.take([4, 4, 4, 12])
        ([True, True, False, False], [True, False, True, False])
        """
        taken, room = [False] * len(sizes), self.budget
        first = self._first if self._first < len(sizes) else 0
        for place in (*range(first, len(sizes)), *range(first)):
            if sizes[place] > self.budget:  # its turn would never come
                continue
            if sizes[place] > room:
                self._first = place
                return taken
            taken[place] = True
            room -= sizes[place]
        return taken


def size(p: Tensor) -> int:
    """Return the bytes that a copy of a parameter would take, 0 where there can be none."""
    t, _ = held(p)
    return t.numel() * _wide(t.dtype).itemsize if obstacle(p) == "ok" else 0


def obstacle(p: Tensor) -> Status:
    """Return why no difference of a parameter can be had, "ok" if it can."""
    t, _ = held(p)
    if t.device.type == "meta":
        return "meta"
    if devices.private_format(t):
        return "private_format"
    counts = t.dtype.is_floating_point or t.dtype.is_complex
    plain = (
        (type(t) in _PLAIN or devices.is_its_class(t))
        and t.layout == torch.strided
        and not t.is_quantized
    )
    return "ok" if plain and counts and not t.is_nested else "unsupported"


def copied(p: Tensor) -> Tensor:
    """Return a copy of what this process holds of a parameter, in a type that keeps differences.

    The difference of two numbers of a narrow type need not be one of that type. That of two
    float32 numbers is exact while they are within a factor of two, and rounded once beyond.
    """
    t, _ = held(p)
    return t.detach().to(_wide(t.dtype), copy=True)


def difference(p: Tensor, before: Tensor) -> Tensor:
    """Return what was added to a parameter since it was copied, in the memory of the copy."""
    t, _ = held(p)
    now = t.detach()
    if now.dtype.itemsize == 1:  # torch mixes them with no other type
        now = now.to(before.dtype)
    return torch.sub(now, before, out=before)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype  # noqa: PLR2004
