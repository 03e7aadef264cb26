"""The compiled loops for what float32 does not hold exactly: float64 and large whole numbers.

Two reads: one for the range, the exponents and the counts, one for the moments, at a scale at
which squares neither vanish nor overflow.
"""

from __future__ import annotations

import numpy as np

from probe_nb.stats.kernels.cpu_bits import (
    INFINITE64,
    LARGEST64,
    MAGNITUDE64,
    float64_at,
    int64_at,
    loop,
    root,
    uint32_at,
)
from probe_nb.stats.kernels.cpu_places import (
    ABSMAX,
    AT_MAX,
    BINS,
    BLOCK,
    CELL,
    CLASSES,
    COUNTS,
    FINITE,
    FLOAT64,
    HIGH,
    KIND,
    L2,
    LOW,
    MEAN,
    NAN,
    NEGINF,
    POSINF,
    SIZE,
    SPREAD,
    STD,
    SUBNORMAL,
    TABLES,
    TOGETHER,
    ZERO,
)
from probe_nb.stats.kernels.cpu_reading import block_in_float64

FAR = 400
"""Largest distance of an exponent from 0 at which squares can be taken as they are."""


@loop
def summarize_wide(scratch):
    """Reduce the elements that words in the scratch memory name into its results."""
    found, counts = float64_at(scratch), int64_at(scratch + COUNTS)
    n = counts[SIZE]
    found[LOW], found[HIGH] = np.inf, -np.inf
    for start in range(0, n, BLOCK):
        size = min(BLOCK, n - start)
        _look(int64_at(block_in_float64(start, size, scratch)), size, scratch)
    counts[FINITE] = n - counts[NAN] - counts[POSINF] - counts[NEGINF]
    _move_classes(uint32_at(scratch + TABLES), int64_at(scratch + BINS))
    if counts[KIND] != FLOAT64:
        counts[SUBNORMAL] = counts[AT_MAX] = 0
    found[ABSMAX] = max(-found[LOW], found[HIGH])
    scale = _scale(found[ABSMAX], scratch + CELL)
    for start in range(0, n, BLOCK):
        size = min(BLOCK, n - start)
        _merge(float64_at(block_in_float64(start, size, scratch)), size, scale, found)
    _finish(found, counts[FINITE], scale)


@loop
def _look(bits, n, scratch):
    """Take in the range, the exponents and the counts of one block."""
    found, counts = float64_at(scratch), int64_at(scratch + COUNTS)
    table, low, high = uint32_at(scratch + TABLES), found[LOW], found[HIGH]
    cell = scratch + CELL
    for i in range(n):
        magnitude = bits[i] & MAGNITUDE64
        if magnitude >= INFINITE64:
            counts[NAN] += np.int64(magnitude > INFINITE64)
            counts[POSINF] += np.int64(bits[i] == INFINITE64)
            counts[NEGINF] += np.int64(magnitude == INFINITE64) & np.int64(bits[i] < 0)
            continue
        int64_at(cell)[0] = bits[i]
        low, high = min(low, float64_at(cell)[0]), max(high, float64_at(cell)[0])
        counts[ZERO] += np.int64(magnitude == 0)
        counts[AT_MAX] += np.int64(magnitude == LARGEST64)
        exponent = magnitude >> 52
        counts[SUBNORMAL] += np.int64(exponent == 0) & np.int64(magnitude != 0)
        place = min(max(exponent - (1023 - 127), 0), 255)
        if magnitude != 0:
            table[place + (256 if bits[i] < 0 else 0)] += np.uint32(1)
    found[LOW], found[HIGH] = low, high


@loop
def _move_classes(table, bins):
    for i in range(CLASSES):
        bins[i] = np.int64(table[i])


@loop
def _scale(absmax, cell):
    """Return the power of two by which elements are multiplied before they are squared."""
    float64_at(cell)[0] = absmax
    exponent = (int64_at(cell)[0] >> 52) - 1023
    if absmax == 0 or -FAR < exponent < FAR:
        return 1.0
    int64_at(cell)[0] = (min(max(-exponent, -1000), 1000) + 1023) << 52
    return float64_at(cell)[0]


@loop
def _merge(x, n, scale, found):
    """Merge the moments of one block: T. Chan, G. Golub, R. LeVeque, 1983, as in `cpu_loops`."""
    stays, total = 0, 0.0
    for i in range(n):
        if abs(x[i]) < np.inf:
            total += x[i] * scale
            stays += 1
    if stays == 0:
        return
    middle, drift, squares = total / stays, 0.0, 0.0
    for i in range(n):
        if abs(x[i]) < np.inf:
            d = x[i] * scale - middle
            drift += d
            squares += d * d
    off = drift / stays
    together = found[TOGETHER] + stays
    apart = middle + off - found[MEAN]
    found[SPREAD] += max(squares - off * drift, 0.0)
    found[SPREAD] += apart * apart * found[TOGETHER] * stays / together
    found[MEAN] += apart * stays / together
    found[TOGETHER] = together


@loop
def _finish(found, n, scale):
    """Turn what was merged into the statistics; without finite elements they are NaN."""
    low, high, absmax = found[LOW], found[HIGH], found[ABSMAX]
    std = root(found[SPREAD] / n) if low < high else 0.0
    mean = min(max(found[MEAN] / scale, low), high)
    l2 = root(np.float64(n)) * root(std * std + mean * scale * (mean * scale))
    # rounding must not carry the norm over the end of float64
    l2 = absmax if l2 < absmax * scale * (1 + 1e-6) else l2 / scale
    found[MEAN], found[STD], found[L2] = mean, std / scale, max(l2, absmax)
    if n == 0:
        for i in range(ABSMAX + 1):
            found[i] = np.nan
