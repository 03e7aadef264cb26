"""Rows that waited for their numbers -> a block of columns."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Final

import numpy as np

from probe_nb.exponents import BINS
from probe_nb.stats.results import Drained
from probe_nb.store.table import ABSENT, DTYPES, Arrays
from probe_nb.terms import COUNTS, STATISTICS, STATUS_CODE

_OF_CALL: Final = {
    **dict.fromkeys(("step", "micro_step", "call"), "q"),
    **dict.fromkeys(("training", "recompute"), "?"),
}
_OF_KIND: Final = {"numel": "q", **dict.fromkeys(("dtype", "shape", "device"), "i")}
_OF_ROW: Final = {
    "backward": "q",
    **dict.fromkeys(("result", "scale"), "i"),
    **dict.fromkeys(("reused", "requires_grad"), "?"),
    "status": "b",
}
_FIELDS: Final = {**_OF_CALL, "site": "i", **_OF_KIND, **_OF_ROW}

ROW: Final = np.dtype(list(_FIELDS.items()))
"""What a row waits with; a result that is not there is -1, also that of the loss scale.

Rows lie end to end in plain memory: the garbage collector has no work, and the drain little. Of
most parts of a row the bytes are known when it is written: they are joined, in this order.
"""


def _packs(fields: dict[str, str]) -> Callable[..., bytes]:
    return struct.Struct("=" + "".join(fields.values())).pack


of_call: Final = _packs(_OF_CALL)
of_site: Final = _packs({"site": "i"})
of_kind: Final = _packs(_OF_KIND)
of_row: Final = _packs(_OF_ROW)
"""Write the parts of a row; they take the values in the order of the fields."""

_OK: Final = STATUS_CODE["ok"]
_NO_FINITE: Final = STATUS_CODE["no_finite"]
_NONE: Final = -1
_NO_STATISTICS: Final = np.full((1, len(STATISTICS)), np.nan)
_NO_COUNTS: Final = np.full((1, len(COUNTS)), ABSENT)
_NOTHING: Final = np.zeros(1, np.int64)
"""Put behind the results, where `_NONE` finds them."""


def joined(waiting: bytes | bytearray, drained: Drained, rank: int, first: int) -> Arrays:
    """Join rows with the results they point at; several rows may share one result.

    `first` is the place of the first row in the order of execution.
    """
    rows = np.frombuffer(waiting, ROW)
    result, scale = rows["result"].astype(np.intp), rows["scale"]
    block: Arrays = {name: rows[name].astype(DTYPES[name]) for name in _FIELDS if name in DTYPES}
    n = len(result)
    block["order"] = np.arange(first, first + n, dtype=DTYPES["order"])
    block["rank"] = np.full(n, rank, DTYPES["rank"])
    block["loss_scale"] = np.full(n, np.nan)
    block["checksum"] = np.full(n, ABSENT, DTYPES["checksum"])
    statistics = np.concatenate([drained.statistics, _NO_STATISTICS])[result].T.copy()
    counts = np.concatenate([drained.counts, _NO_COUNTS])[result].T.copy()
    counts[:, block["numel"] == 0] = 0
    block |= zip(STATISTICS, statistics, strict=True)
    block |= zip(COUNTS, counts, strict=True)
    there = result != _NONE
    lost = there & (counts[0] == ABSENT)
    block["status"][lost] = STATUS_CODE["failed"]
    nothing = there & ~lost & np.isnan(statistics[0])
    block["status"][nothing & (block["status"] == _OK)] = _NO_FINITE
    _add_histograms(block, drained, result)
    if (scale != _NONE).any():
        _unscale(block, scale, drained)
    return block


def _add_histograms(block: Arrays, drained: Drained, result: np.ndarray) -> None:
    mine = np.concatenate([drained.sizes, _NOTHING])[result]
    first = np.concatenate([drained.starts, _NOTHING])[result]
    total = int(mine.sum())
    starts = np.cumsum(mine) - mine
    index = np.arange(total) - np.repeat(starts - first, mine)
    block["hist_size"] = mine.astype(np.uint16)
    block["hist_bins"] = drained.bins[index]
    values = drained.values[index]
    small = not total or values.max() < 2**32
    block["hist_counts"] = values.astype(np.uint32 if small else np.int64)


def _unscale(block: Arrays, scale: np.ndarray, drained: Drained) -> None:
    """Divide gradient statistics by the loss scale and move the histograms with them.

    `scale` numbers the result that holds each row's scale: it came to the host with the others.
    """
    for number in np.unique(scale[scale != _NONE]):
        value = float(drained.statistics[number, STATISTICS.index("max")])
        if not math.isfinite(value) or value <= 0:
            continue
        rows = scale == number
        block["loss_scale"][rows] = value
        for name in STATISTICS:
            block[name][rows] /= value
        _shift_bins(block, rows, value)


def _shift_bins(block: Arrays, rows: np.ndarray, value: float) -> None:
    """Move the bins of some rows by a power of two, which is exact.

    A row keeps no histogram where it is not: under any other scale, and where a bin that is open
    at its end (float32 subnormals, values from 2**128 on) would be moved away from that end.
    """
    mantissa, exponent = math.frexp(value)
    down = exponent - 1
    if mantissa == 0.5 and down == 0:  # noqa: PLR2004 - a scale of 1
        return
    owner = np.repeat(np.arange(len(rows)), block["hist_size"])
    bins = block["hist_bins"].astype(np.int64)
    open_end = bins % 256 == (0 if down < 0 else 255)
    lost = rows.copy()
    if mantissa == 0.5:  # noqa: PLR2004 - a power of two
        lost &= np.bincount(owner[open_end], minlength=len(rows)) > 0
    shifted = np.clip(bins % 256 - down, 0, 255) + bins // 256 * 256
    bins = np.where(rows[owner], shifted, bins)
    kept = ~lost[owner]
    _merge_bins(block, owner[kept], bins[kept], block["hist_counts"][kept])


def _merge_bins(block: Arrays, owner: np.ndarray, bins: np.ndarray, counts: np.ndarray) -> None:
    """Write histograms back, adding up bins that were moved onto each other."""
    keys, place = np.unique(owner * BINS + bins, return_inverse=True)
    merged = np.zeros(len(keys), np.int64)
    np.add.at(merged, place, counts)
    block["hist_bins"] = (keys % BINS).astype(np.uint16)
    block["hist_counts"] = merged.astype(block["hist_counts"].dtype)
    sizes = np.bincount(keys // BINS, minlength=len(block["hist_size"]))
    block["hist_size"] = sizes.astype(np.uint16)
