"""Arrays that MindSpore's `save` and `save_grad` write in static graphs, one file each.

Nothing else is known of them than what is in the file, so they are measured as they are read.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from probe_nb.dump.folders import trouble
from probe_nb.dump.numbers import Numbers
from probe_nb.store.table import ABSENT

_NAME: Final = re.compile(r"(.+?)(_grad)?_([a-z]+[0-9]*)_(0|[1-9][0-9]{0,8})\.npy", re.DOTALL)
_CHUNK: Final = 2**22
_DOUBLE: Final = 8
"""Bytes of the widest float that is measured."""
_FAR: Final = 2000
"""Minus this is below the exponent of every number: that of zeros."""
_LARGEST: Final = 2**31
"""Elements up to which an array is measured: what takes minutes was asked for by nobody."""


class Saved(NamedTuple):
    """One array: the name that it was given, its number, and whether it is a gradient."""

    name: str
    call: int
    backward: bool
    dtype: str
    shape: tuple[int, ...]
    numel: int
    numbers: Numbers


def named(file: str) -> tuple[str, bool, str, int] | None:
    """Return what the name of a file says, None if no `save` named it.

    >>> named("x_grad_float32_0.npy")
    ('x', True, 'float32', 0)
    """
    found = _NAME.fullmatch(file)
    return None if found is None else (found[1], bool(found[2]), found[3], int(found[4]))


def read(path: Path, root: Path) -> Saved:
    """Return an array that was saved.

    Raises:
        ValueError: It cannot be read; the message says why.
    """
    said = named(path.name)
    if said is None:
        raise ValueError("no `save` named it so")
    if why := trouble(path, root):
        raise ValueError(why)
    name, backward, dtype, call = said
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # its header is taken apart as Python: anything may come of it
        raise ValueError(f"it is no array ({str(error)[:200]})") from None
    if not isinstance(array, np.ndarray):
        raise ValueError("it is no array")  # noqa: TRY004 - of the file, not of an argument
    return Saved(name, call, backward, dtype, array.shape, array.size, _measured(array))


def _measured(array: Any) -> Numbers:
    """Measure the elements in float64; what is not finite is counted and left out."""
    if not array.size:
        return Numbers("empty", counts=(0,) * 6, has_more=True)
    wider = array.dtype.kind == "f" and array.dtype.itemsize > _DOUBLE
    if array.dtype.kind not in "fiub" or wider or array.size > _LARGEST:
        return Numbers("unsupported")
    rows = array.T if array.flags.f_contiguous else array  # as they lie in the file: no copy
    flat = rows.reshape(-1)
    pieces = (flat[at : at + _CHUNK] for at in range(0, flat.size, _CHUNK))
    return _joined([_counted(np.asarray(piece, np.float64)) for piece in pieces])


class _Piece(NamedTuple):
    """What is known of some elements; mean and sums of squares are of x / 2**exponent."""

    lost: tuple[int, ...]
    n: int
    low: float = math.inf
    high: float = -math.inf
    exponent: int = -_FAR
    mean: float = 0.0
    spread: float = 0.0
    square: float = 0.0


def _counted(x: np.ndarray) -> _Piece:
    finite = x[np.isfinite(x)]
    lost = tuple(int(each.sum()) for each in (np.isnan(x), x == np.inf, x == -np.inf, x == 0))
    if not finite.size:
        return _Piece(lost, 0)
    low, high = float(finite.min()), float(finite.max())
    peak = max(abs(low), abs(high))
    exponent = math.frexp(peak)[1] if peak else -_FAR
    y = np.ldexp(finite, -exponent)  # none is larger than 1: squares do not overflow
    mean = float(y.mean())
    sums = float(np.square(y - mean).sum()), float(np.square(y).sum())
    return _Piece(lost, finite.size, low, high, exponent, mean, *sums)


def _joined(pieces: list[_Piece]) -> Numbers:
    nan, above, below, zero = (sum(each.lost[at] for each in pieces) for at in range(4))
    counts = (nan, above, below, zero, ABSENT, ABSENT)
    pieces = [each for each in pieces if each.n]
    if not pieces:
        return Numbers("no_finite", counts=counts, has_more=True)
    n, exponent = sum(each.n for each in pieces), max(each.exponent for each in pieces)
    shares = [math.ldexp(1.0, each.exponent - exponent) for each in pieces]
    both = [*zip(pieces, shares, strict=True)]
    mean = sum(each.n * each.mean * share for each, share in both) / n
    between = sum(each.n * (each.mean * share - mean) ** 2 for each, share in both)
    within = sum(each.spread * share**2 for each, share in both)
    square = sum(each.square * share**2 for each, share in both)
    low, high = min(each.low for each in pieces), max(each.high for each in pieces)
    std, l2 = math.sqrt((within + between) / n), math.sqrt(square)
    ends = (math.ldexp(each, -exponent) for each in (low, high))
    mean = sorted((mean, *ends))[1]  # rounding leaves it between them
    mean, std, l2 = (_grown(each, exponent) for each in (mean, std, l2))
    statistics = (low, high, mean, std, l2, max(abs(low), abs(high)))
    return Numbers("ok", statistics, counts, has_more=True)


def _grown(value: float, exponent: int) -> float:
    """Return value * 2**exponent, NaN (absent) where no float64 is so large."""
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.nan
