"""Rows of a dump in which NaN or Inf is, and nobody counted how many.

What is judged needs to know that there is some, so in a judged block such a count is 1. It is never
shown: what is shown comes from the rows themselves.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from probe_nb.store.table import Arrays
from probe_nb.terms import STATUS_CODE

NEEDED: Final = ("status", "min", "max", "mean", "l2")
"""The columns without which nothing can be said of counts."""

_NAN: Final = STATUS_CODE["has_nan"]
_INF: Final = STATUS_CODE["has_inf"]


def is_uncounted(status: Any) -> Any:
    """Tell of statuses whether something is not finite and was not counted."""
    return (status == _NAN) | (status == _INF)


def judged(block: Arrays) -> Arrays:
    """Return a block as it is judged: what is known to be there counts, what overflowed is absent.

    A dump's norm and mean may overflow where every element is finite; they say nothing then.
    """
    status = block["status"]
    overflown = np.isinf(block["l2"]) | np.isinf(block["mean"])
    if not (is_uncounted(status) | overflown).any():
        return block
    made = dict(block)
    for name, there in (
        ("nan_count", status == _NAN),
        ("posinf_count", (status == _INF) & (block["max"] == np.inf)),
        ("neginf_count", (status == _INF) & (block["min"] == -np.inf)),
    ):
        if name in block:
            made[name] = np.where(there, np.maximum(block[name], 1), block[name])
    for name in ("mean", "l2"):
        made[name] = np.where(np.isinf(block[name]), np.nan, block[name])
    return made
