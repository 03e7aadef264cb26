"""Where a site's size left, within one step, what it was before: judged step by step, once.

The window forgets; what happened in it must not depend on when somebody asked. So each step is
judged against the steps before it as soon as a later one has begun, and the first change of each
site is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.thresholds import Thresholds
from probe_nb.analysis.window import Window, longer
from probe_nb.store.table import ABSENT
from probe_nb.terms import DIRECTIONS, ROLES

HISTORY: Final = 16
"""Steps that a step is compared with."""

_ROBUST: Final = 1.4826
"""Median absolute deviation -> standard deviation, for a normal distribution."""

_FORWARD: Final = DIRECTIONS.index("forward")
_JUDGED: Final = np.isin(
    ROLES, ("input", "output", "param", "grad_output", "grad_input", "param_grad")
)
_NOTHING: Final = -1100.0
"""Stands for log2 of zero."""


@dataclass
class Changed:
    """The first sudden change of each site.

    Attributes:
        step: The step of the change, -1 where there was none.
        bits: By how many powers of two the rms had changed, negative for a fall.
        peak: The largest absmax of that step.
    """

    step: NDArray[np.int64]
    bits: NDArray[np.float64]
    peak: NDArray[np.float64]

    def add(self, sites: NDArray[np.intp], step: int, bits: Any, peak: Any) -> None:
        """Take in the changes of one step, where a site has none yet."""
        new = self.step[sites] < 0
        self.step[sites[new]] = step
        self.bits[sites[new]], self.peak[sites[new]] = bits[new], peak[new]


class Changes:
    """Judges each step once, as soon as a later one has begun."""

    def __init__(self, limits: Thresholds) -> None:
        """Start without a site."""
        self.limits = limits
        self._changed = Changed(np.empty(0, np.int64), np.empty(0), np.empty(0))
        self._level = np.empty(0)
        self._judged = ABSENT

    def grow(self, extra: int) -> None:
        """Add sites."""
        old = self._changed
        self._changed = Changed(
            longer(old.step, extra, ABSENT),
            longer(old.bits, extra, np.nan),
            longer(old.peak, extra, np.nan),
        )
        self._level = longer(self._level, extra, np.nan)

    def judge(self, window: Window, role: NDArray[np.int8], direction: NDArray[np.int8]) -> None:
        """Judge every step of the window but the newest, which may still grow."""
        for place, step in enumerate(window.steps[:-1].tolist()):
            if step > self._judged:
                self._judged = step
                sites, bits, now = self._found(window, role, direction, place)
                self._changed.add(sites, step, bits, window.peaks[sites, place])
                self._level = np.where(np.isnan(now), self._level, now)

    def so_far(
        self, window: Window, role: NDArray[np.int8], direction: NDArray[np.int8]
    ) -> Changed:
        """Return what was found, the newest step included, as if it were over."""
        old = self._changed
        found = Changed(old.step.copy(), old.bits.copy(), old.peak.copy())
        if len(window.steps) and window.steps[-1] > self._judged:
            place = len(window.steps) - 1
            sites, bits, _ = self._found(window, role, direction, place)
            found.add(sites, int(window.steps[-1]), bits, window.peaks[sites, place])
        return found

    def _found(
        self,
        window: Window,
        role: NDArray[np.int8],
        direction: NDArray[np.int8],
        place: int,
    ) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]:
        """Return the sites that changed in one step, by how much, and the level of all sites."""
        now = _logs(window, slice(None), slice(place, place + 1))[:, 0]
        forward = direction == _FORWARD
        limits = self.limits
        logs = np.log2([limits.change_forward, limits.change_backward])
        least = np.where(forward, logs[0], logs[1])
        there = np.where(np.isnan(now) & forward & _is_zero(window, place), _NOTHING, now)
        moved = np.abs(there - self._level) >= least / 2  # else it did not happen in this step
        sites = np.flatnonzero(moved & _JUDGED[role])
        if not len(sites) or not place:  # the steps before the first one are forgotten
            return sites[:0], np.empty(0), now
        before = np.sort(_logs(window, sites, slice(max(place - HISTORY, 0), place)), axis=1)
        number = (~np.isnan(before)).sum(axis=1)
        enough = number >= limits.change_history
        sites, before, number = sites[enough], before[enough], number[enough]
        median = _median(before, number)
        spread = _ROBUST * _median(np.sort(np.abs(before - median[:, None]), axis=1), number)
        bits = there[sites] - median
        far = np.abs(bits) >= np.maximum(least[sites], limits.change_deviations * spread)
        low, high = before[:, 0], before[np.arange(len(before)), number - 1]
        far &= (there[sites] < low) | (there[sites] > high)  # it was never there before
        return sites[far], bits[far], now


def _logs(window: Window, sites: Any, steps: slice) -> NDArray[np.float64]:
    """Return log2 rms, NaN where absent or zero."""
    finite, square = window["finite"][sites, steps], window["square"][sites, steps]
    there = (finite > 0) & (square > 0)
    share = np.divide(square, finite, out=np.full(finite.shape, np.nan), where=there)
    logs: NDArray[np.float64] = np.log2(share) / 2
    return logs


def _is_zero(window: Window, place: int) -> NDArray[np.bool_]:
    zero, counted = window["zero"][:, place], window["counted"][:, place]
    found: NDArray[np.bool_] = (counted > 1) & (zero == counted)
    return found


def _median(rows: NDArray[np.float64], number: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the median of sorted rows whose first `number` values are there, NaN last."""
    each = np.arange(len(rows))
    low = rows[each, np.maximum((number - 1) // 2, 0)]
    high = rows[each, number // 2]
    middle: NDArray[np.float64] = (low + high) / 2
    return middle
