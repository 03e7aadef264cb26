"""Statistics with torch operators on any device, without looking at a single result.

Every pass is done whether it is needed or not, because skipping one would mean asking the device
and waiting. One piece of a tensor becomes one row of 32-bit words that stays on the device until
the drain copies all rows at once. No float64: NPUs have none.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe_nb.exponents import BINS
from probe_nb.stats.layout import compact, pieces
from probe_nb.stats.numbers import Numbers, scaled

PIECE: Final = 1 << 20
"""Elements per piece: bounds the temporaries to about 30 MiB."""

FLOATS: Final = ("low", "high", "low_rest", "high_rest", "middle", "drift", "squares", "scale")
INTS: Final = ("finite", "nan", "posinf", "neginf", "zero", "pos_zero", "tiny", "at_max")
WORDS: Final = len(FLOATS) + len(INTS) + BINS


def summarize(x: Tensor) -> tuple[list[Tensor], int]:
    """Return one row of words per piece, on the device of `x`, and how often the rows count.

    Shape: each row (WORDS,) int32: the floats' bits, the counts, the raw classes.
    Cost: about thirty operators per piece of 2**20 elements, no synchronisation.
    """
    unit, repeats = compact(x)
    return [_row(piece) for piece in pieces(unit, PIECE)], repeats


def _row(piece: Tensor) -> Tensor:
    dtype = piece.dtype
    y = _widened(piece)
    bits = y.view(torch.int32)
    field = bits.bitwise_right_shift(23).bitwise_and_(511)
    ones = torch.ones_like(bits)
    classes = torch.zeros(BINS, dtype=torch.int32, device=y.device)
    classes = classes.scatter_add_(0, field.long(), ones)
    finite = field.bitwise_and(255).ne_(255).bool()
    kept = torch.where(finite, y, 0.0)
    low = torch.where(finite, y, math.inf).amin()
    high = torch.where(finite, y, -math.inf).amax()
    rests = _rests(piece, low, high)
    scale = _scale(torch.maximum(-low, high))
    count = finite.sum()
    moments = _moments(kept * scale, finite, count)
    floats = torch.stack([low, high, *rests, *moments, scale])
    zero = bits.bitwise_left_shift(1).eq(0)
    counts = torch.stack(
        [
            count,
            y.isnan().sum(),
            (y == math.inf).sum(),
            (y == -math.inf).sum(),
            zero.sum(),
            bits.eq(0).sum(),
            _below_normal(y, zero, dtype),
            _at_max(y, dtype),
        ]
    )
    return torch.cat([floats.view(torch.int32), counts.to(torch.int32), classes])


def _widened(piece: Tensor) -> Tensor:
    if piece.dtype == torch.float32:
        return piece.resolve_neg()
    if piece.is_complex():
        parts = torch.view_as_real(piece.resolve_conj().resolve_neg()).to(torch.float32)
        modulus = torch.hypot(parts[:, 0], parts[:, 1])
        return modulus.masked_fill(parts.isnan().any(1), math.nan)
    return piece.to(torch.float32)


def _rests(piece: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return what float32 loses of the range of an integer tensor, 0 for the others."""
    if piece.dtype not in (torch.int32, torch.int64):
        return torch.zeros_like(low), torch.zeros_like(high)
    smallest, largest = piece.amin().long(), piece.amax().long()
    return (smallest - low.long()).float(), (largest - high.long()).float()


def _scale(largest: Tensor) -> Tensor:
    """Return the power of two that brings the largest magnitude next to 1."""
    field = largest.view(torch.int32).bitwise_right_shift(23).bitwise_and(255)
    return (254 - field).clamp(1, 253).bitwise_left_shift(23).view(torch.float32)


def _moments(x: Tensor, finite: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a value near the mean, and the sums of the distances from it and their squares."""
    middle = x.sum() / count.clamp(min=1)
    d = torch.where(finite, x - middle, 0.0)
    return middle, d.sum(), (d * d).sum()


def _below_normal(y: Tensor, zero: Tensor, dtype: torch.dtype) -> Tensor:
    """Count the non-zero elements below the smallest normal number of their own dtype."""
    if not dtype.is_floating_point:
        return torch.zeros((), dtype=torch.int64, device=y.device)
    smallest = max(torch.finfo(dtype).tiny, torch.finfo(torch.float32).tiny)
    edge = torch.tensor(smallest, dtype=torch.float32).view(torch.int32).item()
    magnitude = y.view(torch.int32).bitwise_and(0x7FFFFFFF)
    return (magnitude < edge).logical_and(zero.logical_not()).sum()


def _at_max(y: Tensor, dtype: torch.dtype) -> Tensor:
    if not dtype.is_floating_point or dtype == torch.float64:
        return torch.zeros((), dtype=torch.int64, device=y.device)
    return (y.abs() == torch.finfo(dtype).max).sum()


def decode(rows: NDArray[np.int32], repeats: int) -> Numbers:
    """Turn the rows of one tensor, now on the host, into its numbers.

    Shape: rows (pieces, WORDS).
    """
    numbers = Numbers()
    for row in rows:
        numbers.merge(_decoded(row))
    numbers.repeat(repeats)
    return numbers


def _decoded(row: NDArray[np.int32]) -> Numbers:
    floats = row[: len(FLOATS)].view(np.float32).astype(float).tolist()
    low, high, low_rest, high_rest, middle, drift, squares, scale = floats
    ints = row[len(FLOATS) : len(FLOATS) + len(INTS)].tolist()
    finite, nan, posinf, neginf, zero, pos_zero, tiny, at_max = ints
    bins = row[-BINS:].astype(np.int64)
    bins[0] -= pos_zero
    bins[256] -= zero - pos_zero
    bins[255] = bins[511] = 0
    out = Numbers(
        nan=nan,
        posinf=posinf,
        neginf=neginf,
        zero=zero,
        subnormal=tiny,
        at_max=at_max,
        bins=bins,
    )
    if finite:
        power = -round(math.log2(scale))
        out.finite, out.low, out.high = finite, low + low_rest, high + high_rest
        out.mean = scaled(middle + drift / finite, power)
        out.spread = scaled(math.sqrt(max(squares - drift * drift / finite, 0.0)), power)
    return out
