"""How rows of a frame are chosen by words and numbers, and joined over a step."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from probe_nb.errors import SelectionError, closest
from probe_nb.terms import COUNTS, shown

_NAMES: Final = (
    *("step", "micro_step", "rank", "call", "model", "module", "type", "direction"),
    *("role", "leaf", "status"),
)
"""The columns that rows can be chosen by."""


def chosen(frame: pd.DataFrame, filters: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows of `run.df` that pass every filter, as `Run.frame` says."""
    keep = np.ones(len(frame), dtype=bool)
    for name, wanted in filters.items():
        if name not in _NAMES:
            raise SelectionError(
                f"`{name}` is not a filter.{closest(name, _NAMES)} Known: {', '.join(_NAMES)}."
            )
        if wanted is None:
            continue
        column = frame[name]
        if isinstance(column.dtype, pd.CategoricalDtype):
            keep &= column.isin(_matching(name, wanted, list(column.cat.categories)))
        else:
            keep &= _chosen_numbers(column, wanted)
    return frame[keep]


def _matching(name: str, wanted: str | Sequence[str], known: list[str]) -> list[str]:
    """Return the known values that the patterns match; each pattern must match something."""
    patterns = [wanted] if isinstance(wanted, str) else list(wanted)
    found: list[str] = []
    for pattern in patterns:
        exact = "" if name == "module" and pattern == shown("") else pattern
        hits = [exact] if exact in known else fnmatch.filter(known, exact)
        if not hits:
            raise SelectionError(
                f"No {name} matches `{pattern}`.{closest(exact, known)} "
                f"This run has {len(known)} of them."
            )
        found += hits
    return found


def _chosen_numbers(column: pd.Series, wanted: Any) -> Any:
    """Tell which numbers are the wanted one, or among several, in a range or in a slice."""
    values = column.to_numpy(dtype=np.int64, na_value=-1)
    there = values >= 0
    if isinstance(wanted, slice):
        wanted = range(*wanted.indices(int(values.max(initial=-1)) + 1))
    if isinstance(wanted, range):
        low, high = sorted((wanted[0], wanted[-1])) if wanted else (0, -1)
        inside = (values >= low) & (values <= high) & ((values - low) % abs(wanted.step) == 0)
        return there & inside
    if isinstance(wanted, (int, np.integer)) or wanted is pd.NA:
        return there & (values == (-1 if wanted is pd.NA else wanted))
    return there & np.isin(values, list(wanted))


def joined(rows: pd.DataFrame, stat: str) -> pd.Series:
    """Join the rows of each step into one number, as `Run.history` says."""
    by_step = rows.groupby("step")[stat]
    if stat == "min":
        return by_step.min()
    if stat in ("max", "absmax", "l2"):
        return by_step.max()
    if stat in COUNTS:
        return by_step.sum(min_count=1)
    there = rows[rows[stat].notna()]
    weight = there["numel"].astype("Float64")
    total = (there[stat] * weight).groupby(there["step"]).sum()
    mean = total / weight.groupby(there["step"]).sum()
    return mean.reindex(by_step.size().index)  # a step without numbers is a gap
