"""What kept tensors tell of a pair: compared element by element, in float64, one pair at a time."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.compare.align import Pairs, Side
from probe_nb.analysis.compare.measures import Measured
from probe_nb.progress import Told
from probe_nb.store.keeping import Tensors
from probe_nb.store.kept import Kept
from probe_nb.store.tensors import bytes_of

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

_CHUNK: Final = 2**20
"""Elements that are widened at one time."""

_SHARES: Final = (1e-3, 5e-3)
_DIGITS: Final = {
    "float64": (53, -1022),
    "float32": (24, -126),
    "float16": (11, -14),
    "bfloat16": (8, -126),
    "float8_e4m3fn": (4, -6),
    "float8_e5m2": (3, -14),
}
"""Binary digits of a format, and the exponent of its smallest normal number."""

_SIGN: Final = 128
"""From here on the first of 8 bits is set."""

_NATIVE: Final = (
    *("float64", "float32", "float16", "int64", "int32", "int16", "int8"),
    *("uint8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128"),
)


@dataclass
class Apart:
    """How far two tensors are apart; a number is NaN where it does not exist.

    Attributes:
        cosine: Of the angle between them; 1 if both are zero.
        euclidean: Norm of the difference.
        relative: The same over the larger norm.
        max_abs: Largest difference of two elements.
        max_rel: The same over the size of the baseline's; infinite where that is 0 and this is not.
        within_1e3, within_5e3: Shares of the elements whose relative difference is below 1/1000
            and 5/1000.
        max_ulp: Largest number of floats of the coarser format between two elements.
        mismatched: Elements that are not finite on one side, or in another way.
        peak: Largest magnitude.
        count: Elements that are finite on both sides.
    """

    cosine: float
    euclidean: float
    relative: float
    max_abs: float
    max_rel: float
    within_1e3: float
    within_5e3: float
    max_ulp: float
    mismatched: int
    peak: float
    count: int


NAMES: Final = tuple(each.name for each in fields(Apart))[:9]


def apart(baseline: Floats, candidate: Floats, dtype: str | None = None) -> Apart:
    """Compare two arrays of the same number of elements, in float64.

    >>> apart(np.array([3.0, 4.0]), np.array([3.0, 4.5]), "float32").euclidean
    0.5
    """
    sums = np.zeros(4)
    largest = np.zeros(4)
    within = np.zeros(2, np.int64)
    mismatched = count = 0
    for begin in range(0, baseline.size, _CHUNK):
        a, b = (_wide(each.reshape(-1)[begin : begin + _CHUNK]) for each in (baseline, candidate))
        good = np.isfinite(a) & np.isfinite(b)
        mismatched += int((~good & ~((a == b) | (np.isnan(a) & np.isnan(b)))).sum())
        a, b = a[good], b[good]
        count += len(a)
        if not len(a):
            continue
        d = np.abs(b - a)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            rel = np.where(d == 0, 0.0, d / np.abs(a))
        unit = max(float(np.abs(a).max()), float(np.abs(b).max()), 1e-300)
        if unit > largest[3]:  # squares neither overflow nor vanish
            sums *= (largest[3] / unit) ** 2
        largest[3] = max(unit, largest[3])
        p, q, r = a / largest[3], b / largest[3], d / largest[3]
        sums += (p @ q, p @ p, q @ q, r @ r)
        ulp = 0.0 if dtype is None else float(ulps(a, b, dtype).max())
        largest[:3] = np.maximum(largest[:3], (d.max(), rel.max(), ulp))
        within += [int((rel < each).sum()) for each in _SHARES]
    return _apart(sums, largest, within, mismatched, count, ulps=dtype is not None)


def _apart(
    sums: Floats,
    largest: Floats,
    within: NDArray[np.int64],
    mismatched: int,
    count: int,
    *,
    ulps: bool,
) -> Apart:
    dot, left, right, square = sums.tolist()
    nothing = not count
    norm = np.sqrt(left) * np.sqrt(right)
    cosine = (
        1.0 if left == right == 0 else (0.0 if norm == 0 else float(np.clip(dot / norm, -1, 1)))
    )
    larger = np.sqrt(max(left, right))
    nan = float("nan")
    return Apart(
        cosine=nan if nothing else cosine,
        euclidean=nan if nothing else float(np.sqrt(square) * largest[3]),
        relative=nan if nothing else float(np.sqrt(square) / larger) if larger else 0.0,
        max_abs=nan if nothing else float(largest[0]),
        max_rel=nan if nothing else float(largest[1]),
        within_1e3=nan if nothing else float(within[0] / count),
        within_5e3=nan if nothing else float(within[1] / count),
        max_ulp=float(largest[2]) if ulps and count else nan,
        mismatched=mismatched,
        peak=0.0 if nothing else float(largest[3]),
        count=count,
    )


def _wide(values: NDArray[Any]) -> Floats:
    size = np.abs(values) if values.dtype.kind == "c" else values
    return np.asarray(size, np.float64)


def ulps(a: Floats, b: Floats, dtype: str) -> Floats:
    """Return how many floats of a format lie between two values each."""
    if dtype != "float64":
        return np.abs(ordinal(b, dtype) - ordinal(a, dtype))
    left, right = (np.abs(each).view(np.int64) for each in (a, b))
    alike = np.signbit(a) == np.signbit(b)
    return np.where(alike, np.abs(left - right), left.astype(np.float64) + right)


def ordinal(values: Floats, dtype: str) -> Floats:
    """Return the place of each value among the floats of a format: 0 is at 0, the next at 1.

    Values between two floats of the format lie between their places.

    >>> ordinal(np.array([0.0, 2.0**-149, 1.0]), "float32").tolist()
    [0.0, 1.0, 1065353216.0]
    """
    digits, least = _DIGITS[dtype]
    exponent = np.maximum(np.frexp(values)[1] - 1, least)
    steps = np.ldexp(np.abs(values), digits - 1 - exponent)
    place: Floats = np.sign(values) * (steps + (exponent - least) * 2.0 ** (digits - 1))
    return place


def array_of(kept: Kept) -> NDArray[Any] | None:
    """Return a kept tensor as an array; None if it is not there or of a type without numbers."""
    data = bytes_of(kept)
    if data is None:
        return None
    if kept.dtype in _NATIVE:
        return data.view(kept.dtype)
    if kept.dtype == "bfloat16":
        wide = data.view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32)
    if kept.dtype in _DIGITS:
        return _float8(kept.dtype)[data]
    return None


@lru_cache
def _float8(dtype: str) -> NDArray[np.float32]:
    """Return the value of each of the 256 patterns of a format of 8 bits."""
    digits, least = _DIGITS[dtype]
    code = np.arange(256)
    stored = digits - 1
    exponent, fraction = (code & 127) >> stored, code & (2**stored - 1)
    normal = exponent > 0
    value = np.ldexp(np.where(normal, 2**stored + fraction, fraction).astype(np.float64), 0)
    value = np.ldexp(value, np.where(normal, exponent - 1, 0) + least - stored)
    if dtype == "float8_e4m3fn":
        value[(code & 127) == 127] = np.nan  # noqa: PLR2004 - seven bits
    else:
        top = exponent == 2 ** (7 - stored) - 1
        value[top] = np.where(fraction[top] == 0, np.inf, np.nan)
    signed: NDArray[np.float32] = np.where(code >= _SIGN, -value, value).astype(np.float32)
    return signed


# -- all of a comparison ------------------------------------------------------------------------


class Metrics:
    """What the kept tensors of some pairs tell, by the place of the pair."""

    def __init__(self) -> None:
        """Know nothing."""
        self.of: dict[int, Apart] = {}

    def __len__(self) -> int:
        """Return for how many pairs both tensors are there."""
        return len(self.of)

    def put_into(self, found: Measured) -> None:
        """Note the differences; what is not finite in another place is beyond rounding."""
        for place, each in self.of.items():
            if each.mismatched:
                found.put("exact", np.array([place]), np.array([np.inf]))
            if each.count:
                found.put("tensor", np.array([place]), np.array([each.relative]))
                size = each.max_abs / each.peak if each.peak else 0.0
                found.put("element", np.array([place]), np.array([size]))

    def equal(self, count: int) -> NDArray[np.bool_]:
        """Tell which pairs are not known to differ in an element."""
        found = np.ones(count, np.bool_)
        for place, each in self.of.items():
            found[place] = not each.mismatched and not (each.max_abs > 0)
        return found


def compared(  # noqa: PLR0917
    one: Side,
    other: Side,
    pairs: Pairs,
    first: Tensors,
    second: Tensors,
    told: Told,
) -> Metrics:
    """Compare the tensors that both sides kept, one pair at a time; `told` hears of each share."""
    metrics = Metrics()
    both = _places(one, pairs.baseline, first), _places(other, pairs.candidate, second)
    common = sorted(both[0].keys() & both[1].keys())
    for place in common:
        told(1 / len(common))
        a, b = both[0][place], both[1][place]
        left, right = array_of(a), array_of(b)
        if left is not None and right is not None and left.size == right.size:
            metrics.of[place] = apart(left, right, coarser(a.dtype, b.dtype))
    return metrics


def coarser(one: str, other: str) -> str | None:
    """Return the format with fewer digits, None if one of both is none that has them."""
    if one not in _DIGITS or other not in _DIGITS:
        return None
    return min(one, other, key=lambda each: _DIGITS[each][0])


def _places(side: Side, rows: Rows, tensors: Tensors) -> dict[int, Kept]:
    """Return the kept tensors by the places of the pairs that they are of."""
    of = _by_record(tensors)
    if not of:
        return {}
    about = {key[:6] for key in of}
    names = [(s.model, s.module, s.api, s.direction, s.role, s.leaf) for s in side.sites]
    wanted = np.array([name in about for name in names], np.bool_)
    data = side.data
    chosen = np.flatnonzero(wanted[data["site"][rows]] & ~data["recompute"][rows].astype(np.bool_))
    at = rows[chosen]
    numbers = ("site", "step", "micro_step", "call", "backward")
    columns = (each[at].tolist() for each in (*(data[name] for name in numbers), side.ranks))
    found = {}
    for place, (site, *where) in zip(chosen.tolist(), zip(*columns, strict=True), strict=True):
        kept = of.get((*names[site], *where))
        if kept is not None:
            found[place] = kept
    return found


def _by_record(tensors: Tensors) -> dict[tuple[Any, ...], Kept]:
    """Return the kept tensors by what tells records apart, without what is there twice."""
    of: dict[tuple[Any, ...], Kept] = {}
    twice = set()
    for e in tensors.known():
        if e.data is None:
            continue
        site = (e.model, e.module, e.api, e.direction, e.role, e.leaf)
        key = (*site, e.step, e.micro_step, e.call, e.backward, e.rank)
        if key in of:
            twice.add(key)
        of[key] = e
    return {key: kept for key, kept in of.items() if key not in twice}
