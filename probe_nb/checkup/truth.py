"""What every statistic of a tensor on the host must be: numpy in float64, from the definitions.

Nothing of `stats` is used, and types that numpy does not have are decoded from their bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe_nb.exponents import Histogram

_LIMITS: Final = {
    torch.float64: (float(np.finfo(np.float64).max), 2.0**-1022),
    torch.float32: (float(np.finfo(np.float32).max), 2.0**-126),
    torch.float16: (65504.0, 2.0**-14),
    torch.bfloat16: ((2 - 2.0**-7) * 2.0**127, 2.0**-126),
    torch.float8_e4m3fn: (448.0, 2.0**-6),
    torch.float8_e5m2: (57344.0, 2.0**-14),
}
"""Largest finite value and smallest normal one of each floating type."""

_EIGHT_BITS: Final = {torch.float8_e4m3fn: (3, 7), torch.float8_e5m2: (2, 15)}
"""Bits of the mantissa, and the bias of the exponent."""


@dataclass(frozen=True)
class Truth:
    """The numbers of one tensor; `statistics` is None where no element is finite."""

    numel: int
    statistics: dict[str, float] | None
    counts: dict[str, int]
    bins: list[tuple[int, int, int]]

    def faults(self, row: Any, histogram: Histogram | None) -> list[str]:
        """Return where a record breaks its bounds: the mean within 1e-6 of the largest
        magnitude, std and l2 within 1e-5 of themselves, everything else exact.
        """  # noqa: D205 - one sentence
        wrong = [] if row["numel"] == self.numel else [f"numel {row['numel']}, not {self.numel}"]
        status = "ok" if self.statistics else "no_finite" if self.numel else "empty"
        if row["status"] != status:
            return [*wrong, f"status {row['status']}, not {status}"]
        wrong += [f"{k} {row[k]}, not {n}" for k, n in self.counts.items() if row[k] != n]
        found = sorted(histogram.signed()) if histogram is not None else []
        if found != self.bins:
            wrong.append(f"histogram {found[:3]}..., not {self.bins[:3]}...")
        return wrong + [
            f"{name} {row[name]!r}, not {exact!r}"
            for name, exact in (self.statistics or {}).items()
            if not self._within(name, float(row[name]), exact)
        ]

    def _within(self, name: str, got: float, exact: float) -> bool:
        if got == exact:  # infinities have no difference
            return True
        largest = (self.statistics or {})["absmax"]
        allowed = {"mean": 1e-6 * largest, "std": 1e-5 * exact, "l2": 1e-5 * exact}
        return abs(got - exact) <= allowed.get(name, 0.0)


def of(t: Tensor) -> Truth:
    """Return the truth about a tensor on the host."""
    x = _values(t)
    finite = x[np.isfinite(x)]
    magnitude = np.abs(finite)
    largest, smallest = _LIMITS.get(t.dtype, (math.inf, 0.0))
    counts = {
        "nan_count": np.isnan(x).sum(),
        "posinf_count": np.isposinf(x).sum(),
        "neginf_count": np.isneginf(x).sum(),
        "zero_count": (x == 0).sum(),
        "subnormal_count": ((magnitude > 0) & (magnitude < smallest)).sum(),
        "at_max_count": (magnitude == largest).sum(),
    }
    exact = _statistics(finite) if finite.size else None
    return Truth(x.size, exact, {k: int(n) for k, n in counts.items()}, _bins(finite))


def _values(t: Tensor) -> NDArray[np.float64]:
    """Return every element in float64."""
    t = t.detach().contiguous().reshape(-1)
    if t.dtype in _EIGHT_BITS:
        table = [_decoded(byte, t.dtype) for byte in range(256)]
        return np.take(np.array(table), t.view(torch.uint8).numpy())
    if t.dtype == torch.bfloat16:  # the upper half of a float32
        upper = t.view(torch.int16).numpy().view(np.uint16).astype(np.uint32)
        return (upper << 16).view(np.float32).astype(np.float64)
    if t.is_complex():
        parts = t.numpy().view(np.float32).reshape(-1, 2).astype(np.float64)
        return np.where(np.isnan(parts).any(1), np.nan, np.hypot(parts[:, 0], parts[:, 1]))
    return t.numpy().astype(np.float64)


def _decoded(byte: int, dtype: torch.dtype) -> float:
    mantissa_bits, bias = _EIGHT_BITS[dtype]
    sign = -1.0 if byte & 0x80 else 1.0
    exponent, mantissa = divmod(byte & 0x7F, 1 << mantissa_bits)
    if dtype == torch.float8_e4m3fn and byte & 0x7F == 0x7F:  # noqa: PLR2004 - its only NaN
        return math.nan
    if dtype == torch.float8_e5m2 and exponent == 31:  # noqa: PLR2004 - all bits set
        return math.nan if mantissa else sign * math.inf
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)


def _statistics(x: NDArray[np.float64]) -> dict[str, float]:
    """Take two passes, at a scale where squares neither overflow nor vanish."""
    absmax = float(np.abs(x).max())
    power = math.frexp(absmax)[1]
    y = np.ldexp(x, -power)
    mean = y.sum() / x.size
    d = y - mean
    spread = max((d * d).sum() / x.size - (d.sum() / x.size) ** 2, 0.0)
    with np.errstate(over="ignore"):
        return {
            "min": float(x.min()),
            "max": float(x.max()),
            "mean": float(np.ldexp(mean, power)),
            "std": 0.0 if x.min() == x.max() else float(np.ldexp(math.sqrt(spread), power)),
            "l2": float(np.ldexp(math.sqrt((y * y).sum()), power)),
            "absmax": absmax,
        }


def _bins(finite: NDArray[np.float64]) -> list[tuple[int, int, int]]:
    """Count by sign and binary exponent; float32 subnormals are one bin, what is beyond too."""
    there = finite[finite != 0]
    exponent = np.clip(np.frexp(np.abs(there))[1] - 1, -127, 128)
    keys, counts = np.unique(np.sign(there) * (exponent + 1000), return_counts=True)
    pairs = zip(keys.tolist(), counts.tolist(), strict=True)
    return sorted((1 if key > 0 else -1, int(abs(key)) - 1000, n) for key, n in pairs)
