"""What was compared as a DataFrame: one row per pair, and one per record that is alone."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import union_categoricals

from probe_nb.analysis.compare.align import Side
from probe_nb.analysis.compare.compared import Compared
from probe_nb.analysis.compare.judge import ONLY_BASELINE, ONLY_CANDIDATE, VERDICTS
from probe_nb.analysis.compare.measures import MEASURES
from probe_nb.analysis.compare.tensors import NAMES
from probe_nb.store.table import ABSENT, OF_SITE, Arrays, to_frame
from probe_nb.terms import COUNTS, STATISTICS

Rows = NDArray[np.intp]

_ABOUT: Final = ("step", "micro_step", "rank", "order", "call", *OF_SITE)
_OF_SIDE: Final = ("dtype", "shape", "device", "numel", *STATISTICS, *COUNTS, "checksum", "status")

COLUMNS: Final = (
    *("module", "role", "verdict", "difference", "leaf", "tolerance", "measure", "came_in"),
    *("api", "direction", "reason", "module_candidate"),
    *(f"{name}_{part}" for name in STATISTICS for part in ("baseline", "candidate", "diff")),
    *(f"{name}_{part}" for name in COUNTS for part in ("baseline", "candidate", "diff")),
    *("histogram_distance", "checksum_same", *NAMES),
    *(
        f"{name}_{side}"
        for name in ("dtype", "shape", "device", "numel", "status", "row")
        for side in ("baseline", "candidate")
    ),
    *("type", "model", "order", "micro_step", "rank", "call", "step"),
)
"""The columns of `Comparison.df`, in order."""


def frame(of: Compared) -> pd.DataFrame:
    """Build `Comparison.df`."""
    pairs, only = of.pairs, (of.pairs.only_baseline, of.pairs.only_candidate)
    sizes = [len(pairs.baseline), len(only[0]), len(only[1])]
    sides = {
        "baseline": _side(of.one, [pairs.baseline, only[0]], sizes[2], last=True),
        "candidate": _side(
            of.other, [pairs.candidate, only[1]], sizes[1], last=False, before=sizes[0]
        ),
    }
    whole = sides["baseline"][[*_ABOUT]].copy()
    alone = sum(sizes[:2])
    for name in _ABOUT:
        whole[name] = _filled(whole[name], sides["candidate"][name], alone)
    data: dict[str, Any] = {name: whole[name] for name in _ABOUT}
    data["module_candidate"] = sides["candidate"]["module"]
    data |= _judged(of, sizes)
    for name in (*STATISTICS, *COUNTS):
        left, right = (sides[side][name] for side in sides)
        data |= {f"{name}_baseline": left, f"{name}_candidate": right, f"{name}_diff": right - left}
    data |= _measured(of, sizes)
    for name in ("dtype", "shape", "device", "numel", "status"):
        data |= {f"{name}_{side}": sides[side][name] for side in sides}
    data |= {f"row_{side}": sides[side]["row"] for side in sides}
    return pd.DataFrame({name: data[name] for name in COLUMNS}, copy=False)


def _side(
    side: Side, parts: list[Rows], empty: int, *, last: bool, before: int = 0
) -> pd.DataFrame:
    """Return the records of one side, with rows without anything where the other is alone."""
    rows = np.concatenate(parts)
    data: Arrays = {name: column[rows] for name, column in side.data.items()}
    made = to_frame(data, side.columns.tables)
    made["row"] = pd.array(side.rows[rows], "Int64")
    place = np.arange(len(rows))
    at = (
        np.append(place, np.full(empty, ABSENT))
        if last
        else np.insert(place, before, np.full(empty, ABSENT))
    )
    return _taken(made, at)


def _taken(made: pd.DataFrame, at: Rows) -> pd.DataFrame:
    """Return rows by their places, -1 for one without anything."""
    if not (at < 0).any():
        return made.iloc[at].reset_index(drop=True)
    plain = {"i": "Int64", "b": "boolean"}
    kinds = {n: plain.get(getattr(made[n].dtype, "kind", ""), made[n].dtype) for n in made.columns}
    whole = made.astype(kinds)
    return whole.reindex(at).reset_index(drop=True)


def _filled(one: pd.Series, other: pd.Series, alone: int) -> pd.Series:
    """Return what is said of each row by the baseline, of the last ones by the candidate."""
    if alone == len(one):
        return one
    parts = [one.iloc[:alone], other.iloc[alone:]]
    if isinstance(one.dtype, pd.CategoricalDtype):
        return pd.Series(union_categoricals([each.array for each in parts]), one.index)
    return pd.concat([each.astype("Int64") for each in parts])


def _judged(of: Compared, sizes: list[int]) -> dict[str, Any]:
    codes = np.concatenate(
        [of.verdicts, np.full(sizes[1], ONLY_BASELINE), np.full(sizes[2], ONLY_CANDIDATE)]
    )
    texts = pd.Index(of.reasons.texts, dtype="str")
    reason = np.append(of.reasons.codes, np.zeros(sizes[1] + sizes[2], np.int32))
    worst = np.where(of.found.difference > 0, of.found.worst(), ABSENT)
    at = np.maximum(worst, 0)[None]
    allowed = np.take_along_axis(of.found.allowed * of.flow.own, at, 0)[0]
    apart = np.take_along_axis(of.found.apart, at, 0)[0]
    tolerance = np.where(worst < 0, of.found.tolerance.extreme, allowed)
    measure = np.append(worst, np.full(sizes[1] + sizes[2], ABSENT))
    return {
        "verdict": pd.Categorical.from_codes(codes.astype(np.int64), pd.Index(VERDICTS)),
        "reason": pd.Categorical.from_codes(reason, texts),
        "measure": pd.Categorical.from_codes(measure.astype(np.int64), pd.Index(MEASURES)),
        "difference": _floats(np.where(worst < 0, of.found.difference, apart), sizes),
        "tolerance": _floats(np.where(of.chosen, np.nan, tolerance), sizes),
        "came_in": _floats(of.flow.came_in, sizes),
    }


def _measured(of: Compared, sizes: list[int]) -> dict[str, Any]:
    rest = sizes[1] + sizes[2]
    sums = np.append(of.checksums, np.full(rest, ABSENT))
    found: dict[str, Any] = {
        "histogram_distance": _floats(of.distance, sizes),
        "checksum_same": pd.arrays.BooleanArray(sums == 1, sums < 0),
    }
    for name in NAMES:
        values = np.full(len(of), np.nan)
        for place, each in of.kept.of.items():
            values[place] = getattr(each, name)
        found[name] = _floats(values, sizes)
    return found


def _floats(values: NDArray[np.float64], sizes: list[int]) -> pd.arrays.FloatingArray:
    whole = np.append(values, np.full(sizes[1] + sizes[2], np.nan))
    absent = np.isnan(whole)
    return pd.arrays.FloatingArray(np.where(absent, 1.0, whole), absent)
