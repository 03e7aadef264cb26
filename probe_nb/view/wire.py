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

Moments (version 3) are what a live view showed of some rows at the end of steps before; each is
a frame of version 1, all of the same rows, without absmax per step. What a row had not yet, or is
not known of it, is NaN in all columns:

    uint32  [8]     magic, version 3, T moments, H rows, 0, 0, 0, 0
    float64 [T]     the steps, oldest first
    uint32  [H]     the rows that the moments are of, as numbers of the rows in `sites`; rising
    T frames

A picture of a kept tensor (version 4); several may follow one another:

    uint32  [8]     magic, version 4, H rows, W columns, B bytes, 0, 0, 0
    uint8   [B]     JSON: `row` in `sites`, the step that was `asked` about (null in a report),
                    and what is drawn, or `why` nothing is; see `picture`
    float64 [H][W]  the cells, in which float64 and int32 are exact

The trend of a run that may go on (version 5) is as large as all the rest, so it comes less often,
and the frames beside it have S = 0. Rows that are newer than it have none:

    uint32  [8]     magic, version 5, R rows, S steps, 0, 0, 0, 0
    float64 [S]     the steps, oldest first
    float64 [R][S]  absmax per step, as in a frame

`status` is JSON beside it: the headline, the findings with their rows in `sites` (`found`) and what
goes with them. What an older run or report lacks there is absent, so it needs no version.

`view/frontend/src/types.ts` has the same names.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.tally import cut
from probe_nb.analysis.words import is_optimizer, module, optimizer
from probe_nb.terms import COUNTS, STATISTICS, Site

MAGIC: Final = 0x31424E50
VERSION: Final = 1
COMPARED: Final = 2
MOMENTS: Final = 3
PICTURE: Final = 4
TREND: Final = 5

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


class Numbers(NamedTuple):
    """What a frame has of some rows, besides absmax per step.

    Attributes:
        columns: One array for each of `COLUMNS`.
        sizes: The length of each row's histogram.
        bins: The bins of all of them, row by row.
        counts: What is in the bins.
    """

    columns: list[Any]
    sizes: NDArray[np.int64]
    bins: NDArray[Any]
    counts: NDArray[Any]

    def bytes_of_rows(self) -> NDArray[np.int64]:
        """Return how many bytes each row takes."""
        return 8 * len(self.columns) + 4 + 6 * self.sizes

    def pick(self, rows: NDArray[np.intp]) -> Numbers:
        """Return the numbers of some rows."""
        begins, sizes = np.cumsum(self.sizes) - self.sizes, self.sizes[rows]
        index, _ = cut(begins[rows], sizes)
        columns = [column[rows] for column in self.columns]
        return Numbers(columns, sizes, self.bins[index], self.counts[index])

    def spread(self, known: NDArray[np.bool_]) -> Numbers:
        """Return these numbers at the rows that are known; the others have none."""
        if known.all():
            return self
        columns = np.full((len(self.columns), len(known)), np.nan)
        columns[:, known] = self.columns
        sizes = np.zeros(len(known), np.int64)
        sizes[known] = self.sizes
        return Numbers(list(columns), sizes, self.bins, self.counts)


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


def picture(row: int, about: dict[str, Any], cells: NDArray[np.float64]) -> bytes:
    """Write a picture of a row; without cells `about` says why there is none."""
    text = np.frombuffer(compact({"row": row, **about}).encode(), np.uint8)
    head = (MAGIC, PICTURE, *cells.shape, len(text), 0, 0, 0)
    return joined((np.array(head), "<u4"), (text, "u1"), (cells, "<f8"))


def moments(
    steps: Any, rows: Any, frames: list[bytes], made: list[dict[int, tuple[str, str]]] | None = None
) -> bytes:
    """Write earlier moments: their steps, the rows that they are of, and a frame of each.

    `made` says of each moment which rows had another dtype or device than they have now.
    """
    text = np.frombuffer(compact(made).encode() if made and any(made) else b"", np.uint8)
    head = (MAGIC, MOMENTS, len(steps), len(rows), len(text), 0, 0, 0)
    blocks = ((np.array(head), "<u4"), (np.asarray(steps), "<f8"), (np.asarray(rows), "<u4"))
    return b"".join([joined(*blocks), *frames, joined((text, "u1"))])


def trend(steps: NDArray[np.int64], peaks: NDArray[np.float64]) -> bytes:
    """Write the absmax of each row in some steps."""
    head = (MAGIC, TREND, *peaks.shape, 0, 0, 0, 0)
    return joined((np.array(head), "<u4"), (steps, "<f8"), (peaks, "<f8"))


def compact(value: Any) -> str:
    """Write JSON without NaN and without blanks."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def site_of(site: Site) -> dict[str, Any]:
    """Return what never changes about a site; what is no module is named as everywhere else."""
    about = {name: getattr(site, name) for name in OF_SITE}
    if site.api:
        named = optimizer(site) if is_optimizer(site) else module(site, several=False)
        about |= {"module": named, "api": site.api, "path": site.module}
    return about


def joined(*blocks: tuple[Any, str]) -> bytes:
    """Lay arrays out one after the other, each in its type and on a multiple of 8 bytes."""
    parts: list[Any] = []
    for block, kind in blocks:
        rows = block if isinstance(block, list) else [block]
        made = [np.ascontiguousarray(row, kind) for row in rows]
        parts += [*made, bytes(-sum(row.nbytes for row in made) % 8)]
    return b"".join(parts)
