"""How far apart two exponent histograms are."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.exponents import BINS, LOWEST
from probe_nb.store.columns import Columns
from probe_nb.store.table import Arrays

Rows = NDArray[np.intp]
Floats = NDArray[np.float64]

_CHUNK: Final = 4096
"""Pairs whose histograms are in memory at one time."""

_NAMES: Final = ("hist_size", "hist_bins", "hist_counts", "zero_count")
_HALF: Final = BINS // 2


def same(one: Columns, first: Rows, other: Columns, second: Rows) -> NDArray[np.bool_]:
    """Tell of each pair whether bins and counts are the same, or neither has any."""
    found = np.ones(len(first), np.bool_)
    for cut in _cuts(len(first)):
        a, b = _of(one, first[cut]), _of(other, second[cut])
        equal = a["hist_size"] == b["hist_size"]
        left, right = (_flat(each, equal) for each in (a, b))
        wrong = (left[1] != right[1]) | (left[2] != right[2])
        equal[left[0][wrong]] = False
        found[cut] = equal
    return found


def apart(
    one: Columns, first: Rows, other: Columns, second: Rows, noise: Floats
) -> tuple[Floats, Floats]:
    """Return two shares of the elements of each pair, NaN where a side has no histogram.

    The first is the distance: the share that is in another bin, at least (half the sum of the
    differences, zeros being a bin). The second is the share that must have changed by more than
    one power of two, beyond what lies below `noise`, where signs and sizes mean nothing.
    """
    distance, moved = np.full(len(first), np.nan), np.full(len(first), np.nan)
    for cut in _cuts(len(first)):
        a, b = (_dense(_of(*each)) for each in ((one, first[cut]), (other, second[cut])))
        total = np.maximum(a.sum(axis=1), b.sum(axis=1))
        there = (total > 0) & _counted(a) & _counted(b)
        whole = np.maximum(total, 1.0)
        distance[cut] = np.where(there, np.abs(a - b).sum(axis=1) / 2 / whole, np.nan)
        moved[cut] = np.where(there, _far(a, b, noise[cut]) / whole, np.nan)
    return distance, moved


def below(columns: Columns, rows: Rows, size: Floats) -> Floats:
    """Return the share of the non-zero elements of records that are below a size each."""
    found = np.zeros(len(rows))
    for cut in _cuts(len(rows)):
        sizes = _sizes(_dense(_of(columns, rows[cut])))[:, 1:]
        edge = np.floor(np.log2(np.maximum(size[cut], 2.0**LOWEST))).astype(np.int64) - LOWEST + 1
        inside = np.arange(_HALF) < np.clip(edge, 0, _HALF)[:, None]
        total = np.maximum(sizes.sum(axis=1), 1.0)
        found[cut] = np.where(inside, sizes, 0.0).sum(axis=1) / total
    return found


def _cuts(count: int) -> list[slice]:
    return [slice(begin, begin + _CHUNK) for begin in range(0, count, _CHUNK)]


def _of(columns: Columns, rows: Rows) -> Arrays:
    """Return the histograms of some records, which may be in any order."""
    unique, place = np.unique(rows, return_inverse=True)
    found = columns.take(unique, _NAMES)
    if len(unique) == len(rows) and (unique == rows).all():
        return found
    size = found["hist_size"].astype(np.int64)
    starts = np.cumsum(size) - size
    wanted = size[place]
    ends = np.cumsum(wanted)
    index = np.arange(int(wanted.sum())) + np.repeat(starts[place] - ends + wanted, wanted)
    return {
        "hist_size": found["hist_size"][place],
        "hist_bins": found["hist_bins"][index],
        "hist_counts": found["hist_counts"][index],
        "zero_count": found["zero_count"][place],
    }


def _flat(found: Arrays, rows: NDArray[np.bool_]) -> tuple[Rows, Rows, Rows]:
    """Return row, bin and count of every entry of some rows."""
    row = np.repeat(np.arange(len(rows)), found["hist_size"])
    chosen = rows[row]
    return row[chosen], found["hist_bins"][chosen], found["hist_counts"][chosen]


def _dense(found: Arrays) -> Floats:
    """Lay histograms out from the most negative value to the largest one, zeros in the middle."""
    count = len(found["hist_size"])
    row = np.repeat(np.arange(count), found["hist_size"])
    bins = found["hist_bins"].astype(np.int64)
    place = np.where(bins >= _HALF, BINS - 1 - bins, _HALF + 1 + bins)
    flat = np.bincount(row * (BINS + 1) + place, found["hist_counts"], minlength=count * (BINS + 1))
    dense = flat.astype(np.float64).reshape(count, BINS + 1)
    dense[:, _HALF] = found["zero_count"]
    return dense


def _counted(dense: Floats) -> NDArray[np.bool_]:
    counted: NDArray[np.bool_] = dense[:, _HALF] >= 0
    return counted


def _far(a: Floats, b: Floats, noise: Floats) -> Floats:
    """Return how many elements must have moved by more than one bin, as far as sums tell.

    Up to each edge at least so many values of one side are smaller than what the other side has
    up to the edge after it: this many cannot have stayed or moved by a single bin.
    """
    edge = np.floor(np.log2(np.maximum(noise, 2.0**LOWEST))).astype(np.int64) - LOWEST + 1
    inside = np.arange(_HALF + 1) < np.clip(edge, 0, _HALF)[:, None]
    low, high = (np.where(inside, 0.0, np.cumsum(_sizes(each), axis=1)) for each in (a, b))
    over, under = low[:, :-1] - high[:, 1:], high[:, :-1] - low[:, 1:]
    found: Floats = np.maximum(np.maximum(over.max(axis=1), under.max(axis=1)), 0.0)
    return found


def _sizes(dense: Floats) -> Floats:
    """Add both signs up: zeros first, then from small to large."""
    found: Floats = dense[:, _HALF:].copy()
    found[:, 1:] += dense[:, :_HALF][:, ::-1]
    return found
