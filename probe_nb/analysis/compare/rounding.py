"""How far rounding alone may take two computations of the same value apart.

u is the unit roundoff of a format with p binary digits, 2**-p: the largest relative error of one
rounding to nearest (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section
2.1). A sum or dot product of k terms has a relative error of at most gamma_k = k u / (1 - k u)
(section 3.1), and of about sqrt(k) u with a probability that lambda sets, since roundings partly
cancel (Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci.
Comput. 41(5), 2019, theorem 2.4). Formats of 16 bits and less are multiplied in their own and
summed in float32 by the units that compute with them, so their own u counts once and that of
float32 with sqrt(k).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probe_nb.errors import ConfigError, closest

Floats = NDArray[np.float64]

UNITS: Final[dict[str, float]] = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "tfloat32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e4m3fnuz": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    "float8_e5m2fnuz": 2.0**-3,
    "complex128": 2.0**-53,
    "complex64": 2.0**-24,
    "complex32": 2.0**-11,
}
"""Unit roundoff of each format; integers and bools are exact."""

_SINGLE: Final = UNITS["float32"]
EXTREME: Final = 4.0
"""lambda of a single element, min, max: 1 - 2 exp(-lambda**2 / 2) is 0.9993."""

MOMENT: Final = 8.0
"""lambda of mean, std, l2: the error of one element, averaged over those that are independent."""

SHARED: Final = 0.5
"""Roundings that all elements share, of a constant for one, in units of u: they do not cancel."""

WHOLE: Final = 2.0
"""lambda of the norm of the difference of two kept tensors, which is an average itself."""

MEASURED: Final = 1e-6
"""What mean (in units of absmax), std and l2 (of themselves) are known to: docs/statistics.md."""

TAKEN: Final = 5e-5
"""The same of a dump, whose Mean and Norm are summed in the tensor's own format or in float32."""


def known_to(unit: Floats, known: float) -> Floats:
    """Return what mean, std and l2 of each pair are known to.

    msProbe also writes those of a dump in the tensor's own format: rounded once more, if it is a
    short one.
    """
    return np.maximum(known, unit) if known == TAKEN else np.full(len(unit), known)


class Tolerance(NamedTuple):
    """What rounding alone explains, per pair and kind of measure, relative to the scale."""

    extreme: Floats
    moment: Floats
    whole: Floats


def units(dtypes: Sequence[str]) -> Floats:
    """Return the unit roundoff of each dtype; 0 is exact."""
    return np.array([UNITS.get(each.removeprefix("torch."), 0.0) for each in dtypes], np.float64)


def lowest(tolerance: Any) -> tuple[float, float]:
    """Return the factor and the least unit roundoff that `compare(tolerance=...)` asks for.

    Raises:
        ConfigError: It is neither a positive number nor a format.
    """
    if isinstance(tolerance, str):
        name = {"tf32": "tfloat32"}.get(tolerance, tolerance.removeprefix("torch."))
        if name not in UNITS:
            raise ConfigError(
                f"`tolerance` is {tolerance!r}; give a number, or the format that the computation "
                f"may have used.{closest(name, UNITS)} Known: {', '.join(UNITS)}."
            )
        return 1.0, UNITS[name]
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not tolerance > 0:
        raise ConfigError(f"`tolerance` is {tolerance!r}; give a number above 0, or a format.")
    return float(tolerance), 0.0


def tolerance(unit: Floats, terms: Floats, numel: Floats, factor: float = 1.0) -> Tolerance:
    """Return what rounding explains of a value that is a sum of so many terms.

    Args:
        unit: Unit roundoff of the coarser dtype of each pair.
        terms: Terms of the sum behind one element.
        numel: Elements of the tensor.
        factor: `compare(tolerance=...)`.

    >>> t = tolerance(np.array([2.0**-24]), np.array([1.0]), np.array([1.0]))
    >>> [round(float(each.item() / 2**-24)) for each in t]
    [8, 16, 4]
    """
    root = np.sqrt(np.maximum(terms, 1.0))
    many = np.sqrt(np.maximum(numel, 1.0))
    summed = root * np.minimum(unit, _SINGLE)
    averaged = unit / many + summed * np.minimum(1.0, root / many)
    return Tolerance(
        factor * EXTREME * (unit + summed),
        factor * (SHARED * unit + MOMENT * averaged),
        factor * WHOLE * (unit + summed),
    )
