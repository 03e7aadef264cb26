"""What lies where in the memory that Python and the compiled loops share; no numba."""

from __future__ import annotations

BLOCK = 2048
CLASSES = 512
DIMENSIONS = 8
"""Dimensions that a tensor without gaps to be merged may have."""

# in the scratch memory, in bytes: results, words, histogram, its four tables, two blocks
COUNTS, BINS = 64, 384
TABLES = BINS + 8 * CLASSES
BUFFER = TABLES + 4 * 4 * CLASSES
GATHERED = BUFFER + 8 * BLOCK
SCRATCH = GATHERED + 8 * BLOCK
CELL = 8 * 7

# the float64 results
LOW, HIGH, MEAN, STD, L2, ABSMAX = range(6)
SPREAD, TOGETHER = STD, L2  # while blocks are merged

# the words: what is counted,
FINITE, NAN, POSINF, NEGINF, ZERO, SUBNORMAL, AT_MAX = range(7)
LEAST, MOST, POSITIVE, NEGATIVE = 8, 9, 10, 11
# what changes from tensor to tensor: where it lies, how many elements it has, how often they
# count, where the row of its results is, the number of dimensions (0: side by side),
ADDRESS, SIZE, REPEATS, ROW, NDIM = 12, 13, 14, 15, 16
# what is known of the type: its number, the bits of its largest magnitude in float32, how many of
# the lowest classes are subnormal, its bytes, the float32 that each byte stands for,
KIND, LARGEST, BELOW, ITEM, TABLE = 17, 18, 19, 20, 21
# the header of the rows, and for a tensor with gaps its sizes and its strides in bytes
TARGET, SIZES, STRIDES = 22, 24, 32

BITS8, BITS16, BITS32 = 1, 2, 4
"""Bytes of an element."""

FLOAT32, FLOAT16, BFLOAT16, BYTE, INT16, UINT16 = range(6)
FLOAT64, INT32, INT64, UINT32 = range(10, 14)
WIDE = FLOAT64
"""Kinds of elements; from `WIDE` on they are reduced in float64."""

# in the row of results at ROW, in words, and in the header at TARGET: see `stats.results`
ROW_FINITE, ROW_FILLED, ROW_START = 6, 13, 14
NUMBERS, VALUES, CURSOR = 0, 1, 2
