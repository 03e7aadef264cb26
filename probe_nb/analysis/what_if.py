"""What another dtype would do to the values of a run, from their exponent histograms."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe_nb.analysis.alarms import LIMITS
from probe_nb.errors import SelectionError, closest
from probe_nb.exponents import LOWEST, TARGETS
from probe_nb.store.columns import Columns
from probe_nb.store.table import Arrays

NAMES: Final = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")

COLUMNS: Final = (
    *("model", "module", "type", "role", "leaf", "dtype", "absmax"),
    *("underflow", "subnormal", "overflow", "loss_scale", "lost"),
)
"""The columns of `run.what_if(dtype)`."""

HEADROOM: Final = 0.25
"""Share of the range that the largest gradient may fill when scaled, as `overflow_headroom`."""

_NORMAL: Final = {"float16": -14, "bfloat16": -126, "float8_e4m3fn": -6, "float8_e5m2": -14}
"""Exponent of the smallest number that has all its bits."""

_EXPONENTS: Final = 256
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
    counts, peaks, now = _read(columns, step)
    of_tensors = np.array([not each.api for each in columns.tables.sites.values], np.bool_)
    sites = np.flatnonzero((counts.any(axis=1) | (peaks > 0)) & of_tensors)
    if step is not None and not len(sites):
        raise SelectionError(f"Step {step} has no record with numbers.")
    about = [columns.tables.sites.values[site] for site in sites]
    frame = pd.DataFrame([[getattr(a, n) for n in COLUMNS[:5]] for a in about], columns=COLUMNS[:5])
    frame["dtype"] = [columns.tables.dtypes.values[code] for code in now[sites]]
    frame["absmax"] = peaks[sites]
    shares = _shares(counts[sites], peaks[sites], name)
    gradient = np.array([each.direction == "backward" for each in about], np.bool_)
    scale = _scales(peaks[sites], name)
    common = float(scale[gradient].min()) if gradient.any() else np.nan
    lost = _under(counts[sites], TARGETS[name][0] - _exponent(common))
    for column, values in {**shares, "loss_scale": scale, "lost": lost}.items():
        frame[column] = values
    frame.loc[~gradient, ["loss_scale", "lost"]] = np.nan
    frame = frame.astype({"loss_scale": "Float64", "lost": "Float64"})
    worst = ["overflow", "underflow", "subnormal"]
    frame = frame.sort_values(worst, ascending=False, kind="stable", ignore_index=True)
    frame.attrs["loss_scale"] = common
    return frame


def _read(
    columns: Columns, step: int | None
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Return per site how many values have each exponent, the largest, and the newest dtype."""
    sites = columns.tables.sites.values
    forward = np.array([each.direction == "forward" for each in sites], np.bool_)
    counts = np.zeros(len(sites) * _EXPONENTS, np.int64)
    peaks, now = np.zeros(len(sites)), np.zeros(len(sites), np.int64)
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
        peak[masks] = np.maximum(block["max"][masks], 0.0)
        mine = block["site"][masks].astype(np.int64) * _EXPONENTS + top - LOWEST
        np.subtract.at(counts, mine, block["at_max_count"][masks])
        np.fmax.at(peaks, block["site"][judged], peak[judged])
        now[block["site"][judged]] = block["dtype"][judged]
    return np.maximum(counts, 0).reshape(len(sites), _EXPONENTS), peaks, now


def _masks(
    block: Arrays, dtypes: list[str], judged: NDArray[np.bool_]
) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Return records that hold the lowest number of their dtype, and its exponent: left out.

    That is how masks are written; in another dtype they would be written with its own.
    """
    limits = [LIMITS.get(each, (0, 0, np.inf)) for each in dtypes]
    lowest = -np.array([each[2] for each in limits])[block["dtype"]]
    rows = np.flatnonzero(judged & (block["at_max_count"] > 0) & (block["min"] <= lowest))
    return rows, np.array([each[1] for each in limits])[block["dtype"][rows]]


def _shares(
    counts: NDArray[np.int64], peaks: NDArray[np.float64], name: str
) -> dict[str, NDArray[np.float64]]:
    """Return which shares of the values that are not zero underflow, lose bits, overflow."""
    (low, high), normal, total = TARGETS[name], _NORMAL[name], np.maximum(counts.sum(axis=1), 1)
    under = _under(counts, low)
    subnormal = _under(counts, normal) - under
    over = counts[:, max(high - LOWEST, 0) :].sum(axis=1)
    least = peaks > LIMITS[name][2]  # within the topmost bin a part may overflow: one does
    return {
        "underflow": under,
        "subnormal": np.maximum(subnormal, 0.0),
        "overflow": np.maximum(over, least) / total,
    }


def _under(counts: NDArray[np.int64], exponent: float) -> NDArray[np.float64]:
    """Return which share of the values is below a power of two."""
    if np.isnan(exponent):
        return np.full(len(counts), np.nan)
    total = np.maximum(counts.sum(axis=1), 1)
    place = int(np.clip(exponent - LOWEST, 0, _EXPONENTS))
    share: NDArray[np.float64] = counts[:, :place].sum(axis=1) / total
    return share


def _scales(peaks: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """Return the largest power of two by which each largest value may be multiplied."""
    room = HEADROOM * LIMITS[name][2] / np.maximum(peaks, 1e-300)
    scale: NDArray[np.float64] = 2.0 ** np.floor(np.log2(np.minimum(room, 2.0**126)))
    return scale


def _exponent(scale: float) -> float:
    return float(np.log2(scale)) if scale > 0 else np.nan
