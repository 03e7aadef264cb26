"""How the difference of two runs grows with depth."""

from __future__ import annotations

import fnmatch
from typing import Final

import numpy as np
import pandas as pd

from probe_nb.analysis.compare.compared import Compared
from probe_nb.errors import ConfigError, SelectionError, closest
from probe_nb.terms import shown

_ROLES: Final = {"forward": "output", "backward": "grad_input"}
COLUMNS: Final = (
    *("module", "difference", "tolerance", "verdict", "came_in", "gain"),
    *("role", "leaf", "type", "api", "model", "order", "call", "step"),
)


def profile(of: Compared, frame: pd.DataFrame, direction: str, step: int | None) -> pd.DataFrame:
    """Return the outputs, or gradients, of one step in execution order."""
    if direction not in _ROLES:
        raise ConfigError(
            f"`direction` is {direction!r}.{closest(str(direction), _ROLES)} "
            f"Known: {', '.join(_ROLES)}."
        )
    rows = np.flatnonzero(of.places.are(_ROLES[direction]))
    steps = of.places.step[rows]
    if step is None and len(rows):
        step = int(steps.min())
    rows = rows[steps == step]
    if not len(rows):
        known = ", ".join(map(str, np.unique(of.places.step)[:6]))
        raise SelectionError(f"Step {step} has no pair of `{_ROLES[direction]}`. Steps: {known}.")
    rows = rows[np.argsort(of.places.order[rows], kind="stable")]
    found = frame.iloc[rows].copy()
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = of.found.difference[rows] / of.flow.came_in[rows]
    found["gain"] = pd.array(np.where(np.isfinite(gain), gain, np.nan), "Float64")
    found.loc[found["gain"].isna(), "gain"] = pd.NA
    made: pd.DataFrame = found[[*COLUMNS]]
    return made


def rows_of(
    frame: pd.DataFrame, module: str, role: str, step: int | None, leaf: str | None, *, every: bool
) -> pd.DataFrame:
    """Return the pairs of one module in one role, as `Comparison.rows_of` says."""
    pairs = frame[frame["row_baseline"].notna() & frame["row_candidate"].notna()]
    names = [str(each) for each in pairs["module"].unique()]
    path = "" if module == shown("") else module
    hits = [path] if path in names else fnmatch.filter(names, path)
    if len(hits) != 1:
        what = f"matches {len(hits)} modules" if hits else f"has no pair.{closest(path, names)}"
        raise SelectionError(f"`{shown(path)}` {what}")
    found = pairs[(pairs["module"] == hits[0]) & (pairs["role"] == role)]
    if leaf is not None:
        found = found[found["leaf"] == leaf]
    if step is None and len(found) and not every:
        step = int(found["step"].min())
    if step is not None:
        found = found[found["step"] == step]
    if found.empty:
        at = "" if step is None else f" in step {step}"
        raise SelectionError(f"`{shown(hits[0])}` has no pair of `{role}`{at}.")
    if every:
        found = found[found["leaf"] == found["leaf"].iloc[0]].drop_duplicates("step")
    return found
