"""Timings in turns, and the ratios that follow from them."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """A ratio as several rounds saw it."""

    median: float
    low: float
    high: float
    rounds: int


def ratio(rounds: Iterable[float]) -> Ratio:
    """Return the median of the rounds' ratios, and their range."""
    values = list(rounds)
    return Ratio(statistics.median(values), min(values), max(values), len(values))


class Stopwatch:
    """Times runs by the wall, or by the processor where other programs would disturb."""

    def __init__(self, *, cpu: bool = False) -> None:
        """Choose the clock: `cpu` counts the processor time of this process alone."""
        self._now = time.process_time if cpu else time.perf_counter

    def per_run(self, act: Callable[[], object], times: int) -> float:
        """Return the seconds that one of `times` runs took, earlier garbage not charged to it."""
        gc.collect()
        begin = self._now()
        for _ in range(times):
            act()
        return (self._now() - begin) / times


def between(bare: Sequence[float], measured: Sequence[float]) -> list[float]:
    """Return each measured time against the mean of the bare times before and after it.

    `bare` is one longer than `measured`: bare, measured, bare, measured, bare. A machine that
    becomes slower or faster meanwhile cancels out to first order.
    """
    pairs = zip(measured, itertools.pairwise(bare), strict=True)
    return [time / ((before + after) / 2) for time, (before, after) in pairs]


def added(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return what we add to a step as a fraction of what they add, round by round.

    Both are ratios against a bare step, each taken in its own process.
    """
    return [(mine - 1) / (other - 1) for mine, other in zip(ours, theirs, strict=True)]
