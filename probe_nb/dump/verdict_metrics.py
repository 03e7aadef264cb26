"""msProbe's measures of how far two statistics, or two tensors, are apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe_nb.dump.verdict_lines import NOT_THERE

TENSOR: Final = (
    *("Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr"),
    *("One Thousandth Err Ratio", "Five Thousandths Err Ratio"),
)
UNSUPPORTED: Final = "unsupported"
_UNLIKE: Final = "shape unmatched"
_NAN: Final = "Nan"
_EPSILON: Final = float(np.finfo(float).eps)
_NEAR_ONE: Final = 0.9999

Array = NDArray[Any]


# -- statistics -----------------------------------------------------------------------------------

_FINITE, _NOT_A_NUMBER, _ABOVE, _BELOW, _DEVICE, _ABSENT, _OTHER = range(7)
_INFINITE: Final = {
    (_ABOVE, _FINITE): "inf",
    (_ABOVE, _BELOW): "inf",
    (_FINITE, _BELOW): "inf",
    (_BELOW, _FINITE): "-inf",
    (_BELOW, _ABOVE): "-inf",
    (_FINITE, _ABOVE): "-inf",
}


def differences(npu: Sequence[Any], bench: Sequence[Any]) -> list[tuple[str, str]]:
    """Return the difference and the relative error of each pair of one statistic."""
    numbers = [_numbers(values).tolist() for values in (npu, bench)]
    return [_difference(*pair) for pair in zip(npu, bench, *numbers, strict=True)]


def _numbers(values: Sequence[Any]) -> Any:
    """Return a column as numbers: whole ones where all are."""
    return pd.to_numeric(pd.Series([str(value) for value in values], dtype=object), "coerce")


def _difference(npu: Any, bench: Any, mine: float, other: float) -> tuple[str, str]:
    if str(npu) == str(bench):
        return "0", "0"
    kinds = _kind(npu, mine), _kind(bench, other)
    if kinds == (_FINITE, _FINITE):
        off = mine - other
        return str(off), "inf" if other == 0 else f"{abs(off / other * 100)}%"
    word = _word(*kinds)
    return word, word


def _word(mine: int, other: int) -> str:
    kinds = {mine, other}
    if _ABSENT in kinds or kinds == {_DEVICE}:
        return NOT_THERE
    if kinds & {_DEVICE, _OTHER}:
        return "Diff"
    if _NOT_A_NUMBER in kinds:
        return _NAN
    return _INFINITE.get((mine, other), NOT_THERE)


def _kind(value: Any, number: float) -> int:
    text = str(value).lower()
    known = {"nan": _NOT_A_NUMBER, "inf": _ABOVE, "-inf": _BELOW, "n/a": _ABSENT}
    if text in known:
        return known[text]
    if not math.isnan(number) and text not in ("true", "false"):
        return _FINITE
    return _DEVICE if any(word in text for word in ("npu", "cpu", "cuda")) else _OTHER


# -- tensors --------------------------------------------------------------------------------------


def measures(npu: Array | None, bench: Array | None) -> dict[str, Any]:
    """Return the six measures of two tensors; None is one that is not there.

    What is infinite, or NaN, at the same places is left out; msProbe does not look at the sign.
    """
    if npu is None or bench is None or not npu.size:
        return dict.fromkeys(TENSOR, UNSUPPORTED)
    npu, bench = np.squeeze(npu), np.squeeze(bench)
    if npu.shape != bench.shape:
        return dict.fromkeys(TENSOR, _UNLIKE)
    if npu.shape:
        pair = _without_odd(npu, bench)
        if pair is None:
            return dict.fromkeys(TENSOR, NOT_THERE)
        npu, bench = pair
    with np.errstate(all="ignore"):
        return dict(zip(TENSOR, _measured(npu, bench), strict=True))


def _without_odd(npu: Array, bench: Array) -> tuple[Array, Array] | None:
    """Return tensors with 0 where both are not finite; None where only one is."""
    mine, other = npu.astype(float), bench.astype(float)
    for odd in (np.isinf, np.isnan):
        if not np.array_equal(odd(mine), odd(other)):
            return None
    bad = ~np.isfinite(mine)
    return np.where(bad, np.zeros((), npu.dtype), npu), np.where(
        bad, np.zeros((), bench.dtype), bench
    )


def _measured(npu: Array, bench: Array) -> tuple[Any, ...]:
    mine, other = npu.astype(float), bench.astype(float)
    relative = _relative(npu, bench)
    far = float(np.max(np.abs(mine - other)))
    worst = float(np.max(relative))
    ends = (_NAN if math.isnan(n) else _rounded(n) for n in (far, worst))
    if not npu.shape:
        return UNSUPPORTED, UNSUPPORTED, *ends, UNSUPPORTED, UNSUPPORTED
    distance = float(np.linalg.norm((mine - other).reshape(-1)))
    shares = (_rounded(float(np.mean(relative < limit))) for limit in (0.001, 0.005))
    return _cosine(mine.reshape(-1), other.reshape(-1)), distance, *ends, *shares


def _relative(npu: Array, bench: Array) -> Array:
    """Return the relative error of each element; next to 0 both are moved by an epsilon."""
    floats = (np.float16, np.float32, np.float64)
    mine, other = (x if x.dtype in floats else x.astype(float) for x in (npu, bench))
    kind = np.result_type(mine, other, np.float32)
    mine, other = mine.astype(kind), other.astype(kind)
    step = np.where(other == 0, np.finfo(kind).eps, 0).astype(kind)
    mine, other = mine + step, other + step
    found: Array = np.abs((mine - other) / other)
    return found


def _cosine(mine: Array, other: Array) -> Any:
    if mine.size == 1:
        return UNSUPPORTED
    lengths = float(np.linalg.norm(mine)), float(np.linalg.norm(other))
    if min(lengths) <= _EPSILON:
        return 1.0 if max(lengths) <= _EPSILON else _NAN
    cosine = float(np.dot(mine, other) / (lengths[0] * lengths[1]))
    if math.isnan(cosine):
        return _NAN
    rounded = _rounded(cosine)
    return round(rounded, 6) if rounded > _NEAR_ONE else rounded


def _rounded(value: float) -> float:
    return float(f"{value:.12f}")
