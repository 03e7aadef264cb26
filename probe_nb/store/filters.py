"""How rows are chosen by words and numbers, and joined over a step."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from probe_nb.errors import SelectionError, closest
from probe_nb.store.columns import Columns, Filter
from probe_nb.store.table import FIXED, OF_SITE
from probe_nb.terms import COUNTS, STATUSES, shown

_NAMES: Final = (
    *("step", "micro_step", "rank", "call", "model", "module", "type", "direction"),
    *("role", "leaf", "status"),
)
"""The columns that rows can be chosen by."""


def parsed(filters: Mapping[str, Any], columns: Columns) -> list[Filter]:
    """Return what the codes in the columns must pass, as `Run.frame` says."""
    found = []
    for name, wanted in filters.items():
        if name not in _NAMES:
            raise SelectionError(
                f"`{name}` is not a filter.{closest(name, _NAMES)} Known: {', '.join(_NAMES)}."
            )
        if wanted is None:
            continue
        if name == "status":
            hits = _matching(name, wanted, STATUSES)
            found.append(_among("status", [STATUSES.index(status) for status in hits]))
        elif name in OF_SITE:
            words = [getattr(site, name) for site in columns.tables.sites.values]
            known = FIXED.get(name) or tuple(dict.fromkeys(words))
            hits = _matching(name, wanted, known)
            found.append(_among("site", [code for code, word in enumerate(words) if word in hits]))
        else:
            found.append(Filter(name, _number_test(name, wanted, columns)))
    return found


def _among(column: str, codes: Sequence[int]) -> Filter:
    """Return a filter that only these codes pass; a code that is younger than it does not."""
    return Filter(column, lambda values: np.isin(values, np.array(codes, values.dtype)))


def _matching(name: str, wanted: str | Sequence[str], known: Sequence[str]) -> set[str]:
    """Return the known values that the patterns match; each pattern must match something."""
    patterns = [wanted] if isinstance(wanted, str) else list(wanted)
    found: set[str] = set()
    for pattern in patterns:
        exact = "" if name == "module" and pattern == shown("") else pattern
        hits = [exact] if exact in known else fnmatch.filter(known, exact)
        if not hits:
            raise SelectionError(
                f"No {name} matches `{pattern}`.{closest(exact, known)} "
                f"This run has {len(known)} of them."
            )
        found.update(hits)
    return found


def _number_test(name: str, wanted: Any, columns: Columns) -> Callable[[Any], Any]:
    """Return a test for the wanted number, or one among several, in a range or in a slice."""
    if isinstance(wanted, slice):
        wanted = range(*wanted.indices(columns.highest(name) + 1))
    if isinstance(wanted, range):
        low, high = sorted((wanted[0], wanted[-1])) if wanted else (0, -1)
        stride = abs(wanted.step)
        return lambda values: (
            (values >= max(low, 0))
            & (values <= high)
            & ((values.astype(np.int64) - low) % stride == 0)
        )
    if isinstance(wanted, (int, np.integer)):
        return lambda values: (values >= 0) & (values == wanted)
    several = [] if wanted is pd.NA else [value for value in wanted if value is not pd.NA]
    return lambda values: (values >= 0) & np.isin(values, several)


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
