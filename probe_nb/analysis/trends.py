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
_GRADIENTS: Final = [*_FLOWING, ROLES.index("param_grad")]
_ALIVE: Final = [ROLES.index("output"), *_GRADIENTS]
_FLOATS: Final = ("float", "bfloat", "complex")


def dead(tally: Tally) -> NDArray[np.bool_]:
    """Tell which outputs and gradients were all zeros in each of the last steps they were seen."""
    names = tally.columns.tables.dtypes.values
    floats = np.array([*(name.startswith(_FLOATS) for name in names), False])
    judged = np.isin(tally.role, _ALIVE) & floats[tally.latest["dtype"]]
    judged &= tally.latest["numel"] > 1
    judged &= (tally.zeros[:, -1:] != 0).all(axis=1)
    return _lasts(tally.zeros >= 0, tally.zeros == 1, judged)


def vanishing(tally: Tally) -> NDArray[np.bool_]:
    """Tell which flowing gradients were tiny beside the others in each of the last steps."""
    small = np.zeros(tally.peaks.shape, np.bool_)
    judged = np.zeros(tally.sites, np.bool_)
    for role in _FLOWING:
        rows = np.flatnonzero(tally.role == role)
        if not len(rows):
            continue
        sizes, peaks = tally.sizes[rows], tally.peaks[rows]
        largest = np.fmax.reduce(sizes, axis=0)
        here = (peaks < VANISHED) & (peaks > 0) & (sizes < VANISHED_BESIDE * largest)
        small[rows] = here
        judged[rows] = here.any(axis=1)
    return _lasts(~np.isnan(tally.peaks), small, judged)


def exploding(tally: Tally) -> NDArray[np.bool_]:
    """Tell which gradients are huge, or have grown out of all proportion, while still finite."""
    found = np.zeros(tally.sites, np.bool_)
    rows = np.flatnonzero(np.isin(tally.role, _GRADIENTS))
    if not len(rows) or not len(tally.steps):
        return found
    now = tally.latest["absmax"][rows]
    found[rows] = now >= EXPLODED
    half = len(tally.steps) // 2
    if half >= _OLDER:
        older = np.fmax.reduce(tally.peaks[rows, :half], axis=1)
        found[rows] |= (now >= 1) & (now >= EXPLODED_GROWTH * older) & (older > 0)
    return found


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
