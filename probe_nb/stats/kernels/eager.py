"""Statistics with torch operators on any device, without looking at a single result.

Every pass is done whether it is needed or not, because skipping one would mean asking the device
and waiting. One piece of a tensor becomes one row of 32-bit words that stays on the device until
the drain copies all rows at once.

The arithmetic is float32, also for wide integers, on devices without float64. Elsewhere tensors
that float32 cannot hold are reduced in float64.
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe_nb.exponents import BINS
from probe_nb.stats.kernels.integers import exact_classes, from_lowest
from probe_nb.stats.layout import compact, pieces
from probe_nb.stats.numbers import Numbers, scaled

Kind = Literal["narrow", "wide", "integer"]

PIECE: Final = 1 << 20
"""Elements per piece: bounds the temporaries to about 40 MiB."""

FLOATS: Final = ("low", "high", "middle", "drift", "squares", "scale")
INTS: Final = ("finite", "nan", "posinf", "neginf", "zero", "pos_zero", "tiny", "at_max")
LIMITS: Final = 4
"""Words for the exact lowest and highest value of an integer tensor, two each."""

_START_INTS: Final = 2 * len(FLOATS)
_START_LIMITS: Final = _START_INTS + len(INTS)
WORDS: Final = _START_LIMITS + LIMITS + BINS

_LARGE_INTEGERS: Final = (torch.int32, torch.int64, torch.uint32)
_DOUBLES: Final = (torch.float64, torch.complex64, torch.complex128, torch.uint64)


class Rows(NamedTuple):
    """The rows of one tensor, still on its device: each (WORDS,) int32."""

    words: list[Tensor]
    repeats: int
    kind: Kind


def summarize(x: Tensor, *, float64: bool = True) -> Rows:
    """Reduce a strided tensor; `float64` tells whether its device has that type.

    Cost: about forty operators per piece of 2**20 elements, no synchronisation.
    """
    unit, repeats = compact(x)
    kind: Kind = "narrow"
    if x.dtype in _LARGE_INTEGERS:
        kind = "wide" if float64 else "integer"
    elif x.dtype in _DOUBLES and float64:
        kind = "wide"
    return Rows([_row(piece, kind) for piece in pieces(unit, PIECE)], repeats, kind)


def _row(piece: Tensor, kind: Kind) -> Tensor:
    dtype = piece.dtype
    y, limits = _widened(piece, kind)
    field, zero, pos_zero = _fields(y)
    finite = y.isfinite()
    classes = exact_classes(piece) if kind == "integer" else field
    counted = torch.zeros(BINS, dtype=torch.int32, device=y.device)
    counted.scatter_add_(0, classes.long(), finite.to(torch.int32))
    moments = _moments(y, finite)
    counts = torch.stack(
        [
            finite.sum(),
            y.isnan().sum(),
            (y == math.inf).sum(),
            (y == -math.inf).sum(),
            zero.sum() if kind != "integer" else piece.eq(0).sum(),
            pos_zero.sum() if kind != "integer" else piece.eq(0).sum(),
            _below_normal(y, zero, dtype),
            _at_max(y, dtype),
        ]
    )
    return torch.cat([_words(moments), counts.to(torch.int32), limits, counted])


def _widened(piece: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """Return the elements in float32 or float64, and the exact limits of an integer piece."""
    none = torch.zeros(LIMITS, dtype=torch.int32, device=piece.device)
    if kind == "integer":
        return from_lowest(piece)
    if piece.is_complex():
        return _modulus(piece, kind), none
    if piece.is_neg():
        piece = piece.resolve_neg()
    return piece.to(torch.float64 if kind == "wide" else torch.float32), none


def _modulus(piece: Tensor, kind: Kind) -> Tensor:
    """Return |z|; NaN in either part makes NaN, although hypot(inf, nan) is inf."""
    parts = torch.view_as_real(piece.resolve_conj().resolve_neg())
    parts = parts.to(torch.float64 if kind == "wide" else torch.float32)
    modulus = torch.hypot(parts[:, 0], parts[:, 1])
    return modulus.masked_fill(parts.isnan().any(1), math.nan)


def _fields(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the class of each element by sign and exponent, what is zero, and what is +0."""
    if y.dtype == torch.float32:
        bits = y.view(torch.int32)
        field = bits.bitwise_right_shift(23).bitwise_and_(511)
    else:
        bits = y.view(torch.int64)
        exponent = bits.bitwise_right_shift(52).bitwise_and_(2047) - (1023 - 127)
        field = exponent.clamp_(0, 255) + (bits < 0).long() * 256
    return field, bits.bitwise_left_shift(1).eq(0), bits.eq(0)


def _moments(y: Tensor, finite: Tensor) -> Tensor:
    """Return FLOATS: the range, a value near the mean, sums of distances from it, the scale."""
    low = torch.where(finite, y, math.inf).amin()
    high = torch.where(finite, y, -math.inf).amax()
    scale = _scale(torch.maximum(-low, high))
    x = torch.where(finite, y, 0.0) * scale
    middle = x.sum() / finite.sum().clamp(min=1)
    middle = torch.minimum(torch.maximum(middle, low * scale), high * scale)
    d = torch.where(finite, x - middle, 0.0)
    return torch.stack([low, high, middle, d.sum(), (d * d).sum(), scale])


def _scale(largest: Tensor) -> Tensor:
    """Return the power of two that brings the largest magnitude next to 1."""
    if largest.dtype == torch.float32:
        field = largest.view(torch.int32).bitwise_right_shift(23).bitwise_and(255)
        return (254 - field).clamp(1, 253).bitwise_left_shift(23).view(torch.float32)
    field = largest.view(torch.int64).bitwise_right_shift(52).bitwise_and(2047)
    return (2046 - field).clamp(1, 2045).bitwise_left_shift(52).view(torch.float64)


def _words(floats: Tensor) -> Tensor:
    """Return floats as int32 words, padded to the length that float64 takes."""
    words = floats.view(torch.int32)
    padding = words.new_zeros(2 * len(FLOATS) - words.numel())
    return torch.cat([words, padding])


def _below_normal(y: Tensor, zero: Tensor, dtype: torch.dtype) -> Tensor:
    """Count the non-zero elements below the smallest normal number of their own dtype.

    Bits are compared, not values: a device may flush subnormals to zero.
    """
    if not dtype.is_floating_point:
        return torch.zeros((), dtype=torch.int64, device=y.device)
    tiny = torch.finfo(dtype).tiny
    if y.dtype == torch.float32:
        edge = int(np.float32(tiny).view(np.int32))
        magnitude = y.view(torch.int32).bitwise_and(0x7FFFFFFF)
    else:
        edge = int(np.float64(tiny).view(np.int64))
        magnitude = y.view(torch.int64).bitwise_and(0x7FFFFFFFFFFFFFFF)
    return (magnitude < edge).logical_and(zero.logical_not()).sum()


def _at_max(y: Tensor, dtype: torch.dtype) -> Tensor:
    if not dtype.is_floating_point:
        return torch.zeros((), dtype=torch.int64, device=y.device)
    return (y.abs() == torch.finfo(dtype).max).sum()


def decode(words: NDArray[np.int32], repeats: int, kind: Kind) -> Numbers:
    """Turn the rows of one tensor, now on the host, into its numbers.

    Shape: words (pieces * WORDS,), or with a dimension for the pieces.
    """
    numbers = Numbers()
    for row in words.reshape(-1, WORDS):
        numbers.merge(_decoded(row, kind))
    numbers.repeat(repeats)
    return numbers


def _decoded(row: NDArray[np.int32], kind: Kind) -> Numbers:
    wide = kind == "wide"
    n = _START_INTS if wide else len(FLOATS)
    floats = row[:n].copy().view(np.float64 if wide else np.float32).astype(float).tolist()
    low, high, middle, drift, squares, scale = floats
    ints = row[_START_INTS:_START_LIMITS].tolist()
    finite, nan, posinf, neginf, zero, pos_zero, tiny, at_max = ints
    out = Numbers(nan=nan, posinf=posinf, neginf=neginf, zero=zero, subnormal=tiny, at_max=at_max)
    out.bins = row[-BINS:].astype(np.int64)
    out.bins[0] -= pos_zero
    out.bins[256] -= zero - pos_zero
    if finite:
        power = -round(math.log2(scale))
        out.finite, out.low, out.high = finite, low, high
        out.mean = scaled(middle + drift / finite, power)
        variance = squares / finite - (drift / finite) ** 2
        out.std = scaled(math.sqrt(max(variance, 0.0)), power)
        if kind == "integer":
            lowest, highest = row[_START_LIMITS:-BINS].copy().view(np.int64).tolist()
            out.low, out.high, out.mean = float(lowest), float(highest), lowest + out.mean
    return out
