"""The axes of the plots: names and steps along them, and scales on which all values can be seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    Locator,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    ScalarFormatter,
)

from probe_nb.view.plots.style import name, written

_APART: Final = 1.6
"""Names per line of text and a blank one, by which matplotlib counts."""

_POWERS: Final = 4
"""Powers of ten that are written on each side of 0, and not more."""

_SMALL: Final = 0.1
"""Which share of the values lies in the linear part of a scale for both signs."""

_SHORT: Final = 100.0
_LOG: Final = 30.0
_BOTH: Final = 1e4
"""Ratios of values from which on ticks are powers of ten, and a scale is logarithmic."""


class Thinned(Locator):
    """Places at whole numbers, as many as can be read one under the other.

    Attributes:
        count: How many names there are.
        always: The one that is named in any case, with none so near that both could not be read.
    """

    def __init__(self, count: int, always: int | None = None) -> None:
        """Place names from 0 on."""
        self.count = count
        self.always = always

    def __call__(self) -> list[float]:
        """Return the places in view."""
        axis: Any = self.axis
        low, high = sorted(axis.get_view_interval())
        return self.tick_values(low, high)

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        """Return the places between these."""
        axis: Any = self.axis
        room = max(1, int(_APART * axis.get_tick_space()))
        step = max(1, math.ceil((vmax - vmin) / room))
        first, last = max(0, math.ceil(vmin)), min(self.count - 1, math.floor(vmax))
        found = [float(each) for each in range(0, self.count, step) if first <= each <= last]
        if self.always is not None and first <= self.always <= last:
            found = [each for each in found if abs(each - self.always) >= step]
            found = sorted([*found, float(self.always)])
        return found


def names_down(ax: Axes, names: Sequence[str], always: int | None = None) -> None:
    """Write names down the y axis, the first one at the top."""
    short = [name(each) for each in names]

    def named(value: float, _: Any) -> str:
        place = round(value)
        return short[place] if place == value and 0 <= place < len(short) else ""

    ax.set_ylim(len(short) - 0.5, -0.5)
    ax.yaxis.set_major_locator(Thinned(len(short), always))
    ax.yaxis.set_major_formatter(FuncFormatter(named))
    ax.tick_params(axis="y", length=0, labelsize="small")


def steps_along(ax: Axes, steps: Sequence[int] | None = None) -> None:
    """Write steps along the x axis: whole numbers, or these at the places 0, 1, 2, and so on."""
    ax.set_xlabel("step")
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    if steps is None:
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        return
    known = list(steps)

    def stepped(value: float, _: Any) -> str:
        place = round(value)
        return str(known[place]) if place == value and 0 <= place < len(known) else ""

    ax.xaxis.set_major_formatter(FuncFormatter(stepped))


def is_wide(values: Any, ratio: float) -> bool:
    """Tell whether positive numbers differ so much that only a log axis shows them all."""
    there = np.abs(values[np.isfinite(values) & (values != 0)])
    return bool(len(there)) and float(there.max()) >= ratio * float(there.min())


def log_values(axis: Axis, values: Any, *, log: bool | None) -> bool:
    """Choose the scale of an axis, a log one where it helps; tell whether it is one."""
    there = values[np.isfinite(values)]
    negative = bool((there < 0).any())
    wide = is_wide(there, _BOTH if negative else _LOG)
    if not (there != 0).any() or not (wide if log is None else log):
        axis.set_major_formatter(_linear())
        return False
    ax: Any = axis.axes
    set_scale = ax.set_xscale if axis is ax.xaxis else ax.set_yscale
    if negative:
        small, high = smallest_told(there), float(np.abs(there).max())
        set_scale("symlog", linthresh=small, linscale=linear_share(small, high))
        axis.set_major_locator(FixedLocator(both_signs(small, high)))
        return False
    set_scale("log")
    logged_ticks(axis, there)
    return True


def smallest_told(values: Any) -> float:
    """Return the size below which a scale for both signs is linear: that of the small values."""
    return float(np.quantile(np.abs(values[values != 0]), _SMALL))


def linear_share(small: float, high: float) -> float:
    """Return how many decades the part of such a scale takes that is linear."""
    return max(1.0, math.log10(high / small) / 6)


def both_signs(small: float, high: float) -> list[float]:
    """Return powers of ten on both sides of 0, few enough to be read."""
    first, last = math.ceil(math.log10(small)), math.floor(math.log10(high))
    size = max(1, math.ceil((last - first + 1) / _POWERS))
    powers = [10.0**each for each in range(last, first - 1, -size)]
    return [*(-each for each in powers), 0.0, *reversed(powers)]


def logged_ticks(axis: Any, values: Any) -> None:
    """Write numbers where a log axis is so short that powers of ten would be too few."""
    if is_wide(values, _SHORT):
        return
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))
    axis.set_minor_formatter(NullFormatter())


def _linear() -> ScalarFormatter:
    made = ScalarFormatter(useOffset=False)
    made.set_powerlimits((-3, 5))
    return made
