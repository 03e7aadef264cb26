"""The loops of the compiled kernel. `cpu_code` compiles them, in a process of their own.

One block of elements at a time is read from memory and then, in cache, reduced three times: range
and sum, exponents, and the moments about the block's mean. What is rare has a pass of its own.
The formulas are those of `host`; arguments are addresses and sizes, all 64-bit integers.
"""

from __future__ import annotations

import numpy as np
from numba import int32, njit, types
from numba.extending import intrinsic

BLOCK = 2048
CLASSES = 512

FLOAT32, FLOAT16 = 0, 1
"""Kinds of elements; everything else is bfloat16."""

MAGNITUDE = np.int32(0x7FFFFFFF)
INFINITE = np.int32(0x7F800000)
NORMAL = np.int32(0x00800000)
"""Bits of the smallest normal float32: what is below is zero or subnormal."""

SMALLEST_SAFE = np.int32((127 - 30) << 23)
LARGEST_SAFE = np.int32((127 + 54) << 23)
"""Largest magnitudes between which squares neither vanish nor overflow."""

# what lies where in the scratch memory, in bytes; `cpu.Scratch` reads the first three
COUNTS, BINS, TABLES = 64, 192, 192 + 8 * CLASSES
CELL = BINS - 8
BUFFER = TABLES + 4 * 4 * CLASSES

# the places among the float64 results, and among the int64 counts
LOW, HIGH, MEAN, SPREAD, TOGETHER = 0, 1, 2, 3, 4
FINITE, NAN, POSINF, NEGINF, ZERO, SUBNORMAL, AT_MAX = 0, 1, 2, 3, 4, 5, 6
LEAST, MOST, POSITIVE, NEGATIVE = 7, 8, 9, 10

# sums may be taken in any order; NaN, infinities and subnormals keep their meaning
_loop = njit(
    fastmath={"reassoc", "nsz", "contract", "arcp"},
    error_model="numpy",
    nogil=True,
    no_cpython_wrapper=True,
    no_cfunc_wrapper=True,
    _nrt=False,
)


def _pointer(kind):
    """Return a function that takes an address for a pointer to elements of a type."""

    @intrinsic
    def at(_context, _address):
        def cast(context, builder, signature, args):
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.intp), cast

    return at


_float32, _float64 = _pointer(types.float32), _pointer(types.float64)
_int32, _int64 = _pointer(types.int32), _pointer(types.int64)
_uint16, _uint32 = _pointer(types.uint16), _pointer(types.uint32)


@_loop
def summarize(address, n, kind, largest, scratch):
    """Reduce `n` elements into `scratch`; `largest` is the largest magnitude of their type."""
    _begin(scratch)
    for start in range(0, n, BLOCK):
        size = min(BLOCK, n - start)
        block = _widened(address, start, size, kind, scratch + BUFFER)
        _count_classes(_int32(block), size, scratch + TABLES)
        _count_lowest(_int32(block), size, scratch)
        _reduce(block, size, int32(largest), scratch)
    _end(113 if kind == FLOAT16 else 1, scratch)


@_loop
def _begin(scratch):
    found, counts, tables = _float64(scratch), _int64(scratch + COUNTS), _uint32(scratch + TABLES)
    found[MEAN] = found[SPREAD] = found[TOGETHER] = 0.0
    for i in range(NEGATIVE + 1):
        counts[i] = 0
    counts[LEAST], counts[MOST] = 0x7FFFFFFF, -0x7FFFFFFF
    for i in range(4 * CLASSES):
        tables[i] = np.uint32(0)


@_loop
def _end(below, scratch):
    """Add up the tables; the lowest classes, `below` their number, are those of subnormals."""
    found, counts = _float64(scratch), _int64(scratch + COUNTS)
    tables, bins = _uint32(scratch + TABLES), _int64(scratch + BINS)
    for i in range(CLASSES):
        bins[i] = np.int64(tables[i]) + np.int64(tables[i + CLASSES])
        bins[i] += np.int64(tables[i + 2 * CLASSES]) + np.int64(tables[i + 3 * CLASSES])
    bins[255] = bins[511] = 0
    bins[0], bins[256] = counts[POSITIVE], counts[NEGATIVE]
    for i in range(below):
        counts[SUBNORMAL] += bins[i] + bins[256 + i]
    counts[FINITE] = np.int64(found[TOGETHER])
    found[LOW] = _value(int32(counts[LEAST]), scratch + CELL)
    found[HIGH] = _value(int32(counts[MOST]), scratch + CELL)


@_loop
def _count_classes(bits, n, tables):
    """Count by sign and exponent, in four tables: equal neighbours do not wait for each other."""
    h0, h1 = _uint32(tables), _uint32(tables + 4 * CLASSES)
    h2, h3 = _uint32(tables + 8 * CLASSES), _uint32(tables + 12 * CLASSES)
    fours = n // 4 * 4
    for i in range(0, fours, 4):
        h0[(bits[i] >> int32(23)) & int32(511)] += np.uint32(1)
        h1[(bits[i + 1] >> int32(23)) & int32(511)] += np.uint32(1)
        h2[(bits[i + 2] >> int32(23)) & int32(511)] += np.uint32(1)
        h3[(bits[i + 3] >> int32(23)) & int32(511)] += np.uint32(1)
    for i in range(fours, n):
        h0[(bits[i] >> int32(23)) & int32(511)] += np.uint32(1)


@_loop
def _count_lowest(bits, n, scratch):
    """Tell apart the zeros and the subnormals that were counted; they may be none."""
    tables, counts = _uint32(scratch + TABLES), _int64(scratch + COUNTS)
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


@_loop
def _equal(bits, n, magnitude):
    """Count the elements of one magnitude."""
    found = int32(0)
    for i in range(n):
        found = int32(found + int32(int32(bits[i] & MAGNITUDE) == magnitude))
    return np.int64(found)


@_loop
def _between(bits, n, low, end):
    """Count the elements whose bits lie in a range."""
    found = int32(0)
    for i in range(n):
        found = int32(found + int32((bits[i] >= low) & (bits[i] < end)))
    return np.int64(found)


@_loop
def _reduce(block, size, largest, scratch):
    """Merge the range and the moments of one block into what was found before."""
    found, counts = _float64(scratch), _int64(scratch + COUNTS)
    low, high, total = _range(_float32(block), _int32(block), size)
    if int32(max(high, int32(~low))) >= INFINITE:
        size = _finite(_int32(block), size, _int32(scratch + BUFFER), counts)
        if size == 0:
            return
        block = scratch + BUFFER
        low, high, total = _range(_float32(block), _int32(block), size)
    counts[LEAST], counts[MOST] = min(counts[LEAST], low), max(counts[MOST], high)
    if int32(max(high, int32(~low))) == largest:
        counts[AT_MAX] += _equal(_int32(block), size, largest)
    mean, spread = _centred(block, size, low, high, total, scratch)
    # T. Chan, G. Golub, R. LeVeque, The American Statistician 37(3), 1983
    together = found[TOGETHER] + size
    apart = mean - found[MEAN]
    found[SPREAD] += spread + apart * apart * found[TOGETHER] * size / together
    found[MEAN] += apart * size / together
    found[TOGETHER] = together


@_loop
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


@_loop
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


@_loop
def _centred(block, size, low, high, total, scratch):
    """Return the mean of a finite block and the sum of squared distances from it, in float64."""
    largest, cell = int32(max(high, int32(~low))), scratch + CELL
    scale = np.float32(1)
    if largest != 0 and (largest < SMALLEST_SAFE or largest >= LARGEST_SAFE):
        power = min(max(127 - (largest >> 23), -126), 126)
        scale, buffer = _power(power, cell), scratch + BUFFER
        step = _power(max(power - 149, -126), cell) if power > 0 else np.float32(0)
        total = _scaled(_float32(block), _int32(block), size, scale, step, _float32(buffer))
        block = buffer
    unit = np.float64(scale)
    middle = np.float64(total) / size
    middle = min(max(middle, _value(low, cell) * unit), _value(high, cell) * unit)
    near = np.float32(middle)
    drift, squares = _moments(_float32(block), size, near)
    off = np.float64(drift) / size
    spread = max(np.float64(squares) - off * np.float64(drift), 0.0)
    return (np.float64(near) + off) / unit, spread / unit / unit


@_loop
def _moments(x, n, middle):
    """Return the sums of the distances from `middle` and of their squares."""
    drift, squares = np.float32(0), np.float32(0)
    for i in range(n):
        d = x[i] - middle
        drift += d
        squares += d * d
    return drift, squares


@_loop
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


@_loop
def _value(key, cell):
    """Return the number that a key stands for, in float64."""
    bits = key if key >= 0 else int32(key ^ MAGNITUDE)
    magnitude = int32(bits & MAGNITUDE)
    if magnitude < NORMAL:
        value = np.float64(magnitude) * 2.0**-149
        return -value if bits < 0 else value
    _int32(cell)[0] = bits
    return np.float64(_float32(cell)[0])


@_loop
def _power(power, cell):
    """Return 2**power, a normal number."""
    _int32(cell)[0] = int32((power + 127) << 23)
    return _float32(cell)[0]


@_loop
def _widened(address, start, size, kind, buffer):
    """Return where a block lies in float32: where it is, or in the buffer it is widened to."""
    if kind == FLOAT32:
        return address + 4 * start
    narrow = _uint16(address + 2 * start)
    if kind == FLOAT16:
        _from_float16(narrow, size, buffer)
    else:
        _from_bfloat16(narrow, size, _int32(buffer))
    return buffer


@_loop
def _from_float16(narrow, n, buffer):
    """Widen by the bits; a subnormal becomes the normal number that it is in float32."""
    bits, x = _int32(buffer), _float32(buffer)
    for i in range(n):
        h = int32(narrow[i])
        rest = int32((h & 0x7FFF) << 13)
        bias = int32(112 << 23) if rest < int32(31 << 23) else int32(224 << 23)
        bits[i] = int32(int32(rest + bias) | int32((h & 0x8000) << 16))
    for i in range(n):
        h = int32(narrow[i])
        if int32(h & 0x7C00) == 0:
            value = np.float32(int32(h & 0x3FF)) * np.float32(2.0**-24)
            x[i] = -value if int32(h & 0x8000) else value


@_loop
def _from_bfloat16(narrow, n, bits):
    for i in range(n):
        bits[i] = int32(int32(narrow[i]) << 16)
