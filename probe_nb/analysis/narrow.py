"""Whether finite numbers may have passed the end of their dtype, which makes Inf or NaN of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from probe_nb.analysis.alarms import LIMITS
from probe_nb.analysis.words import number

_NARROW: Final = ("float16", "bfloat16", "float8")
_WITHOUT_INF: Final = {"float8_e4m3fnuz": 240.0, "float8_e5m2fnuz": 57344.0}
"""The largest numbers of dtypes in which what is larger becomes NaN."""

_TERMS: Final = 1024
"""Products that a sum is taken to have, where it is asked whether it may be too large."""


def passed(dtypes: Iterable[str], peak: float) -> str:
    """Say where the narrowest of some dtypes ends, if a sum of products may have passed that.

    >>> passed(["float32", "float16"], 1182.0)[:31]
    'float16 ends at 65504, and valu'
    >>> passed(["float16"], 2.0), passed(["bfloat16"], 1e6), passed(["float32"], 1e30)
    ('', '', '')
    """
    dtype = min(dtypes, key=_largest)
    limit = _largest(dtype)
    if np.isinf(limit) or peak**2 * _TERMS < limit:
        return ""
    return (
        f"{dtype} ends at {number(limit)}, and values up to {number(peak)} went in: scale them "
        "down before, or compute this in float32."
    )


def _largest(dtype: str) -> float:
    """Return the largest number of a dtype whose end is near, Inf for any other."""
    if dtype in _WITHOUT_INF:
        return _WITHOUT_INF[dtype]
    return LIMITS[dtype][2] if dtype.startswith(_NARROW) and dtype in LIMITS else np.inf
