"""How numbers reach the inspector's front end: as bytes, because JSON has neither NaN nor infinity.

A frame of a run (version 1), little endian; each block starts on a multiple of 8 bytes:

    uint32  [8]     magic, version 1, R rows, C columns, S steps, N histogram entries, 0, 0
    float64 [C][R]  the columns of `COLUMNS`: the latest record of each site
    float64 [R][S]  absmax per step, oldest first; NaN absent, +Inf where it was not finite
    uint32  [R+1]   where each row's histogram begins
    uint16  [N]     bins: exponent + 127, plus 256 for negative values
    float32 [N]     counts

A comparison (version 2) begins with what was found of each pair; two frames as above follow, first
that of the candidate, then that of the baseline, row by row the same sites:

    uint32  [8]     magic, version 2, R rows, K columns, 0, 0, 0, 0
    float64 [K][R]  the columns of `PAIRS`; NaN absent

`view/frontend/src/types.ts` has the same names.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.terms import COUNTS, STATISTICS, Site

MAGIC: Final = 0x31424E50
VERSION: Final = 1
COMPARED: Final = 2

COLUMNS: Final = (
    *("order", "step", "calls", "numel", *STATISTICS, *COUNTS),
    *("status", "badges", "first_bad_step"),
)
PAIRS: Final = (
    *("verdict", "difference", "explained", "came_in", "beyond", "measure", "origin", "follows"),
    *("pairs", "diverged", "one_sided", "histogram_distance", "checksum_same"),
    *("cosine", "euclidean", "relative", "max_abs", "max_rel", "within_1e3", "within_5e3"),
    *("max_ulp", "mismatched"),
)
OF_SITE: Final = ("model", "module", "type", "role", "direction", "leaf")


def frame(
    columns: list[Any], spark: NDArray[np.float64], sizes: Any, bins: Any, counts: Any
) -> bytes:
    """Write a frame of a run; `sizes` are the lengths of the histograms."""
    number, steps = spark.shape
    head = (MAGIC, VERSION, number, len(COLUMNS), steps, len(bins), 0, 0)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return joined(
        (np.array(head), "<u4"),
        (columns, "<f8"),
        (spark, "<f8"),
        (offsets, "<u4"),
        (bins, "<u2"),
        (counts, "<f4"),
    )


def comparison(pairs: list[Any], candidate: bytes, baseline: bytes) -> bytes:
    """Write a comparison: the columns of `PAIRS` before a frame of each side."""
    head = (MAGIC, COMPARED, len(pairs[0]), len(PAIRS), 0, 0, 0, 0)
    return joined((np.array(head), "<u4"), (pairs, "<f8")) + candidate + baseline


def compact(value: Any) -> str:
    """Write JSON without NaN and without blanks."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def site_of(site: Site) -> dict[str, Any]:
    """Return what never changes about a site."""
    return {name: getattr(site, name) for name in OF_SITE}


def joined(*blocks: tuple[Any, str]) -> bytes:
    """Lay arrays out one after the other, each in its type and on a multiple of 8 bytes."""
    shapes = [(len(b), len(b[0])) if isinstance(b, list) else b.shape for b, _ in blocks]
    types = [np.dtype(kind) for _, kind in blocks]
    sizes = [math.prod(shape) * kind.itemsize for shape, kind in zip(shapes, types, strict=True)]
    whole = np.empty(sum(-(-size // 8) for size in sizes), "<u8")
    begin = 0
    for (block, _), shape, kind, size in zip(blocks, shapes, types, sizes, strict=True):
        place = whole[begin : begin + -(-size // 8)]
        place[-1:] = 0
        there = place.view(np.uint8)[:size].view(kind).reshape(shape)
        for number, row in enumerate(block if isinstance(block, list) else ()):
            there[number] = row
        if not isinstance(block, list):
            there[...] = block
        begin += len(place)
    return whole.tobytes()
