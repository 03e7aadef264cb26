"""The Triton kernel: one launch reduces one tensor into one row of words on its device.

Several programs share a tensor. Each reduces every so many blocks and writes its own range and
moments, which the host merges in float64; exponents and counts are added up on the device, in
whole numbers, so that the order of programs does not matter.
"""

# Triton reads the annotations of its functions: they are not to be put off.

import triton
import triton.language as tl

BLOCK = 4096
PROGRAMS = 64
PART = 8
WORDS = 512 + 8 + PART * PROGRAMS
"""A row: elements by sign and exponent; the counts below; then a part for each program."""

# compiled functions see no other globals than these
COUNTS, PARTS, SIZE_OF_PART = tl.constexpr(512), tl.constexpr(520), tl.constexpr(PART)
CLASSES, NO_CLASS = tl.constexpr(512), tl.constexpr(255)
MAGNITUDE, INFINITE = tl.constexpr(0x7FFFFFFF), tl.constexpr(0x7F800000)

# the counts, and what a part holds: the range, how many are finite, then, as two words each, their
# mean and the sum of squared distances from it in float64
FINITE, NAN, POSINF, NEGINF, ZERO, POS_ZERO, TINY, AT_MAX = range(8)
LOW, HIGH, COUNT, MEAN, SPREAD = 0, 1, 2, 4, 6


@triton.jit(
    do_not_specialize=["n", "largest", "tiny"],
    do_not_specialize_on_alignment=["x_ptr", "row_ptr"],
)
def summarize(x_ptr, row_ptr, n, largest, tiny, block: tl.constexpr, bfloat16: tl.constexpr):
    """Reduce `n` elements; `largest` and `tiny` are bits of float32, 0 where they do not apply.

    `largest` is the end of the range of the elements' own type, `tiny` its smallest normal number.
    With `bfloat16` the elements are 16-bit integers: the upper halves of float32.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    low = float("inf")
    high = float("-inf")
    count = tl.zeros((), tl.int32)
    mean = tl.zeros((), tl.float64)
    spread = tl.zeros((), tl.float64)
    start = program * block
    while start < n:
        places = start + tl.arange(0, block)
        there = places < n
        x = tl.load(x_ptr + places, mask=there, other=0)
        if bfloat16:  # noqa: SIM108 - decided when it is compiled: only one side is
            x = (x.to(tl.int32) << 16).to(tl.float32, bitcast=True)
        else:
            x = x.to(tl.float32)
        bits = x.to(tl.int32, bitcast=True)
        magnitude = bits & MAGNITUDE
        finite = there & (magnitude < INFINITE)
        _count(row_ptr, bits, magnitude, there, finite, largest, tiny)
        size = tl.sum(finite.to(tl.int32))
        if size > 0:
            lowest = tl.min(tl.where(finite, x, float("inf")))
            highest = tl.max(tl.where(finite, x, float("-inf")))
            near, squares = _moments(x, finite, size, lowest, highest)
            together = (count + size).to(tl.float64)
            apart = near - mean
            spread += (
                squares + apart * apart * count.to(tl.float64) * size.to(tl.float64) / together
            )
            mean += apart * size.to(tl.float64) / together
            count += size
            low = tl.minimum(low, lowest)
            high = tl.maximum(high, highest)
        start += programs * block
    part = row_ptr + PARTS + SIZE_OF_PART * program
    tl.store(part, low.to(tl.int32, bitcast=True))
    tl.store(part + 1, high.to(tl.int32, bitcast=True))
    tl.store(part + 2, count)
    tl.store((part + 4).to(tl.pointer_type(tl.float64)), mean)
    tl.store((part + 6).to(tl.pointer_type(tl.float64)), spread)


@triton.jit
def _count(row_ptr, bits, magnitude, there, finite, largest, tiny):
    """Add exponents and counts to the row."""
    classes = tl.histogram(tl.where(finite, (bits >> 23) & 511, NO_CLASS), CLASSES)
    numbers = tl.arange(0, CLASSES)
    tl.atomic_add(row_ptr + numbers, classes, mask=(classes > 0) & (numbers != NO_CLASS))
    zero, counts = finite & (magnitude == 0), row_ptr + COUNTS
    _add(counts + 0, finite)
    _add(counts + 1, there & (magnitude > INFINITE))
    _add(counts + 2, there & (bits == INFINITE))
    _add(counts + 3, there & (magnitude == INFINITE) & (bits < 0))
    _add(counts + 4, zero)
    _add(counts + 5, zero & (bits == 0))
    _add(counts + 6, finite & (magnitude != 0) & (magnitude < tiny))
    _add(counts + 7, finite & (magnitude == largest) & (largest > 0))


@triton.jit
def _add(ptr, which):
    tl.atomic_add(ptr, tl.sum(which.to(tl.int32)))


@triton.jit
def _moments(x, finite, size, lowest, highest):
    """Return the mean of a block and the sum of squared distances from it, in float64.

    Elements are brought next to 1 by a power of two, so that no square overflows or vanishes.
    """
    largest = tl.maximum(-lowest, highest)
    exponent = (largest.to(tl.int32, bitcast=True) >> 23) & 255
    field = tl.minimum(tl.maximum(254 - exponent, 1), 253)
    scale = (field << 23).to(tl.float32, bitcast=True)
    y = tl.where(finite, x, 0.0) * scale
    middle = tl.sum(y) / size.to(tl.float32)
    middle = tl.minimum(tl.maximum(middle, lowest * scale), highest * scale)
    d = tl.where(finite, y - middle, 0.0)
    off = tl.sum(d).to(tl.float64) / size.to(tl.float64)
    squares = tl.sum(d * d).to(tl.float64) - off * off * size.to(tl.float64)
    unit = scale.to(tl.float64)
    return (middle.to(tl.float64) + off) / unit, tl.maximum(squares, 0.0) / unit / unit
