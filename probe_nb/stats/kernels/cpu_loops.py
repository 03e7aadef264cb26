"""The loops of the compiled kernel. `cpu_code` compiles them, in a process of their own.

One block of elements at a time is read from memory and then, in cache, reduced three times: range
and sum, exponents, and the moments about the block's mean. What is rare has a pass of its own.
What float32 does not hold exactly is left to `cpu_wide`. The formulas are those of `host`;
arguments are addresses and sizes, all 64-bit integers.
"""

from __future__ import annotations

import numpy as np
from numba import int32

from probe_nb.stats.kernels.cpu_bits import (
    INFINITE,
    MAGNITUDE,
    NORMAL,
    float32_at,
    float64_at,
    int32_at,
    int64_at,
    loop,
    power_of_two,
    root,
    uint16_at,
    uint32_at,
    value_of,
)
from probe_nb.stats.kernels.cpu_places import (
    ABSMAX,
    AT_MAX,
    BELOW,
    BINS,
    BLOCK,
    BUFFER,
    CELL,
    CLASSES,
    COUNTS,
    CURSOR,
    FINITE,
    HIGH,
    KIND,
    L2,
    LARGEST,
    LEAST,
    LOW,
    MEAN,
    MOST,
    NAN,
    NEGATIVE,
    NEGINF,
    NUMBERS,
    POSINF,
    POSITIVE,
    REPEATS,
    ROW,
    ROW_FILLED,
    ROW_FINITE,
    ROW_START,
    SIZE,
    SPREAD,
    STD,
    SUBNORMAL,
    TABLES,
    TARGET,
    TOGETHER,
    VALUES,
    WIDE,
    ZERO,
)
from probe_nb.stats.kernels.cpu_reading import block_in_float32
from probe_nb.stats.kernels.cpu_wide import summarize_wide

SMALLEST_SAFE = np.int32((127 - 30) << 23)
LARGEST_SAFE = np.int32((127 + 54) << 23)
"""Largest magnitudes between which squares neither vanish nor overflow."""


@loop
def summarize(scratch):
    """Reduce the elements that words in the scratch memory name, into a row of results.

    `cpu_places` says what each word means.
    """
    given = int64_at(scratch + COUNTS)
    _begin(scratch)
    if given[KIND] >= WIDE:
        summarize_wide(scratch)
    else:
        _summarize(given[SIZE], int32(given[LARGEST]), scratch)
        _end(given[BELOW], scratch)
    _pack(scratch)


@loop
def _summarize(n, largest, scratch):
    for start in range(0, n, BLOCK):
        size = min(BLOCK, n - start)
        block = block_in_float32(start, size, scratch)
        _count_classes(int32_at(block), size, scratch + TABLES)
        _count_lowest(int32_at(block), size, scratch)
        _reduce(block, size, largest, scratch)


@loop
def _begin(scratch):
    found, counts, tables = (
        float64_at(scratch),
        int64_at(scratch + COUNTS),
        uint32_at(scratch + TABLES),
    )
    found[MEAN] = found[SPREAD] = found[TOGETHER] = 0.0
    for i in range(NEGATIVE + 1):
        counts[i] = 0
    counts[LEAST], counts[MOST] = 0x7FFFFFFF, -0x7FFFFFFF
    for i in range(4 * CLASSES):
        tables[i] = np.uint32(0)


@loop
def _end(below, scratch):
    """Add up the tables; the lowest classes, `below` their number, are those of subnormals."""
    found, counts = float64_at(scratch), int64_at(scratch + COUNTS)
    tables, bins = uint32_at(scratch + TABLES), int64_at(scratch + BINS)
    for i in range(CLASSES):
        bins[i] = np.int64(tables[i]) + np.int64(tables[i + CLASSES])
        bins[i] += np.int64(tables[i + 2 * CLASSES]) + np.int64(tables[i + 3 * CLASSES])
    bins[255] = bins[511] = 0
    bins[0], bins[256] = counts[POSITIVE], counts[NEGATIVE]
    for i in range(below):
        counts[SUBNORMAL] += bins[i] + bins[256 + i]
    counts[FINITE] = np.int64(found[TOGETHER])
    cell = scratch + CELL
    low, high = value_of(int32(counts[LEAST]), cell), value_of(int32(counts[MOST]), cell)
    _finish(found, low, high)


@loop
def _finish(found, low, high):
    """Turn what was merged into the statistics; without finite elements they are NaN."""
    n = found[TOGETHER]
    mean = min(max(found[MEAN], low), high)
    std = root(found[SPREAD] / n) if low < high else 0.0
    absmax = max(abs(low), abs(high))
    l2 = max(root(n) * root(std * std + mean * mean), absmax)
    found[LOW], found[HIGH], found[ABSMAX] = low, high, absmax
    found[MEAN], found[STD], found[L2] = mean, std, l2
    if n == 0:
        for i in range(ABSMAX + 1):
            found[i] = np.nan


@loop
def _pack(scratch):
    """Write the row, and list the filled bins: few are, and eight at a time are empty."""
    found, counts = float64_at(scratch), int64_at(scratch + COUNTS)
    header, repeats = int64_at(counts[TARGET]), counts[REPEATS]
    row, words = float64_at(counts[ROW]), int64_at(counts[ROW])
    found[L2] *= root(np.float64(repeats))
    for i in range(ABSMAX + 1):
        row[i] = found[i]
    for i in range(AT_MAX + 1):
        words[ROW_FINITE + i] = counts[i] * repeats
    words[ROW_START] = header[CURSOR]
    words[ROW_FILLED] = _list_filled(int64_at(scratch + BINS), repeats, header)
    header[CURSOR] += words[ROW_FILLED]


@loop
def _list_filled(bins, repeats, header):
    numbers = uint16_at(header[NUMBERS] + 2 * header[CURSOR])
    values = int64_at(header[VALUES] + 8 * header[CURSOR])
    filled = 0
    for first in range(0, CLASSES, 8):
        together = np.int64(0)
        for i in range(first, first + 8):
            together |= bins[i]
        if together:
            for i in range(first, first + 8):
                if bins[i]:
                    numbers[filled], values[filled] = np.uint16(i), bins[i] * repeats
                    filled += 1
    return filled


@loop
def _count_classes(bits, n, tables):
    """Count by sign and exponent, in four tables: equal neighbours do not wait for each other."""
    h0, h1 = uint32_at(tables), uint32_at(tables + 4 * CLASSES)
    h2, h3 = uint32_at(tables + 8 * CLASSES), uint32_at(tables + 12 * CLASSES)
    fours = n // 4 * 4
    for i in range(0, fours, 4):
        h0[(bits[i] >> int32(23)) & int32(511)] += np.uint32(1)
        h1[(bits[i + 1] >> int32(23)) & int32(511)] += np.uint32(1)
        h2[(bits[i + 2] >> int32(23)) & int32(511)] += np.uint32(1)
        h3[(bits[i + 3] >> int32(23)) & int32(511)] += np.uint32(1)
    for i in range(fours, n):
        h0[(bits[i] >> int32(23)) & int32(511)] += np.uint32(1)


@loop
def _count_lowest(bits, n, scratch):
    """Tell apart the zeros and the subnormals that were counted; they may be none."""
    tables, counts = uint32_at(scratch + TABLES), int64_at(scratch + COUNTS)
    lowest = np.int64(0)
    for i in range(0, 4 * CLASSES, 256):
        # every second one is the class of negative numbers
        lowest += np.int64(tables[i])
        tables[i] = np.uint32(0)
    if lowest:
        zeros = _equal(bits, n, int32(0))
        counts[ZERO] += zeros
        if lowest != zeros:
            positive = _between(bits, n, int32(1), NORMAL)
            counts[POSITIVE] += positive
            counts[NEGATIVE] += lowest - zeros - positive


@loop
def _equal(bits, n, magnitude):
    """Count the elements of one magnitude."""
    found = int32(0)
    for i in range(n):
        found = int32(found + int32(int32(bits[i] & MAGNITUDE) == magnitude))
    return np.int64(found)


@loop
def _between(bits, n, low, end):
    """Count the elements whose bits lie in a range."""
    found = int32(0)
    for i in range(n):
        found = int32(found + int32((bits[i] >= low) & (bits[i] < end)))
    return np.int64(found)


@loop
def _reduce(block, size, largest, scratch):
    """Merge the range and the moments of one block into what was found before."""
    found, counts = float64_at(scratch), int64_at(scratch + COUNTS)
    low, high, total = _range(float32_at(block), int32_at(block), size)
    if int32(max(high, int32(~low))) >= INFINITE:
        size = _finite(int32_at(block), size, int32_at(scratch + BUFFER), counts)
        if size == 0:
            return
        block = scratch + BUFFER
        low, high, total = _range(float32_at(block), int32_at(block), size)
    counts[LEAST], counts[MOST] = min(counts[LEAST], low), max(counts[MOST], high)
    if int32(max(high, int32(~low))) == largest:
        counts[AT_MAX] += _equal(int32_at(block), size, largest)
    mean, spread = _centred(block, size, low, high, total, scratch)
    # T. Chan, G. Golub, R. LeVeque, The American Statistician 37(3), 1983
    together = found[TOGETHER] + size
    apart = mean - found[MEAN]
    found[SPREAD] += spread + apart * apart * found[TOGETHER] * size / together
    found[MEAN] += apart * size / together
    found[TOGETHER] = together


@loop
def _range(x, bits, n):
    """Return the lowest and highest key, and the sum; keys are ordered as the values are.

    The key of a negative number is -1 - magnitude, so NaN lies outside of the infinities.
    """
    low, high, total = int32(0x7FFFFFFF), int32(-0x7FFFFFFF), np.float32(0)
    for i in range(n):
        key = int32(bits[i] ^ (int32(bits[i] >> 31) & MAGNITUDE))
        low, high = int32(min(low, key)), int32(max(high, key))
        total += x[i]
    return low, high, total


@loop
def _finite(bits, n, kept, counts):
    """Move the finite elements to the front of `kept`, count the others, return how many stay."""
    stays, posinf, neginf = 0, np.int64(0), np.int64(0)
    for i in range(n):
        element = bits[i]
        posinf += np.int64(element == INFINITE)
        neginf += np.int64(element == int32(-0x00800000))
        kept[stays] = element
        stays += np.int64(int32(element & MAGNITUDE) < INFINITE)
    counts[NAN] += n - stays - posinf - neginf
    counts[POSINF] += posinf
    counts[NEGINF] += neginf
    return stays


@loop
def _centred(block, size, low, high, total, scratch):
    """Return the mean of a finite block and the sum of squared distances from it, in float64."""
    largest, cell = int32(max(high, int32(~low))), scratch + CELL
    scale = np.float32(1)
    if largest != 0 and (largest < SMALLEST_SAFE or largest >= LARGEST_SAFE):
        power = min(max(127 - (largest >> 23), -126), 126)
        scale, buffer = power_of_two(power, cell), scratch + BUFFER
        step = power_of_two(max(power - 149, -126), cell) if power > 0 else np.float32(0)
        total = _scaled(float32_at(block), int32_at(block), size, scale, step, float32_at(buffer))
        block = buffer
    unit = np.float64(scale)
    middle = np.float64(total) / size
    middle = min(max(middle, value_of(low, cell) * unit), value_of(high, cell) * unit)
    near = np.float32(middle)
    drift, squares = _moments(float32_at(block), size, near)
    off = np.float64(drift) / size
    spread = max(np.float64(squares) - off * np.float64(drift), 0.0)
    return (np.float64(near) + off) / unit, spread / unit / unit


@loop
def _moments(x, n, middle):
    """Return the sums of the distances from `middle` and of their squares."""
    drift, squares = np.float32(0), np.float32(0)
    for i in range(n):
        d = x[i] - middle
        drift += d
        squares += d * d
    return drift, squares


@loop
def _scaled(x, bits, n, factor, step, out):
    """Multiply by a power of two and return the sum; a subnormal is so many times `step`.

    A processor that flushes subnormals to zero does not see them as numbers.
    """
    total = np.float32(0)
    for i in range(n):
        magnitude, value = int32(bits[i] & MAGNITUDE), x[i] * factor
        if magnitude < NORMAL:
            value = np.float32(magnitude) * step
            value = -value if bits[i] < 0 else value
        out[i] = value
        total += value
    return total
