"""What the loops of the compiled kernel know of addresses and of the bits of numbers."""

from __future__ import annotations

import numpy as np
from numba import int32, njit, types
from numba.extending import intrinsic

MAGNITUDE = np.int32(0x7FFFFFFF)
INFINITE = np.int32(0x7F800000)
NORMAL = np.int32(0x00800000)
"""Bits of the smallest normal float32: what is below is zero or subnormal."""

MAGNITUDE64 = np.int64(0x7FFFFFFFFFFFFFFF)
INFINITE64 = np.int64(0x7FF0000000000000)
LARGEST64 = np.int64(0x7FEFFFFFFFFFFFFF)
"""The same for float64, and the bits of its largest number."""

# sums may be taken in any order; NaN, infinities and subnormals keep their meaning
loop = njit(
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


float32_at, float64_at = _pointer(types.float32), _pointer(types.float64)
int32_at, int64_at = _pointer(types.int32), _pointer(types.int64)
int16_at, uint8_at = _pointer(types.int16), _pointer(types.uint8)
uint16_at, uint32_at = _pointer(types.uint16), _pointer(types.uint32)


@intrinsic
def root(_context, _value):
    """Return the square root by the processor's instruction, not by a call to the C library."""

    def code(_context, builder, _signature, args):
        return builder.call(builder.module.declare_intrinsic("llvm.sqrt", [args[0].type]), args)

    return types.float64(types.float64), code


@loop
def value_of(key, cell):
    """Return the number that a key stands for, in float64."""
    bits = key if key >= 0 else int32(key ^ MAGNITUDE)
    magnitude = int32(bits & MAGNITUDE)
    if magnitude < NORMAL:
        value = np.float64(magnitude) * 2.0**-149
        return -value if bits < 0 else value
    int32_at(cell)[0] = bits
    return np.float64(float32_at(cell)[0])


@loop
def power_of_two(power, cell):
    """Return 2**power, a normal number."""
    int32_at(cell)[0] = int32((power + 127) << 23)
    return float32_at(cell)[0]
