"""The numbers of one tensor, and how those of its pieces are merged: float64, on the host."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from probe_nb.exponents import BINS


def scaled(value: float, power: int) -> float:
    """Return value * 2**power, infinite where that is out of range."""
    try:
        return math.ldexp(value, power)
    except OverflowError:
        return math.copysign(math.inf, value)


@dataclass
class Numbers:
    """Statistics over the finite elements, counts over all of them, and the histogram.

    `bins` counts by sign and exponent as `exponents.Histogram` numbers them, without zeros and
    non-finite elements.
    """

    finite: int = 0
    low: float = math.inf
    high: float = -math.inf
    mean: float = 0.0
    std: float = 0.0
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    zero: int = 0
    subnormal: int = 0
    at_max: int = 0
    bins: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))

    def merge(self, piece: Numbers) -> None:
        """Take in another piece of the same tensor.

        Source: T. Chan, G. Golub, R. LeVeque, The American Statistician 37(3), 1983.
        """
        if piece.finite:
            total = self.finite + piece.finite
            mine, theirs = self.finite / total, piece.finite / total
            weight = math.sqrt(mine * theirs)
            between = weight * piece.mean - weight * self.mean
            within = (math.sqrt(mine) * self.std, math.sqrt(theirs) * piece.std)
            self.std = math.hypot(*within, between)
            self.mean = self.mean * mine + piece.mean * theirs
            self.low, self.high = min(self.low, piece.low), max(self.high, piece.high)
            self.finite = total
        self.nan += piece.nan
        self.posinf += piece.posinf
        self.neginf += piece.neginf
        self.zero += piece.zero
        self.subnormal += piece.subnormal
        self.at_max += piece.at_max
        self.bins += piece.bins

    def repeat(self, times: int) -> None:
        """Stand for `times` copies of the same elements."""
        if times == 1:
            return
        self.finite *= times
        self.nan *= times
        self.posinf *= times
        self.neginf *= times
        self.zero *= times
        self.subnormal *= times
        self.at_max *= times
        self.bins *= times

    def add_zeros(self, n: int) -> None:
        """Take in the zeros that a sparse tensor does not store."""
        if n:
            self.merge(Numbers(finite=n, low=0.0, high=0.0, zero=n))

    def statistics(self) -> tuple[float, ...]:
        """Return min, max, mean, std, l2, absmax; all NaN if no element is finite.

        `l2` follows from what was summed about the mean: sum(x^2) = n (std^2 + mean^2).
        """
        if not self.finite:
            return (math.nan,) * 6
        mean = min(max(self.mean, self.low), self.high)
        std = 0.0 if self.low == self.high else self.std
        absmax = max(abs(self.low), abs(self.high))
        return (self.low, self.high, mean, std, self._l2(mean, std, absmax), absmax)

    def _l2(self, mean: float, std: float, absmax: float) -> float:
        """Return the norm; rounding must not carry it over the end of float64."""
        l2 = math.sqrt(self.finite) * math.hypot(std, mean)
        if math.isinf(l2):
            share = math.sqrt(self.finite) * math.hypot(std / absmax, mean / absmax)
            return absmax if share < 1 + 1e-6 else l2
        return max(l2, absmax)

    def counts(self) -> tuple[int, ...]:
        """Return the counts in the order of `terms.COUNTS`."""
        return (self.nan, self.posinf, self.neginf, self.zero, self.subnormal, self.at_max)
