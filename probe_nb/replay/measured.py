"""How far a tensor that a device gave is from the truth, and how far rounding alone would be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe_nb.analysis.compare.rounding import EXTREME, UNITS, WHOLE
from probe_nb.analysis.compare.tensors import apart
from probe_nb.analysis.words import number, plural
from probe_nb.replay.result import ABOVE, NOT_JUDGED, WITHIN

Floats = NDArray[np.float64]
_ABSENT: Final = float("nan")


def judged(told: Tensor, truth: Tensor, draws: Sequence[Tensor], factor: float) -> dict[str, Any]:
    """Return the row of one tensor: error, bound, verdict.

    The error is the norm of the difference over that of the truth; `worst` is the largest
    difference of an element over the largest element. Rounding explains `WHOLE` times the largest
    error, and `EXTREME` times the largest worst, of the draws, of which each is at least one
    rounding of the result; and what is lost below the smallest normal number of the format.
    """
    if told.shape != truth.shape:
        return unknown(f"its shape is {tuple(truth.shape)} in float64")
    if not _is_broken(told) or not _is_broken(truth):
        return _of_whole(told, truth)
    held = ~_beyond(told, truth)
    device, exact, overflown = _flat(told)[held], _flat(truth)[held], int((~held).sum())
    errors = _errors(device, exact)
    drawn = [_errors(_flat(each)[held], exact) for each in draws if each.shape == truth.shape]
    whole, element = (max((each[n] for each in drawn), default=0.0) for n in (0, 1))
    once = UNITS.get(_name(told.dtype), 0.0) if whole else 0.0  # of one element draws may cancel
    lost = _lost(told.dtype, exact)
    bound = factor * WHOLE * max(whole, once) + lost[0]
    worst = factor * EXTREME * max(element, once) + lost[1]
    ratio = max(_over(errors[0], bound), _over(errors[1], worst))
    row = {
        "error": errors[0],
        "bound": bound,
        "ratio": ratio,
        "worst": errors[1],
        "worst_bound": worst,
        "mismatched": errors[2],
        "verdict": ABOVE if ratio > 1 or errors[2] else WITHIN,
        "reason": "",
    }
    if errors[2]:
        row["reason"] = (
            f"{plural(errors[2], 'element')} NaN or Inf where the truth is not, or not so"
        )
    elif overflown:
        row["reason"] = f"{plural(overflown, 'element')} beyond the range of {_name(told.dtype)}"
    elif ratio > 1 >= _over(errors[0], bound):
        row["reason"] = (
            f"an element is off by {number(errors[1])} of the largest, of which rounding explains "
            f"{number(worst)}"
        )
    return row


def unknown(why: str) -> dict[str, Any]:
    """Return the row of a tensor that is not judged."""
    names = ("error", "bound", "ratio", "worst", "worst_bound")
    return dict.fromkeys(names, _ABSENT) | {
        "mismatched": None,
        "verdict": NOT_JUDGED,
        "reason": why,
    }


def _of_whole(told: Tensor, truth: Tensor) -> dict[str, Any]:
    """Judge whole numbers and flags: equal, or a choice that fell otherwise."""
    count = int((told.to(truth.dtype) != truth).sum())
    if count:
        why = "of whole numbers: a choice between nearly equal values may fall otherwise in float64"
        return unknown(f"{plural(count, 'element')} differ{'s' * (count == 1)} {why}") | {
            "mismatched": count
        }
    return dict.fromkeys(("error", "bound", "ratio", "worst", "worst_bound"), 0.0) | {
        "mismatched": 0,
        "verdict": WITHIN,
        "reason": "",
    }


def _beyond(told: Tensor, truth: Tensor) -> NDArray[np.bool_]:
    """Tell which elements the format cannot hold, where the device has Inf or its largest."""
    device, exact = _flat(told), _flat(truth)
    if told.is_complex():
        return np.zeros(device.shape, np.bool_)
    largest = torch.finfo(told.dtype).max
    rounded = _flat(truth.to(told.dtype))
    beyond = np.isfinite(exact) & (~np.isfinite(rounded) | (np.abs(exact) > largest))
    found: NDArray[np.bool_] = beyond & (np.abs(device) >= largest) & ((device > 0) == (exact > 0))
    return found


def _flat(value: Tensor) -> Floats:
    value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    found: Floats = value.detach().double().numpy().reshape(-1)
    return found


def _errors(device: Floats, exact: Floats) -> tuple[float, float, int]:
    """Return the error of the whole, that of the worst element, and how many are not finite."""
    found = apart(exact, device)
    good = exact[np.isfinite(exact) & np.isfinite(device)]
    peak = float(np.abs(good).max(initial=0.0))
    norm = float(np.linalg.norm(good / peak)) * peak if peak else 0.0
    if not found.count:
        return 0.0, 0.0, found.mismatched
    return _over(found.euclidean, norm), _over(found.max_abs, peak), found.mismatched


def _over(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if whole else math.inf


def _lost(dtype: torch.dtype, exact: Floats) -> tuple[float, float]:
    """Return what is lost, in the same units, where small numbers become 0."""
    real = dtype.to_real() if dtype.is_complex else dtype
    least = torch.finfo(real).smallest_normal
    finite = exact[np.isfinite(exact)]
    small = finite[(np.abs(finite) < least) & (finite != 0)]
    peak = float(np.abs(finite).max(initial=0.0))
    if not len(small) or not peak:
        return 0.0, 0.0
    norm = float(np.linalg.norm(finite / peak)) * peak
    return _over(math.sqrt(len(small)) * least, norm), _over(least, peak)


def amplified(truth: Tensor, moved: Sequence[Tensor], unit: float) -> float:
    """Return by how much a relative error of the inputs grows; NaN where that is not known.

    It is the norm of the change over that of the result, over the unit roundoff by which every
    input was larger or smaller; the largest of several draws.
    """
    exact = _flat(truth)
    found = [_errors(_flat(each), exact) for each in moved if each.shape == truth.shape]
    if not _is_broken(truth) or not found or any(each[2] for each in found):
        return _ABSENT
    return max(error for error, _, _ in found) / unit


def _is_broken(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
