"""A small picture of a kept tensor: one slice of two dimensions, pooled so that no fault is lost.

torch is not needed: bytes are read as they lie in memory or in a file.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.compare.tensors import array_of
from probe_nb.errors import RunFormatError
from probe_nb.store.kept import Kept
from probe_nb.store.tensors import Stored, bytes_of
from probe_nb.terms import Site
from probe_nb.view import wire

SIDE: Final = 64
"""Cells along a side; of a longer one neighbours share a cell."""

_PIECE: Final = 2**20
"""Elements that are searched at one time."""

_TIMES: Final = "\N{MULTIPLICATION SIGN}"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Picture:
    """What is drawn of a tensor.

    Attributes:
        values: Of each cell the element of largest magnitude; NaN where one of them is NaN.
        about: What JSON can hold: `step`, `call`, `shape`, `dtype`; in words `slice`, `pooled` and
            `part`; `nan`, `posinf` and `neginf`, counted in the slice.
    """

    values: Floats
    about: dict[str, Any]


class Undrawn(Exception):  # noqa: N818 - no fault: there is nothing to draw, and a reason
    """Says why a tensor has no picture."""


def picture_of(kept: Kept) -> Picture:
    """Return the picture of a kept tensor.

    Raises:
        Undrawn: There is none.
    """
    matrices, place = _matrices(_elements(kept), kept.shape)
    cells, counts = pooled(matrices[place])
    about = {
        "step": kept.step,
        "call": kept.call,
        "shape": list(kept.shape),
        "dtype": kept.dtype,
        "slice": _which(kept.shape, place, bad=any(counts.values())),
        "pooled": _words(matrices.shape[1:]),
        "part": "magnitudes" if kept.dtype.startswith("complex") else "",
        **counts,
    }
    return Picture(cells, about)


def _elements(kept: Kept) -> NDArray[Any]:
    """Return the elements in one row, complex ones as magnitudes."""
    if 0 in kept.shape:
        raise Undrawn("The tensor has no elements.")
    try:
        data = _plain(kept.data) if isinstance(kept.data, Stored) else bytes_of(kept)
    except FileNotFoundError as error:
        raise Undrawn("The file with the tensor is gone.") from error
    except (OSError, RunFormatError, LookupError, TypeError, ValueError) as error:
        raise Undrawn(f"The tensor cannot be read: {error}") from error
    if data is None:
        raise Undrawn(f"The tensor is {kept.status}.")
    elements = array_of(replace(kept, data=data))
    if elements is None:
        raise Undrawn(f"{kept.dtype} cannot be drawn.")
    if elements.size != math.prod(kept.shape):
        raise Undrawn(f"The tensor cannot be read: {data.nbytes:,} bytes are not its shape.")
    return np.abs(elements) if elements.dtype.kind == "c" else elements


def _plain(stored: Stored) -> NDArray[np.uint8]:
    """Read a tensor out of a safetensors file, whose layout is simple, and check its sum."""
    with stored.path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > stored.path.stat().st_size:
            raise ValueError(f"`{stored.path}` is damaged")
        begin, end = json.loads(file.read(size))[stored.key]["data_offsets"]
        file.seek(8 + size + begin)
        data = file.read(stored.bytes if end - begin == stored.bytes else 0)
    if zlib.crc32(data) != stored.crc:
        raise ValueError(f"tensor {stored.key} of `{stored.path}` is damaged")
    return np.frombuffer(data, np.uint8)


def _matrices(elements: NDArray[Any], shape: Sequence[int]) -> tuple[NDArray[Any], int]:
    """Return a tensor as matrices, and which of them is drawn: the first with NaN or Inf."""
    rows, columns = ((1, 1, *shape)[-2:]) if len(shape) > 1 else (1, elements.size)
    return elements.reshape(-1, rows, columns), _first_bad(elements) // (rows * columns)


def _first_bad(elements: NDArray[Any]) -> int:
    """Return the place of the first element that is not finite; 0 if there is none."""
    if elements.dtype.kind != "f":
        return 0
    for begin in range(0, elements.size, _PIECE):
        bad = ~np.isfinite(elements[begin : begin + _PIECE])
        if bad.any():
            return begin + int(bad.argmax())
    return 0


def pooled(matrix: NDArray[Any]) -> tuple[Floats, dict[str, int]]:
    """Return at most 64 by 64 cells, each with its largest magnitude, and what is not finite.

    >>> pooled(np.array([[1.0, -3.0, np.nan]]))[1]
    {'nan': 1, 'posinf': 0, 'neginf': 0}
    """
    starts = [_starts(size) for size in matrix.shape]
    cells = np.empty([len(each) for each in starts])
    counts = dict.fromkeys(("nan", "posinf", "neginf"), 0)
    ends = [*starts[0][1:].tolist(), len(matrix)]
    for row, (begin, end) in enumerate(zip(starts[0].tolist(), ends, strict=True)):
        band = matrix[begin:end].astype(np.float64)  # a band at a time: wide copies are large
        nan = np.isnan(band)
        counts["nan"] += int(nan.sum())
        counts["posinf"] += int(np.isposinf(band).sum())
        counts["neginf"] += int(np.isneginf(band).sum())
        band[nan] = 0.0
        high = np.maximum.reduceat(band.max(axis=0), starts[1])
        low = np.minimum.reduceat(band.min(axis=0), starts[1])
        found = np.where(high >= -low, high, low)
        found[np.logical_or.reduceat(nan.any(axis=0), starts[1])] = np.nan
        cells[row] = found
    return cells, counts


def _starts(size: int) -> NDArray[np.intp]:
    """Return where each cell begins along a side: no two differ by more than one element."""
    cells = min(size, SIDE)
    return np.arange(cells) * size // cells


# -- in words ------------------------------------------------------------------------------------


def _which(shape: Sequence[int], place: int, *, bad: bool) -> str:
    """Say which slice is drawn, where there are several."""
    leading = tuple(shape[:-2])
    if math.prod(leading) == 1:
        return ""
    index = ", ".join(map(str, np.unravel_index(place, leading)))
    return f"slice [{index}]" + (", the first with NaN or Inf" if bad else "")


def _words(sizes: Sequence[int]) -> str:
    """Say how many elements a cell has, where they are several."""
    each = [-(-size // min(size, SIDE)) for size in sizes]
    if each == [1, 1]:
        return ""
    uneven = any(size % min(size, SIDE) for size in sizes)
    return f"each cell the largest of {'up to ' * uneven}{each[0]}{_TIMES}{each[1]} elements"


# -- of a row of the inspector -------------------------------------------------------------------


def name(of: Kept | Site) -> tuple[str, ...]:
    """Return what a site and the tensors that are kept of it have in common."""
    return (of.model, of.module, of.api, of.direction, of.role, of.leaf)


def of_site(
    known: Sequence[Kept], site: Site, step: int | None = None, call: tuple[int, int] = (-1, -1)
) -> Picture:
    """Return the picture of what a run kept of a site.

    It is of this step where that is there, else of the newest; and in it of this micro step and
    call, else of the last one.

    Raises:
        Undrawn: There is none.
    """
    wanted = [each for each in known if name(each) == name(site)]
    there = [each for each in wanted if each.data is not None]
    if not there:
        raise Undrawn(_why(wanted[-1] if wanted else None))
    steps = {each.step for each in there}
    chosen = step if step in steps else max(steps)
    there = [each for each in there if each.step == chosen]
    return picture_of(
        max(there, key=lambda k: ((k.micro_step, k.call) == call, k.micro_step, k.call))
    )


def unkept(known: Sequence[Kept], sites: Sequence[Site]) -> list[str]:
    """Return of each site why nothing of it is kept; empty where something is."""
    last = {name(each): each for each in known}
    there = {name(each) for each in known if each.data is not None}
    return ["" if name(site) in there else _why(last.get(name(site))) for site in sites]


def _why(last: Kept | None) -> str:
    """Say why nothing is kept of a site, by the last that was to be."""
    return "keep= did not ask for this tensor." if last is None else f"The tensor is {last.status}."


def packed(row: int, asked: int | None, draw: Callable[[], Picture]) -> bytes:
    """Write the picture of a row, or why there is none, as the answer to what was asked."""
    try:
        found = draw()
    except Undrawn as error:
        why = str(error)
    except Exception as error:
        why = f"The tensor cannot be drawn: {type(error).__name__}: {error}"
    else:
        return wire.picture(row, {"asked": asked, **found.about}, found.values)
    return wire.picture(row, {"asked": asked, "why": why}, np.empty((0, 0)))
