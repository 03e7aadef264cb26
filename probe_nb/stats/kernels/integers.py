"""Large integers in float32, for devices without float64: exact range, exact exponents."""

from __future__ import annotations

import torch
from torch import Tensor


def from_lowest(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x - min(x) in float32, and min and max as four int32 words.

    The difference is taken in halves, because it may not fit into 64 bits: it is small where the
    elements are close to each other, however large they are.
    """
    v = x.to(torch.int64)
    low, high = v.amin(), v.amax()
    halves = v.bitwise_right_shift(1) - low.bitwise_right_shift(1)
    rest = v.bitwise_and(1) - low.bitwise_and(1)
    distance = halves.to(torch.float32) * 2 + rest.to(torch.float32)
    return distance, torch.stack([low, high]).view(torch.int32)


def exact_classes(x: Tensor) -> Tensor:
    """Return the class by sign and exponent of each element; zeros get the class of +0.

    Elements are shifted until float32 holds them exactly: rounding could reach the next power.
    Where float64, the reference, would round to it, the class is the next one here too: that is
    where the 54 leading bits are ones.
    """
    v = x.to(torch.int64)
    a = v.abs()
    rounded = torch.zeros_like(a)
    for dropped in range(10):
        rounded += a.bitwise_right_shift(dropped) == (1 << 54) - 1
    overflow = a < 0  # the one number without a positive twin: -2**63
    a = torch.where(overflow, 1 << 62, a)
    added = overflow.to(torch.int64) + rounded
    for _ in range(2):
        large = a >= 1 << 24
        a = torch.where(large, a.bitwise_right_shift(20), a)
        added += large * 20
    field = a.to(torch.float32).view(torch.int32).bitwise_right_shift(23)
    return torch.where(a == 0, 0, field + added + (v < 0) * 256)
