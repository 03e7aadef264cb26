"""What another dtype would do to the values of a run, from their exponent histograms.

A value underflows where it is below the smallest number of the dtype: it becomes 0, or from half of
that number on is rounded up to it. What a histogram cannot tell is absent, not guessed.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe_nb.analysis.alarms import LIMITS
from probe_nb.analysis.thresholds import DEFAULTS
from probe_nb.analysis.words import is_extra, is_inside, is_optimizer
from probe_nb.errors import SelectionError, closest
from probe_nb.exponents import LOWEST
from probe_nb.store.columns import Columns
from probe_nb.store.filters import at, steps_in
from probe_nb.store.table import Arrays
from probe_nb.terms import Site

NAMES: Final = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")

COLUMNS: Final = (
    *("module", "role", "leaf", "api", "model", "type", "dtype", "absmax"),
    *("underflow", "subnormal", "overflow", "loss_scale", "lost"),
)
"""The columns of `run.what_if(dtype)`."""

_WHO: Final = COLUMNS[:6]
"""Those of them that say which site a row is of."""

_NORMAL: Final = {"float16": -14, "bfloat16": -126, "float8_e4m3fn": -6, "float8_e5m2": -14}
"""Exponent of the smallest number that has all its bits."""

_EXPONENTS: Final = 256
"""Bins of one sign, the positive ones first; the lowest holds all that is below float32's range."""

_FLOATS: Final = ("float", "bfloat")
_READ: Final = (
    *("site", "step", "min", "max", "absmax", "at_max_count", "dtype"),
    *("hist_size", "hist_bins", "hist_counts"),
)


def what_if(columns: Columns, dtype: Any, step: int | None = None) -> pd.DataFrame:
    """Return per site what a dtype would do to its values, worst first.

    Raises:
        SelectionError: It is not one of `NAMES`, or the step has no record.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in NAMES:
        raise SelectionError(
            f"`{name}` is not a dtype to ask about.{closest(name, NAMES)} Known: "
            f"{', '.join(NAMES)}."
        )
    if step is not None:
        step = at(step, steps_in(columns), "Nothing was recorded in")
    counts, peaks, hidden, now = _read(columns, step)
    of_tensors = np.array([*map(_is_of_tensors, columns.tables.sites.values)], np.bool_)
    sites = np.flatnonzero((counts.any(axis=1) | (peaks > 0)) & of_tensors)
    if step is not None and not len(sites):
        raise SelectionError(f"Step {step} has no record with numbers.")
    about = [columns.tables.sites.values[site] for site in sites]
    frame = pd.DataFrame([[getattr(a, n) for n in _WHO] for a in about], columns=_WHO)
    frame["dtype"] = [columns.tables.dtypes.values[code] for code in now[sites]]
    frame["absmax"] = np.where(hidden[sites] > peaks[sites], np.nan, peaks[sites])
    shares = _shares(counts[sites], peaks[sites], name)
    gradient = np.array([each.direction == "backward" for each in about], np.bool_)
    scale = _scales(peaks[sites], name)
    # what a loss is computed of stays in float32 under autocast
    inside = gradient & np.array([is_inside(each) for each in about], np.bool_)
    common = float(scale[inside if inside.any() else gradient].min(initial=np.inf))
    common = common if gradient.any() else np.nan
    lost = _under(counts[sites], LIMITS[name][0] - _exponent(common))
    for column, values in {**shares, "loss_scale": scale, "lost": lost}.items():
        frame[column] = values
    frame.loc[~gradient, ["loss_scale", "lost"]] = np.nan
    frame = _without_guesses(frame, counts[sites].sum(axis=1) > 0)
    maybe = ("absmax", "underflow", "subnormal", "overflow", "loss_scale", "lost")
    frame = frame.astype(dict.fromkeys(maybe, "Float64"))
    frame.attrs["loss_scale"] = common
    return frame


def _is_of_tensors(site: Site) -> bool:
    """Tell whether a site is of tensors of the program, and of no setting and no extra."""
    return not is_optimizer(site) and not is_extra(site)


def _without_guesses(frame: pd.DataFrame, counted: Any) -> pd.DataFrame:
    """Sort sites, worst first; of one without a histogram, as in dumps, no share is known.

    That nothing of it overflows is known from its largest value.
    """
    worst = ["overflow", "underflow", "subnormal"]
    order = frame.sort_values(worst, ascending=False, kind="stable").index
    frame.loc[~counted, ["underflow", "subnormal", "lost"]] = np.nan
    frame.loc[~counted & (frame["overflow"] > 0), "overflow"] = np.nan
    return frame.loc[order].reset_index(drop=True)


def _read(
    columns: Columns, step: int | None
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return per site how many values have each exponent, the largest, and the newest dtype.

    Third is what the largest value stays below where a mask hides it, 0 where none does.
    """
    sites = columns.tables.sites.values
    forward = np.array([each.direction == "forward" for each in sites], np.bool_)
    counts = np.zeros(len(sites) * _EXPONENTS, np.int64)
    peaks, hidden = np.zeros(len(sites)), np.zeros(len(sites))
    now = np.zeros(len(sites), np.int64)
    for _, block in columns.chunks(names=_READ):
        dtypes = columns.tables.dtypes.values
        judged = np.array([each.startswith(_FLOATS) for each in dtypes], np.bool_)[block["dtype"]]
        judged &= step is None or block["step"] == step
        taken = np.repeat(judged, block["hist_size"])
        owner = np.repeat(block["site"], block["hist_size"]).astype(np.int64)
        place = owner * _EXPONENTS + block["hist_bins"] % _EXPONENTS
        weights = block["hist_counts"][taken].astype(np.float64)
        counts += np.bincount(place[taken], weights, minlength=len(counts)).astype(np.int64)
        peak = block["absmax"].copy()
        masks, top = _masks(block, dtypes, judged & forward[block["site"]])
        peak[masks], below = _besides(block, masks, top)
        np.fmax.at(hidden, block["site"][masks], below)
        mine = block["site"][masks].astype(np.int64) * _EXPONENTS + top - LOWEST
        np.subtract.at(counts, mine, block["at_max_count"][masks])
        np.fmax.at(peaks, block["site"][judged], peak[judged])
        now[block["site"][judged]] = block["dtype"][judged]
    return np.maximum(counts, 0).reshape(len(sites), _EXPONENTS), peaks, hidden, now


def _masks(
    block: Arrays, dtypes: list[str], judged: NDArray[np.bool_]
) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Return records that hold the lowest number of their dtype, and its exponent: left out.

    That is how masks are written; in another dtype they would be written with its own.
    """
    limits = [LIMITS.get(each, (0, 0, np.inf)) for each in dtypes]
    lowest = -np.array([each[2] for each in limits])[block["dtype"]]
    mask = (block["min"] <= lowest) & (block["max"] < -lowest)
    rows = np.flatnonzero(judged & (block["at_max_count"] > 0) & mask)
    return rows, np.array([each[1] for each in limits])[block["dtype"][rows]]


def _besides(
    block: Arrays, rows: NDArray[np.intp], top: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how large the values besides the masks are at least, and what they stay below.

    The latter is 0 where the former is exact: where no negative value can be larger.
    """
    where = np.full(len(block["site"]), -1)
    where[rows] = np.arange(len(rows))
    owner = np.repeat(where, block["hist_size"])
    mine = (owner >= 0) & (block["hist_bins"] >= _EXPONENTS)
    owner = owner[mine]
    exponent = block["hist_bins"][mine].astype(np.int64) - _EXPONENTS + LOWEST
    left = block["hist_counts"][mine].astype(np.int64)
    left -= np.where(exponent == top[owner], block["at_max_count"][rows][owner], 0)
    lowest = np.full(len(rows), -np.inf)
    np.maximum.at(lowest, owner[left > 0], exponent[left > 0])
    lowest[block["hist_size"][rows] == 0] = np.inf  # no histogram
    positive = np.maximum(block["max"][rows], 0.0)
    exact = positive >= 2.0 ** (lowest + 1)
    least = np.where(np.isinf(lowest), positive, np.maximum(positive, 2.0**lowest))
    return least, np.where(exact, 0.0, 2.0 ** (lowest + 1))


def _shares(
    counts: NDArray[np.int64], peaks: NDArray[np.float64], name: str
) -> dict[str, NDArray[np.float64]]:
    """Return which shares of the values that are not zero underflow, lose bits, overflow."""
    low, top, largest = LIMITS[name]
    normal, high, total = _NORMAL[name], top + 1, np.maximum(counts.sum(axis=1), 1)
    under = _under(counts, low)
    subnormal = _under(counts, normal) - under
    over = counts[:, max(high - LOWEST, 0) :].sum(axis=1)
    least = peaks > largest  # within the topmost bin a part may overflow: one does
    return {
        "underflow": under,
        "subnormal": np.maximum(subnormal, 0.0),
        "overflow": np.maximum(over, least) / total,
    }


def _under(counts: NDArray[np.int64], exponent: float) -> NDArray[np.float64]:
    """Return which share of the values is below a power of two, NaN where no bin tells."""
    if np.isnan(exponent):
        return np.full(len(counts), np.nan)
    total = np.maximum(counts.sum(axis=1), 1)
    place = int(np.clip(exponent - LOWEST, 0, _EXPONENTS))
    share: NDArray[np.float64] = counts[:, :place].sum(axis=1) / total
    return np.where((counts[:, 0] > 0) & (place == 0), np.nan, share)


def _scales(peaks: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """Return the largest power of two by which each largest value may be multiplied."""
    room = DEFAULTS.overflow_headroom * LIMITS[name][2] / np.maximum(peaks, 1e-300)
    scale: NDArray[np.float64] = 2.0 ** np.floor(np.log2(np.minimum(room, 2.0**126)))
    return scale


def _exponent(scale: float) -> float:
    return float(np.log2(scale)) if scale > 0 else np.nan
