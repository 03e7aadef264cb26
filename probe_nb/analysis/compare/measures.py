"""How far apart the records of each pair are, from their statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.compare import rounding
from probe_nb.analysis.compare.rounding import Tolerance
from probe_nb.store.table import Arrays
from probe_nb.terms import STATISTICS

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

MEASURES: Final = ("max", "min", "mean", "std", "l2", "histogram", "tensor", "element", "exact")
"""What a difference was seen in: a statistic, the histogram, the kept tensors as a whole or in one
element; `exact` is what rounding never explains, such as another shape or a count of NaN."""

_PLACE: Final = {name: number for number, name in enumerate(MEASURES)}
_EXTREMES: Final = ("max", "min", "absmax")


@dataclass(eq=False)
class Measured:
    """The differences of all pairs.

    Attributes:
        scale: Root mean square of the larger side, 0 where it is not known.
        peak: The largest magnitude of both sides.
        apart: One row per measure: the difference relative to the scale, NaN where unknown.
        allowed: In the same shape, what rounding explains.
        unit: Unit roundoff of the coarser dtype.
    """

    scale: Floats
    peak: Floats
    apart: Floats
    allowed: Floats
    unit: Floats
    tolerance: Tolerance
    equal: Flags = field(default_factory=lambda: np.empty(0, np.bool_))

    def put(self, measure: str, where: NDArray[np.intp] | Flags, apart: Floats) -> None:
        """Note a difference that was measured later."""
        self.apart[_PLACE[measure], where] = apart

    @property
    def difference(self) -> Floats:
        """The largest relative difference of each pair; NaN where nothing could be compared."""
        found: Floats = np.fmax.reduce(self.apart, axis=0)
        return found

    @property
    def excess(self) -> Floats:
        """The largest difference in units of what rounding explains, in which measure it was."""
        return np.fmax.reduce(self._ratios(), axis=0)  # type: ignore[no-any-return]

    def worst(self) -> NDArray[np.intp]:
        """Return the measure that differs most of each pair, as a place in `MEASURES`."""
        found: NDArray[np.intp] = np.nan_to_num(self._ratios(), nan=-1.0, posinf=1e300).argmax(
            axis=0
        )
        return found

    def _ratios(self) -> Floats:
        tiny = np.maximum(self.allowed, 1e-300)
        ratios: Floats = np.where(self.apart == 0, 0.0, self.apart / tiny)
        return ratios


def measured(  # noqa: PLR0917
    one: Arrays, other: Arrays, unit: Floats, terms: Floats, factor: float, known: Floats
) -> Measured:
    """Compare the statistics of each pair; rows of both arrays belong together."""
    numel = np.maximum(one["numel"], other["numel"]).astype(np.float64)
    explained = rounding.tolerance(unit, terms, numel, factor)
    scale = np.fmax(_rms(one), _rms(other))
    peak = np.nan_to_num(np.fmax(_peak(one), _peak(other)))
    scale = np.where(np.isnan(scale), peak / 4, scale)
    count = len(numel)
    apart = np.full((len(MEASURES), count), np.nan)
    allowed = np.zeros((len(MEASURES), count))
    root = np.sqrt(np.maximum(numel, 1.0))
    for name in STATISTICS:
        left, right = _known(one[name]), _known(other[name])
        by = {"l2": scale * root}.get(name, peak if name in _EXTREMES else scale)
        found = _relative(np.abs(left - right), by)
        place = _PLACE["max" if name == "absmax" else name]
        apart[place] = np.fmax(apart[place], found)
    with np.errstate(divide="ignore", invalid="ignore"):
        tall = np.nan_to_num(peak / scale, nan=1.0, posinf=1.0)
    for name in ("max", "min", "histogram", "element"):
        allowed[_PLACE[name]] = explained.extreme
    for name in ("std", "l2"):
        allowed[_PLACE[name]] = explained.moment + known
    allowed[_PLACE["mean"]] = explained.moment + known * np.maximum(tall, 1.0)
    allowed[_PLACE["tensor"]] = explained.whole
    return Measured(scale, peak, apart, allowed, unit, explained)


def _known(values: Floats) -> Floats:
    """Take infinities out: a dump may say them, and what they mean is decided elsewhere."""
    return np.where(np.isfinite(values), values, np.nan)


def _rms(side: Arrays) -> Floats:
    """Return the root mean square of the finite elements."""
    finite = side["numel"].astype(np.float64)
    for name in ("nan_count", "posinf_count", "neginf_count"):
        finite -= np.maximum(side[name], 0)
    found: Floats = _known(side["l2"]) / np.sqrt(np.maximum(finite, 1.0))
    return found


def _peak(side: Arrays) -> Floats:
    extremes = [np.abs(_known(side[name])) for name in ("absmax", "min", "max")]
    found: Floats = np.fmax.reduce(extremes, axis=0)
    return found


def _relative(difference: Floats, by: Floats) -> Floats:
    """Divide, with nothing over nothing as 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(difference == 0, 0.0, difference / by)


def equal_numbers(one: Arrays, other: Arrays, names: tuple[str, ...]) -> Flags:
    """Tell which pairs have the same number, or none, in each of some columns."""
    found = np.ones(len(one["numel"]), np.bool_)
    for name in names:
        left, right = one[name], other[name]
        same = left == right
        if left.dtype.kind == "f":
            same |= np.isnan(left) & np.isnan(right)
        found &= same
    return found
