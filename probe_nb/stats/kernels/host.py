"""Statistics of a plain CPU tensor with torch operators, piece by piece in cache.

The formulas are those of `eager`. Here the results can be looked at for free, so whole passes
are skipped: a piece without zeros, infinities or NaN is read for its range, its exponents and
its sums only.
"""

from __future__ import annotations

import math
import threading
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe_nb.exponents import BINS
from probe_nb.stats.layout import compact, pieces
from probe_nb.stats.numbers import Numbers, scaled

PIECE: Final = 1 << 18
"""Elements per piece: small enough for the cache, large enough that twenty calls do not count."""

_SAFE: Final = {
    torch.float32: (2.0**-30, 2.0**54, 126),
    torch.float64: (2.0**-400, 2.0**400, 1000),
}
"""Largest magnitudes between which squares neither overflow nor vanish; the widest power of two."""

_DOUBLE: Final = (torch.float64, torch.int32, torch.int64, torch.uint32, torch.uint64)


class Scratch(threading.local):
    """Two temporaries of one piece, kept per thread: fresh memory would cost a page fault each."""

    _held: tuple[Tensor, Tensor] | None = None

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Return the int32 and the float32 temporary, made on first use in a thread."""
        if self._held is None:
            with torch._C._InferenceMode(False):
                field = torch.empty(PIECE, dtype=torch.int32, device="cpu")
                distance = torch.empty(PIECE, dtype=torch.float32, device="cpu")
            self._held = field, distance
        return self._held


def summarize(x: Tensor, scratch: Scratch) -> Numbers:
    """Reduce a strided CPU tensor of any dtype but quantised ones.

    Cost: five reads of each element, temporaries of two pieces.
    """
    unit, repeats = compact(x)
    numbers = Numbers()
    for piece in pieces(unit, PIECE):
        numbers.merge(_piece(_widened(piece), x.dtype, scratch))
    if x.dtype.is_floating_point and x.dtype != torch.float64:
        numbers.subnormal = _subnormal(x.dtype, numbers.bins)
    numbers.repeat(repeats)
    return numbers


def _widened(piece: Tensor) -> Tensor:
    """Return the piece in float32 or float64, whichever holds its dtype exactly."""
    if piece.is_complex():
        return _modulus(piece)
    if piece.is_neg():
        piece = piece.resolve_neg()
    if piece.dtype == torch.float32:
        return piece
    return piece.to(torch.float64 if piece.dtype in _DOUBLE else torch.float32)


def _modulus(piece: Tensor) -> Tensor:
    """Return |z| in float64; NaN in either part makes NaN, although hypot(inf, nan) is inf."""
    parts = torch.view_as_real(piece.resolve_conj().resolve_neg().to(torch.complex128))
    modulus = torch.hypot(parts[:, 0], parts[:, 1])
    return modulus.masked_fill_(parts.isnan().any(1), math.nan)


def _piece(y: Tensor, dtype: torch.dtype, scratch: Scratch) -> Numbers:
    """Reduce one flat float32 or float64 tensor; `dtype` is what the elements were before."""
    out = Numbers()
    out.bins, special, tiny = _classes(y, scratch)
    if special:
        out.nan = int(torch.isnan(y).sum())
        out.posinf = int((y == math.inf).sum())
        out.neginf = special - out.nan - out.posinf
        y = y[torch.isfinite(y)]
    if tiny:
        out.zero = _drop_zeros(y, out.bins, tiny)
    if dtype == torch.float64 and out.bins[0] + out.bins[256]:
        tiny_ones = (y.abs() < torch.finfo(dtype).tiny).logical_and_(y != 0)
        out.subnormal = int(tiny_ones.sum())
    out.finite = y.numel()
    if out.finite:
        _moments(y, out, scratch)
        out.at_max = _at_max(y, dtype, max(-out.low, out.high))
    return out


def _classes(y: Tensor, scratch: Scratch) -> tuple[NDArray[np.int64], int, int]:
    """Count by sign and exponent field; return also the non-finite and the lowest class."""
    if y.dtype == torch.float32:
        field = scratch()[0][: y.numel()]
        torch.bitwise_right_shift(y.view(torch.int32), 23, out=field).bitwise_and_(511)
        bins = torch.bincount(field, minlength=BINS).numpy()
        special = int(bins[255] + bins[511])
        bins[255] = bins[511] = 0
    else:
        bins, special = _wide_classes(y)
    return bins, special, int(bins[0] + bins[256])


def _wide_classes(y: Tensor) -> tuple[NDArray[np.int64], int]:
    """Count a float64 tensor by the exponents of float32, the ends taking what lies beyond."""
    field = y.view(torch.int64).bitwise_right_shift(52).bitwise_and_(4095)
    wide = torch.bincount(field, minlength=4096).numpy().reshape(2, 2048)
    first, last = 1023 - 126, 1023 + 128
    bins = np.zeros((2, 256), np.int64)
    bins[:, 0] = wide[:, :first].sum(1)
    bins[:, 1:255] = wide[:, first:last]
    bins[:, 255] = wide[:, last:2047].sum(1)
    return bins.reshape(-1), int(wide[:, 2047].sum())


def _drop_zeros(y: Tensor, bins: NDArray[np.int64], tiny: int) -> int:
    """Take the zeros out of the lowest class and return their number.

    Bits are compared, not values: under flush-to-zero a subnormal would compare equal to 0.
    """
    bits = y.view(torch.int32 if y.dtype == torch.float32 else torch.int64)
    zero = y.numel() - int(torch.count_nonzero(bits.bitwise_left_shift(1)))
    if zero == tiny:
        bins[0] = bins[256] = 0
    elif zero:
        positive = y.numel() - int(torch.count_nonzero(bits))
        bins[0] -= positive
        bins[256] -= zero - positive
    return zero


def _subnormal(dtype: torch.dtype, bins: NDArray[np.int64]) -> int:
    """Count non-zero elements below the smallest normal number of a type up to 32 bits."""
    classes = math.frexp(torch.finfo(dtype).tiny)[1] - 1 + 127
    return int(bins[:classes].sum() + bins[256 : 256 + classes].sum())


def _moments(y: Tensor, out: Numbers, scratch: Scratch) -> None:
    low, high = torch.aminmax(y)
    out.low, out.high = low.item(), high.item()
    largest = max(-out.low, out.high)
    if largest == 0:
        return
    power = _power(largest, y.dtype)
    if power:
        y = y * 2.0**power
    n = out.finite
    middle = min(max(y.sum().item() / n, out.low * 2.0**power), out.high * 2.0**power)
    if y.dtype == torch.float32:
        middle = float(np.float32(middle))
        d = torch.sub(y, middle, out=scratch()[1][:n])
    else:
        d = y - middle
    drift = d.sum().item()
    variance = d.mul_(d).sum().item() / n - (drift / n) ** 2
    out.mean = scaled(middle + drift / n, -power)
    out.std = scaled(math.sqrt(max(variance, 0.0)), -power)


def _power(largest: float, dtype: torch.dtype) -> int:
    """Return the power of two to scale by before squaring, 0 where no scaling is needed."""
    low, high, limit = _SAFE[dtype]
    if low < largest < high:
        return 0
    return max(-limit, min(limit, -math.frexp(largest)[1]))


def _at_max(y: Tensor, dtype: torch.dtype, largest: float) -> int:
    """Count the elements that sit at the end of a floating type's range (saturation)."""
    if not dtype.is_floating_point or largest != torch.finfo(dtype).max:
        return 0
    return int((y.abs() == largest).sum())
