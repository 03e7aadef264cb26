"""How the compiled loops read a block of elements of any type and any strides."""

from __future__ import annotations

import numpy as np
from numba import int32

from probe_nb.stats.kernels.cpu_bits import (
    float32_at,
    float64_at,
    int16_at,
    int32_at,
    int64_at,
    loop,
    uint8_at,
    uint16_at,
    uint32_at,
)
from probe_nb.stats.kernels.cpu_places import (
    ADDRESS,
    BFLOAT16,
    BITS8,
    BITS16,
    BITS32,
    BUFFER,
    BYTE,
    COUNTS,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    GATHERED,
    INT16,
    INT32,
    INT64,
    ITEM,
    KIND,
    NDIM,
    SIZES,
    STRIDES,
    TABLE,
)


@loop
def block_in_float32(start, size, scratch):
    """Return where a block lies in float32: where it is, or in the buffer it is widened to."""
    given, buffer = int64_at(scratch + COUNTS), scratch + BUFFER
    kind, place = given[KIND], _place(start, size, scratch)
    if kind == FLOAT32:
        return place
    if kind == FLOAT16:
        _from_float16(uint16_at(place), size, buffer)
    elif kind == BFLOAT16:
        _from_bfloat16(uint16_at(place), size, int32_at(buffer))
    elif kind == BYTE:
        _from_table(uint8_at(place), size, int32_at(given[TABLE]), int32_at(buffer))
    elif kind == INT16:
        _convert(int16_at(place), size, float32_at(buffer))
    else:
        _convert(uint16_at(place), size, float32_at(buffer))
    return buffer


@loop
def block_in_float64(start, size, scratch):
    """Return where a block lies in float64: where it is, or in the buffer it is widened to."""
    kind, place = int64_at(scratch + COUNTS)[KIND], _place(start, size, scratch)
    buffer = scratch + BUFFER
    if kind == FLOAT64:
        return place
    if kind == INT32:
        _convert_wide(int32_at(place), size, float64_at(buffer))
    elif kind == INT64:
        _convert_wide(int64_at(place), size, float64_at(buffer))
    else:
        _convert_wide(uint32_at(place), size, float64_at(buffer))
    return buffer


@loop
def _place(start, size, scratch):
    """Return where the elements of a block lie side by side."""
    given = int64_at(scratch + COUNTS)
    if given[NDIM] == 0:
        return given[ADDRESS] + given[ITEM] * start
    _gather(given, start, size, scratch + GATHERED)
    return scratch + GATHERED


@loop
def _gather(given, start, size, out):
    """Copy a block of a tensor with gaps; its last dimension is the one of smallest stride."""
    last, item = given[NDIM] - 1, given[ITEM]
    step, done = given[STRIDES + last], 0
    while done < size:
        rest, place = start + done, given[ADDRESS]
        inner = rest % given[SIZES + last]
        for dim in range(last, -1, -1):
            place += rest % given[SIZES + dim] * given[STRIDES + dim]
            rest //= given[SIZES + dim]
        run = min(given[SIZES + last] - inner, size - done)
        _copy(place, step, run, item, out + item * done)
        done += run


@loop
def _copy(place, step, n, item, out):
    if item == BITS32:
        for i in range(n):
            int32_at(out)[i] = int32_at(place + i * step)[0]
    elif item == BITS16:
        for i in range(n):
            int16_at(out)[i] = int16_at(place + i * step)[0]
    elif item == BITS8:
        for i in range(n):
            uint8_at(out)[i] = uint8_at(place + i * step)[0]
    else:
        for i in range(n):
            int64_at(out)[i] = int64_at(place + i * step)[0]


@loop
def _from_float16(narrow, n, buffer):
    """Widen by the bits; a subnormal becomes the normal number that it is in float32."""
    bits, x = int32_at(buffer), float32_at(buffer)
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


@loop
def _from_bfloat16(narrow, n, bits):
    for i in range(n):
        bits[i] = int32(int32(narrow[i]) << 16)


@loop
def _from_table(narrow, n, table, bits):
    for i in range(n):
        bits[i] = table[narrow[i]]


@loop
def _convert(narrow, n, x):
    for i in range(n):
        x[i] = np.float32(narrow[i])


@loop
def _convert_wide(narrow, n, x):
    for i in range(n):
        x[i] = np.float64(narrow[i])
