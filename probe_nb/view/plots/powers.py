"""Where values stand on an axis of powers of two, and what of them a dtype can hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from probe_nb.analysis.alarms import LIMITS
from probe_nb.analysis.words import number
from probe_nb.errors import SelectionError, closest
from probe_nb.exponents import Histogram

DTYPES: Final = {
    "float16": ("float16", -14),
    "bfloat16": ("bfloat16", -126),
    "float8_e4m3fn": ("float8 e4m3", -6),
    "float8_e5m2": ("float8 e5m2", -14),
    "float32": ("float32", -126),
}
"""What a dtype is called here, and the exponent of its smallest normal number."""

_AXIS: Final = (-25, 17)
"""Exponents that are always in view: all limits of float16 and of the float8 types."""

_NEARLY: Final = 0.99
"""A largest number above this share of its bin fills the bin."""


@dataclass(frozen=True)
class Places:
    """Where values stand on the x axis: a unit is a power of two.

    Attributes:
        low: The smallest exponent in view.
        high: The largest one.
        signed: Whether negative values have a side of their own.
    """

    low: int
    high: int
    signed: bool

    @property
    def slot(self) -> float:
        """The width of what stands for a single value: 0, an infinity, NaN."""
        return max(2.0, 0.05 * (self.high - self.low + 1) * (1 + self.signed))

    @property
    def outer(self) -> float:
        """The width of what stands outside: room for its name."""
        return 1.7 * self.slot

    def at(self, exponent: float, sign: int) -> float:
        """Return the place of sign * 2**exponent."""
        return sign * (exponent - self.low + 0.75 * self.slot)

    @property
    def end(self) -> float:
        """The place of what is larger than everything in view."""
        return self.at(self.high + 1, 1)


def places(histogram: Histogram, *, signed: bool) -> Places:
    """Return an axis for a histogram."""
    exponents, _ = histogram.exponents()
    low, high = _AXIS
    if len(exponents):
        low, high = min(low, int(exponents[0]) - 1), max(high, int(exponents[-1]) + 1)
    return Places(low, high, signed)


def known_dtypes(dtypes: Sequence[str]) -> list[str]:
    """Return the names of dtypes with or without `torch.`, each of which has limits here.

    Raises:
        SelectionError: One has none.
    """
    names = [str(each).removeprefix("torch.") for each in dtypes]
    for each in names:
        if each not in DTYPES:
            raise SelectionError(
                f"`{each}` is not a type to compare with.{closest(each, DTYPES)} "
                f"Known: {', '.join(DTYPES)}."
            )
    return names


def limits_of(dtype: str, *, given: bool) -> dict[str, float]:
    """Return what limits a dtype, and the exponents of that; nothing of one without limits.

    Raises:
        SelectionError: It has none, and was asked for by name.
    """
    if given:
        (dtype,) = known_dtypes([dtype])
    if dtype not in DTYPES:
        return {}
    label, normal = DTYPES[dtype]
    smallest, _, largest = LIMITS[dtype]
    return {
        f"{label}: largest {number(largest)}": math.log2(largest),
        f"{label}: smallest normal": normal,
        f"{label}: smallest": smallest,
    }


class Lost(NamedTuple):
    """Shares of the finite non-zero elements that a dtype could not hold, or not in full.

    Attributes:
        under: Become 0.
        subnormal: Lose digits.
        over: Become infinite, or are cut to the largest number.
        perhaps: Lie in the last bin, of which the dtype holds a part.
    """

    under: float
    subnormal: float
    over: float
    perhaps: float


def fit(histogram: Histogram, dtype: str, absmax: float = math.nan) -> Lost:
    """Return what a dtype could not hold of the finite non-zero elements, or not in full.

    Args:
        histogram: The elements.
        dtype: One of `DTYPES`.
        absmax: Their largest magnitude, if it is known: it tells whether the last bin fits.

    >>> import numpy as np
    >>> fit(Histogram.of(np.array([1.0, 2.0**-12, 2.0**-15, 2.0**-30, 1e6])), "float16")
    Lost(under=0.2, subnormal=0.2, over=0.2, perhaps=0.0)
    """
    exponents, counts = histogram.exponents()
    smallest, last, largest = LIMITS[dtype]
    normal = DTYPES[dtype][1]
    in_part = largest < _NEARLY * 2.0 ** (last + 1) and (math.isnan(absmax) or absmax > largest)
    masks = {
        "under": exponents < smallest,
        "subnormal": (exponents >= smallest) & (exponents < normal),
        "over": exponents > last,
        "perhaps": (exponents == last) & in_part,
    }
    total = max(1, int(counts.sum()))
    return Lost(**{name: float(counts[mask].sum() / total) for name, mask in masks.items()})
