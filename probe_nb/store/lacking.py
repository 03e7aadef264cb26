"""What to say where rows were asked for a number that none of them has."""

from __future__ import annotations

from typing import Final

import pandas as pd

from probe_nb.errors import SelectionError
from probe_nb.reasons import REMEDIES
from probe_nb.terms import COUNTS, STATISTICS, shown

NAMES: Final = (*STATISTICS, *COUNTS, "status")
"""What is looked at."""

_MEASURED: Final = frozenset({"ok", "has_nan", "has_inf"})
_GAPS: Final = frozenset({"no_finite", "empty"})
"""Such rows were measured, and have no such number: a gap in a line is no mistake."""


def refuse(rows: pd.DataFrame, module: str, role: str, stat: str) -> None:
    """Say why none of some rows has a number, unless it is because nothing in them is finite.

    Raises:
        SelectionError: What they come from never had it, or nothing of them was measured.
    """
    statuses = [str(status) for status in rows["status"].unique()]
    if _GAPS.issuperset(statuses):
        return
    none = f"No `{role}` row of `{shown(module)}` has a number for `{stat}`"
    lost = [each for each in statuses if each != "ok" and each not in _GAPS]
    there = [name for name in NAMES[:-1] if rows[name].notna().any()]
    if not lost or (there and _MEASURED.issuperset(lost)):
        has = ", ".join(there) or "none"
        raise SelectionError(f"{none}. It has {has}; msProbe writes no other into its dumps.")
    raise SelectionError(f"{none}. Status `{lost[0]}`: {REMEDIES[lost[0]]}")
