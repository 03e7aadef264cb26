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
    except (OSError, ValueError, EOFError, MemoryError, OverflowError, SyntaxError) as error:
        raise ValueError(f"it is no array ({str(error)[:200]})") from None
    if not isinstance(array, np.ndarray):
        raise ValueError("it is no array")  # noqa: TRY004 - of the file, not of an argument
    return Saved(name, call, backward, dtype, array.shape, array.size, _measured(array))


def _measured(array: Any) -> Numbers:
    """Measure the elements in float64; what is not finite is counted and left out."""
    if not array.size:
        return Numbers("empty", counts=(0,) * 6, has_more=True)
    if array.dtype.kind not in "fiub" or array.size > _LARGEST:
        return Numbers("unsupported")
    flat = array.reshape(-1)
    pieces = (flat[at : at + _CHUNK] for at in range(0, flat.size, _CHUNK))
    return _joined([_counted(np.asarray(piece, np.float64)) for piece in pieces])


def _counted(x: np.ndarray) -> tuple[float, ...]:
    finite = x[np.isfinite(x)]
    lost = (np.isnan(x).sum(), np.isposinf(x).sum(), np.isneginf(x).sum(), (x == 0).sum())
    if not finite.size:
        return (*map(int, lost), 0, math.inf, -math.inf, 0.0, 0.0, 0.0)
    scale = float(np.abs(finite).max()) or 1.0
    mean = float(finite.mean())
    spread = float(np.square((finite - mean) / scale).sum()) * scale * scale
    square = float(np.square(finite / scale).sum()) * scale * scale
    ends = float(finite.min()), float(finite.max())
    return (*map(int, lost), finite.size, *ends, mean, spread, square)


def _joined(pieces: list[tuple[float, ...]]) -> Numbers:
    table = np.array(pieces)
    nan, above, below, zero, n = table[:, :5].sum(0)
    counts = (int(nan), int(above), int(below), int(zero), ABSENT, ABSENT)
    if not n:
        return Numbers("no_finite", counts=counts, has_more=True)
    low, high = float(table[:, 5].min()), float(table[:, 6].max())
    mean = float((table[:, 7] * table[:, 4]).sum() / n)
    between = float((table[:, 4] * np.square(table[:, 7] - mean)).sum())
    std = math.sqrt((float(table[:, 8].sum()) + between) / n)
    l2 = math.sqrt(float(table[:, 9].sum()))
    statistics = (low, high, mean, std, l2, max(abs(low), abs(high)))
    return Numbers("ok", statistics, counts, has_more=True)
