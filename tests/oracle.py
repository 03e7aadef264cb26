"""What every statistic must be, in numpy float64, written from the definitions and nothing else.

Elements are decoded from their bits, so that not even torch's own conversions are trusted.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

# (largest finite value, smallest normal value) of every floating type
LIMITS = {
    torch.float64: (np.finfo(np.float64).max, 2.0**-1022),
    torch.float32: ((2 - 2.0**-23) * 2.0**127, 2.0**-126),
    torch.float16: ((2 - 2.0**-10) * 2.0**15, 2.0**-14),
    torch.bfloat16: ((2 - 2.0**-7) * 2.0**127, 2.0**-126),
    torch.float8_e4m3fn: (448.0, 2.0**-6),
    torch.float8_e4m3fnuz: (240.0, 2.0**-7),
    torch.float8_e5m2: (57344.0, 2.0**-14),
    torch.float8_e5m2fnuz: (57344.0, 2.0**-15),
    torch.float8_e8m0fnu: (2.0**127, 2.0**-127),
}

# exponent bits, mantissa bits, bias, whether it is an IEEE type with infinities
_EIGHT_BITS = {
    torch.float8_e4m3fn: (4, 3, 7, "fn"),
    torch.float8_e4m3fnuz: (4, 3, 8, "fnuz"),
    torch.float8_e5m2: (5, 2, 15, "ieee"),
    torch.float8_e5m2fnuz: (5, 2, 16, "fnuz"),
}

STATISTICS = ("min", "max", "mean", "std", "l2", "absmax")


@dataclass(frozen=True)
class Expected:
    """The truth about one tensor.

    `statistics` is None where no element is finite. `bins` maps (sign, exponent) to a count.
    """

    numel: int
    statistics: dict[str, float] | None
    counts: dict[str, int]
    bins: dict[tuple[int, int], int]


def decode8(byte: int, dtype: torch.dtype) -> float:
    """Return the value of one byte of an eight-bit floating type."""
    if dtype == torch.float8_e8m0fnu:
        return math.nan if byte == 255 else 2.0 ** (byte - 127)
    exponent_bits, mantissa_bits, bias, kind = _EIGHT_BITS[dtype]
    sign = -1.0 if byte & 0x80 else 1.0
    exponent = byte >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = byte & (1 << mantissa_bits) - 1
    top = exponent == (1 << exponent_bits) - 1
    if kind == "fnuz" and byte == 0x80:
        return math.nan
    if kind == "fn" and byte & 0x7F == 0x7F:
        return math.nan
    if kind == "ieee" and top:
        return math.nan if mantissa else sign * math.inf
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)


def values(t: torch.Tensor) -> np.ndarray:
    """Return every element of a strided tensor in float64, or its modulus if it is complex."""
    t = t.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if t.is_complex():
        parts = torch.view_as_real(t).to(torch.float64).numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            modulus = np.hypot(parts[:, 0], parts[:, 1])
        return np.where(np.isnan(parts).any(axis=1), np.nan, modulus)
    if t.dtype in _EIGHT_BITS or t.dtype == torch.float8_e8m0fnu:
        table = np.array([decode8(byte, t.dtype) for byte in range(256)])
        return table[t.view(torch.uint8).numpy()]
    raw = t.numpy() if t.dtype != torch.bfloat16 else _bfloat16(t)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return raw.astype(np.float64)


def _bfloat16(t: torch.Tensor) -> np.ndarray:
    upper = t.view(torch.int16).numpy().view(np.uint16)
    return (upper.astype(np.uint32) << 16).view(np.float32)


def expected(t: torch.Tensor) -> Expected:
    """Return the truth about a strided tensor."""
    return of_values(values(t), t.dtype)


def of_values(x: np.ndarray, dtype: torch.dtype) -> Expected:
    """Return the truth about elements that were of type `dtype` before they were widened."""
    finite = x[np.isfinite(x)]
    largest, smallest = LIMITS.get(dtype, (math.inf, 0.0))
    magnitude = np.abs(finite)
    counts = {
        "nan_count": int(np.isnan(x).sum()),
        "posinf_count": int(np.isposinf(x).sum()),
        "neginf_count": int(np.isneginf(x).sum()),
        "zero_count": int((x == 0).sum()),
        "subnormal_count": int(((magnitude > 0) & (magnitude < smallest)).sum()),
        "at_max_count": int((magnitude == largest).sum()),
    }
    return Expected(x.size, _statistics(finite), counts, _bins(finite))


def _statistics(x: np.ndarray) -> dict[str, float] | None:
    """Two passes, the second corrected for the rounding of the mean, at a scale near 1."""
    if not x.size:
        return None
    low, high = float(x.min()), float(x.max())
    largest = max(-low, high)
    power = math.frexp(largest)[1] if largest else 0
    y = np.ldexp(x, -power)
    mean = min(max(y.sum() / y.size, y.min()), y.max())
    d = y - mean
    spread = max((d * d).sum() - d.sum() ** 2 / y.size, 0.0) if low != high else 0.0
    with np.errstate(over="ignore"):
        return {
            "min": low,
            "max": high,
            "mean": float(np.ldexp(mean, power)),
            "std": float(np.ldexp(math.sqrt(spread / y.size), power)),
            "l2": float(np.ldexp(math.sqrt((y * y).sum()), power)),
            "absmax": largest,
        }


def _bins(finite: np.ndarray) -> dict[tuple[int, int], int]:
    there = finite[finite != 0]
    exponents = np.clip(np.frexp(np.abs(there))[1] - 1, -127, 128)
    bins = {}
    for sign, chosen in ((1, there > 0), (-1, there < 0)):
        counts = np.bincount(exponents[chosen] + 127)
        bins |= {(sign, int(b) - 127): int(counts[b]) for b in counts.nonzero()[0]}
    return bins


def signed_bins(numbers: np.ndarray, counts: np.ndarray) -> dict[tuple[int, int], int]:
    """Turn bin numbers (exponent + 127, plus 256 if negative) and counts into what `bins` is."""
    found: Counter[tuple[int, int]] = Counter()
    for number, count in zip(
        np.asarray(numbers).tolist(), np.asarray(counts).tolist(), strict=True
    ):
        found[-1 if number >= 256 else 1, number % 256 - 127] += count
    return {key: count for key, count in found.items() if count}


def faults(
    want: Expected,
    statistics: dict[str, float],
    counts: dict[str, int],
    bins: dict[tuple[int, int], int],
) -> list[str]:
    """Return everything in which measured numbers break their bounds; empty if all is well."""
    wrong = [
        f"{name}: {counts[name]}, not {n}" for name, n in want.counts.items() if counts[name] != n
    ]
    if bins != want.bins:
        wrong.append(f"bins: {bins}, not {want.bins}")
    if want.statistics is None:
        return wrong + [f"{k}: {v}, not absent" for k, v in statistics.items() if not math.isnan(v)]
    for name, exact in want.statistics.items():
        got, allowed = statistics[name], _allowed(name, want.statistics)
        if not (got == exact or abs(got - exact) <= allowed):  # infinities have no difference
            wrong.append(f"{name}: {got!r}, not {exact!r} within {allowed:.3g}")
    return wrong


def _allowed(name: str, exact: dict[str, float]) -> float:
    if name == "mean":
        return 1e-6 * exact["absmax"]
    return 1e-5 * exact[name] if name in ("std", "l2") else 0.0
