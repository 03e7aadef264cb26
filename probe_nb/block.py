"""Rows that waited for their numbers -> a block of columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from probe_nb.exponents import BINS
from probe_nb.stats.results import Drained
from probe_nb.store.table import ABSENT, DTYPES, Arrays, Interned, Tables
from probe_nb.terms import COUNTS, STATISTICS, STATUS_CODE

Rows = list[Any]
"""Rows end to end, `FIELDS` values each: one list, so that the garbage collector has no work."""

FIELDS: Final = 12
"""The call, order, backward, site, dtype, shape, device, numel, flags, status, result, scale.

The dtype and the device are torch's own; the others are numbers. Results that are not there are
-1, also that of the loss scale.
"""

REUSED, REQUIRES_GRAD = 1, 2
"""Flags."""

_OK: Final = STATUS_CODE["ok"]
_NO_FINITE: Final = STATUS_CODE["no_finite"]
_OF_CALLS: Final = ("step", "micro_step", "call", "training", "recompute")
_NUMBERS: Final = ("order", "backward", "site", "shape", "numel", "status")
_NONE: Final = -1


def _facts(rows: Rows, tables: Tables) -> tuple[Arrays, np.ndarray, np.ndarray]:
    """Return the columns that are known without the numbers, the results and the scales."""
    calls, *numbers = (rows[place::FIELDS] for place in range(FIELDS))
    order, backward, site, dtype, shape, device, numel, flags, status, result, scale = numbers
    when = [(c.step, c.micro_step, c.number, c.training, c.recompute) for c in calls]
    found: dict[str, Any] = dict(zip(_OF_CALLS, zip(*when, strict=True), strict=True))
    found |= zip(_NUMBERS, (order, backward, site, shape, numel, status), strict=True)
    found["dtype"] = _codes(dtype, lambda each: str(each).removeprefix("torch."), tables.dtypes)
    found["device"] = _codes(device, str, tables.devices)
    block: Arrays = {name: np.array(values, DTYPES[name]) for name, values in found.items()}
    bits = np.array(flags)
    block["reused"], block["requires_grad"] = bits & REUSED > 0, bits & REQUIRES_GRAD > 0
    return block, np.array(result), np.array(scale)


def _codes(values: list[Any], named: Callable[[Any], Any], table: Interned[Any]) -> list[int]:
    """Return the code of each value under its name; there are few distinct ones."""
    code = {value: table.code(named(value)) for value in set(values)}
    return [code[value] for value in values]


def joined(rows: Rows, drained: Drained, rank: int, tables: Tables) -> Arrays:
    """Join rows with the results they point at; several rows may share one result."""
    block, result, scale = _facts(rows, tables)
    n = len(result)
    block["rank"] = np.full(n, rank, DTYPES["rank"])
    block["loss_scale"] = np.full(n, np.nan)
    block["checksum"] = np.full(n, ABSENT, DTYPES["checksum"])
    there = result >= 0
    statistics = np.full((n, len(STATISTICS)), np.nan)
    counts = np.full((n, len(COUNTS)), ABSENT, np.int64)
    statistics[there] = drained.statistics[result[there]]
    counts[there] = drained.counts[result[there]]
    counts[block["numel"] == 0] = 0
    for i, name in enumerate(STATISTICS):
        block[name] = np.ascontiguousarray(statistics[:, i])
    for i, name in enumerate(COUNTS):
        block[name] = np.ascontiguousarray(counts[:, i])
    lost = there & (counts[:, 0] == ABSENT)
    block["status"][lost] = STATUS_CODE["failed"]
    nothing = there & ~lost & np.isnan(statistics[:, 0])
    block["status"][nothing & (block["status"] == _OK)] = _NO_FINITE
    _add_histograms(block, drained, result)
    _unscale(block, scale, drained)
    return block


def _add_histograms(block: Arrays, drained: Drained, result: np.ndarray) -> None:
    sizes, begin = np.append(drained.sizes, 0), np.append(drained.starts, 0)  # -1 has no bins
    mine, first = sizes[result], begin[result]
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
