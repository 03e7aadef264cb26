"""The log2 histogram as a value: one count per sign and binary exponent.

A bin holds every value whose magnitude lies in [2**e, 2**(e+1)). The bins are the same in every
run, on every device and for every dtype, so histograms add, compare and answer questions about
other dtypes without the tensor. Two bins are wider: exponent -127 holds everything non-zero
below 2**-126 (the float32 subnormals), exponent 128 everything finite at or above 2**128.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.errors import SelectionError, closest

LOWEST: Final = -127
HIGHEST: Final = 128
BINS: Final = 512
"""256 exponents for positive values, then 256 for negative ones."""

TARGETS: Final[dict[str, tuple[int, int]]] = {
    "float32": (-149, 128),
    "float16": (-24, 16),
    "bfloat16": (-133, 128),
    "float8_e4m3fn": (-9, 9),
    "float8_e5m2": (-16, 16),
}
"""Exponent of the smallest subnormal, and the exponent from which every value overflows.

float8_e4m3fn ends at 448, inside the bin [256, 512): only bins from 512 on overflow for certain.
"""


@dataclass(frozen=True, repr=False)
class Histogram:
    """Counts per sign and exponent, with what no bin can hold beside them.

    Attributes:
        bins: Bin numbers in rising order: `exponent + 127`, plus 256 for negative values.
        counts: Elements per bin, same length as `bins`.
        zero: Elements that are exactly 0.
        nan: Elements that are NaN.
        posinf: Elements that are +inf.
        neginf: Elements that are -inf.

    >>> h = Histogram.of(np.array([1.0, 1.5, -4.0, 0.0, np.nan]))
    >>> h.signed()
    [(-1, 2, 1), (1, 0, 2)]
    >>> h.total
    5
    >>> h
    Histogram(5 elements: 2 positive, 1 negative, |x| in [2^0, 2^3); 1 zero, 1 NaN)
    """

    bins: NDArray[np.int64]
    counts: NDArray[np.int64]
    zero: int = 0
    nan: int = 0
    posinf: int = 0
    neginf: int = 0

    @classmethod
    def of(cls, values: NDArray[np.floating]) -> Histogram:
        """Build the histogram of an array; the plain definition, used as the reference."""
        x = np.asarray(values, dtype=np.float64).ravel()
        finite = x[np.isfinite(x) & (x != 0)]
        exponent = np.clip(np.frexp(np.abs(finite))[1] - 1, LOWEST, HIGHEST)
        found = exponent - LOWEST + 256 * (finite < 0)
        bins, counts = np.unique(found, return_counts=True)
        return cls(
            bins.astype(np.int64),
            counts.astype(np.int64),
            int((x == 0).sum()),
            int(np.isnan(x).sum()),
            int(np.isposinf(x).sum()),
            int(np.isneginf(x).sum()),
        )

    @property
    def total(self) -> int:
        """Number of elements, the non-finite ones included."""
        return int(self.counts.sum()) + self.zero + self.nan + self.posinf + self.neginf

    def signed(self) -> list[tuple[int, int, int]]:
        """Return (sign, exponent, count) for each bin, from the most negative value upwards."""
        triples = [
            (-1 if b >= BINS // 2 else 1, int(b) % (BINS // 2) + LOWEST, int(c))
            for b, c in zip(self.bins, self.counts, strict=True)
        ]
        return sorted(triples, key=lambda t: (t[0], t[0] * t[1]))

    def exponents(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return exponents in rising order and their counts, both signs together."""
        both = np.bincount(self.bins % 256, weights=self.counts, minlength=256).astype(np.int64)
        found = np.flatnonzero(both)
        return found + LOWEST, both[found]

    def share_under(self, dtype: Any) -> float:
        """Return the share of the non-zero finite elements below the smallest value of `dtype`.

        Args:
            dtype: `"float16"`, `"torch.float16"` or `torch.float16`; one of `TARGETS`.

        Raises:
            SelectionError: It is none of these.

        >>> Histogram.of(np.array([1.0, 1e-9, 0.0])).share_under("float16")
        0.5
        """
        low, _ = _target(dtype)
        return self._share(lambda e: e < low)

    def share_over(self, dtype: Any) -> float:
        """Return the share of the non-zero finite elements beyond the range of `dtype`.

        Takes and raises the same as `share_under`.

        >>> Histogram.of(np.array([1.0, 1e6])).share_over("float16")
        0.5
        """
        _, high = _target(dtype)
        return self._share(lambda e: e >= high)

    def _share(self, chosen: Callable[[NDArray[np.int64]], NDArray[np.bool_]]) -> float:
        exponents, counts = self.exponents()
        total = int(counts.sum())
        return float(counts[chosen(exponents)].sum() / total) if total else 0.0

    def __add__(self, other: Histogram) -> Histogram:
        """Merge two histograms, bin by bin."""
        dense = np.zeros(BINS, dtype=np.int64)
        for each in (self, other):
            np.add.at(dense, each.bins, each.counts)
        bins = np.flatnonzero(dense)
        return Histogram(
            bins,
            dense[bins],
            self.zero + other.zero,
            self.nan + other.nan,
            self.posinf + other.posinf,
            self.neginf + other.neginf,
        )

    def __repr__(self) -> str:
        """Say how many elements there are, of which sign, between which powers of two."""
        below = int(self.counts[self.bins >= BINS // 2].sum())
        above = int(self.counts.sum()) - below
        sides = _listed({"positive": above, "negative": below})
        words = {"zero": self.zero, "NaN": self.nan, "+Inf": self.posinf, "-Inf": self.neginf}
        parts = [f"{sides}, |x| in {self._span()}" if sides else "", _listed(words)]
        inside = "; ".join(part for part in parts if part)
        noun = "element" if self.total == 1 else "elements"
        return f"Histogram({self.total:,} {noun}{': ' if inside else ''}{inside})"

    def _span(self) -> str:
        """Write the powers of two that all magnitudes lie between; the outermost bins are wider."""
        exponents, _ = self.exponents()
        low, high = int(exponents[0]), int(exponents[-1])
        begin = "(0" if low == LOWEST else f"[2^{low}"
        return f"{begin}, inf)" if high == HIGHEST else f"{begin}, 2^{high + 1})"

    def __eq__(self, other: object) -> bool:
        """Tell whether every bin and every count is the same."""
        if not isinstance(other, Histogram):
            return NotImplemented
        mine, theirs = self._key(), other._key()
        return mine == theirs

    def __hash__(self) -> int:
        """Hash what `__eq__` compares."""
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        rest = (self.zero, self.nan, self.posinf, self.neginf)
        return (self.bins.tobytes(), self.counts.tobytes(), *rest)


def _target(dtype: Any) -> tuple[int, int]:
    """Return what `TARGETS` says of a type or its name, with or without `torch.`."""
    name = str(dtype).removeprefix("torch.")
    if name not in TARGETS:
        raise SelectionError(
            f"`{name}` is not a type to compare with.{closest(name, TARGETS)} "
            f"Known: {', '.join(TARGETS)}."
        )
    return TARGETS[name]


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)
