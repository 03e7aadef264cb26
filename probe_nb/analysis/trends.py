"""Which sites are dead, vanishing or exploding: conservative rules over the last steps.

A rule that cries wolf over a healthy model is worse than none, so each asks for a pattern that
lasts. What each rule lets pass on purpose: layers that begin at zero (LoRA, zero-initialised
residuals) have moved by the third step; a bias in front of a normalisation has a gradient that is
zero up to rounding, so parameter gradients never count as vanishing; a converged model has small
gradients everywhere, so a gradient vanishes only beside others that do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.terms import ROLES

if TYPE_CHECKING:
    from probe_nb.analysis.tally import Tally

LASTING: Final = 3
"""Steps in which a site must look dead or vanishing, the last ones it was seen in."""

VANISHED: Final = 1e-7
"""A vanishing gradient has no element above this (the default of the rule VanishingGradient in
Amazon SageMaker Debugger) ..."""

VANISHED_BESIDE: Final = 1e-6
"""... and its l2 is below this share of the largest among the gradients of its role and step."""

EXPLODED: Final = 1e6
"""An exploding gradient has an element beyond this ..."""

EXPLODED_GROWTH: Final = 1e3
"""... or beyond 1, and beyond this multiple of all it had in the older half of the window.

Both are far outside what clipping at norm 1 to 5 is used for (Pascanu, Mikolov and Bengio,
ICML 2013, section 3.2)."""

_OLDER: Final = 4
"""Steps that the older half must have before growth is judged."""

_FLOWING: Final = [ROLES.index(r) for r in ("grad_output", "grad_input")]
_GRADIENT: Final = np.isin(ROLES, ("grad_output", "grad_input", "param_grad"))
_ALIVE: Final = _GRADIENT | np.isin(ROLES, ("output",))
_FLOATS: Final = ("float", "bfloat", "complex")


def dead(tally: Tally) -> NDArray[np.bool_]:
    """Tell which outputs and gradients were all zeros in each of the last steps they were seen."""
    names = tally.columns.tables.dtypes.values
    floats = np.array([*(is_float(name) for name in names), False])
    latest = tally.latest
    judged = (latest["zero_count"] == latest["numel"]) & (latest["numel"] > 1)
    judged &= _ALIVE[tally.role] & floats[latest["dtype"]]
    return _lasts(tally.window.zeros >= 0, tally.window.zeros == 1, judged)


def vanishing(tally: Tally) -> NDArray[np.bool_]:
    """Tell which flowing gradients were tiny beside the others in each of the last steps."""
    found, now = np.zeros(tally.sites, np.bool_), tally.latest["absmax"]
    tiny = (now < VANISHED) & (now > 0)
    for role in _FLOWING:
        of_role = tally.role == role
        judged = of_role & tiny
        if not judged.any():
            continue
        largest = np.fmax.reduce(tally.window.sizes[of_role], axis=0)
        peaks, small = tally.window.peaks, tally.window.sizes < VANISHED_BESIDE * largest
        found |= _lasts(~np.isnan(peaks), small & (peaks < VANISHED) & (peaks > 0), judged)
    return found


def exploding(tally: Tally) -> NDArray[np.bool_]:
    """Tell which gradients are huge, or have grown out of all proportion, while still finite."""
    now = tally.latest["absmax"]
    gradient = _GRADIENT[tally.role]
    found: NDArray[np.bool_] = gradient & (now >= EXPLODED)
    half = len(tally.window.steps) // 2
    rows = np.flatnonzero(gradient & (now >= 1))
    if half >= _OLDER and len(rows):
        older = np.fmax.reduce(tally.window.peaks[rows, :half], axis=1)
        found[rows] |= (now[rows] >= EXPLODED_GROWTH * older) & (older > 0)
    return found


def is_float(dtype: str) -> bool:
    """Tell whether numbers of this dtype have a magnitude that means something."""
    return dtype.startswith(_FLOATS)


def _lasts(
    seen: NDArray[np.bool_], holds: NDArray[np.bool_], judged: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Tell where something holds in each of the last `LASTING` steps in which a site was seen."""
    found = np.zeros(len(judged), np.bool_)
    rows = np.flatnonzero(judged)
    if len(rows):
        back = np.cumsum(seen[rows, ::-1], axis=1)[:, ::-1]
        last = seen[rows] & (back <= LASTING)
        found[rows] = (last.sum(axis=1) == LASTING) & (holds[rows] | ~last).all(axis=1)
    return found
