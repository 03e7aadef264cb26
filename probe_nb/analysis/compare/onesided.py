"""What only one of two runs has, and what it might be in the other."""

from __future__ import annotations

from collections import Counter
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe_nb.analysis.compare.align import Side
from probe_nb.analysis.compare.compared import Compared
from probe_nb.analysis.compare.naming import unwrapped

Rows = NDArray[np.intp]
COLUMNS: Final = ("module", "api", "side", "reason", "suggestion", "type", "model", "rows", "calls")
_CALLED: Final = ("input", "output", "grad_output", "grad_input")
_CERTAIN: Final = 0.6
"""A suggestion must be at least so like what it is for, from 0 to 1."""

_MANY: Final = 500
"""Modules left over on a side up to which suggestions are looked for."""


class Left(NamedTuple):
    """A module or function whose rows one run has alone.

    Attributes:
        calls: Calls that are alone.
        reason: Why its rows are alone.
        whole: No row of it has a counterpart.
        shapes: Its roles, leaves and shapes.
        place: Where its first row stands among those of its side, from 0 to 1.
    """

    side: str
    model: str
    module: str
    type: str
    api: str
    rows: int
    calls: int
    reason: str
    whole: bool
    shapes: frozenset[tuple[str, str, Any]]
    place: float


def one_sided(of: Compared) -> pd.DataFrame:
    """Return one row per module or function that has rows on one side alone."""
    left = leftovers(of)
    likely = _likely(left)
    rows = [
        (
            *(e.module, e.api, e.side, e.reason),
            likely.get((e.side, e.module, e.api), ""),
            *(e.type, e.model, e.rows, e.calls),
        )
        for each in ("baseline", "candidate")
        for e in left[each]
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def suggestions(of: Compared) -> dict[str, str]:
    """Return baseline paths and the candidate paths that they might be."""
    left = leftovers(of)
    likely = _likely(left)
    return {
        e.module: likely["baseline", e.module, ""]
        for e in left["baseline"]
        if ("baseline", e.module, "") in likely
    }


def leftovers(of: Compared) -> dict[str, list[Left]]:
    """Return what each side has alone, in the order of execution."""
    return {
        name: _left(name, side, alone, paired, _Other(side, other))
        for name, side, alone, paired, other in (
            ("baseline", of.one, of.pairs.only_baseline, of.pairs.baseline, of.other),
            ("candidate", of.other, of.pairs.only_candidate, of.pairs.candidate, of.one),
        )
    }


class _Other:
    """What tells why rows of a side are alone: how often each is called, what the other has."""

    def __init__(self, side: Side, other: Side) -> None:
        """Count the calls of both."""
        self.side, self.calls = side, (_calls(side), _calls(other))
        self.known = {other.names[code] for code in np.unique(other.data["site"]).tolist()}

    def reason(self, mine: list[int]) -> str:
        """Say why rows of these sites are alone, of a module that both runs have."""
        names = [self.side.names[code] for code in mine]
        name = names[0]
        here, there = (each[name.model, name.module, name.api] for each in self.calls)
        if here > there > 0:
            return "called more often"
        if all(each in self.known for each in names):
            return "the same tensors, under other numbers of calls or steps"
        if all(each.direction == "optimizer" for each in names):
            return "rows of the optimizer, which the other run has not"
        return "tensors that the other run has not"


def _calls(side: Side) -> Counter[tuple[str, str, str]]:
    """Return how often each module and function is called, as its inputs and results tell."""
    data, codes = side.data, np.array([n.role in _CALLED for n in side.names], np.bool_)
    if not len(side):
        return Counter()
    there = codes[data["site"]]
    columns = ("site", "step", "rank", "micro_step", "call")
    rows = np.unique(np.stack([data[name][there] for name in columns], axis=1), axis=0)
    names = ((side.names[row[0]], tuple(row[1:])) for row in rows.tolist())
    calls = {((n.model, n.module, n.api), call) for n, call in names}
    return Counter(key for key, _ in calls)


def _left(name: str, side: Side, alone: Rows, paired: Rows, other: _Other) -> list[Left]:
    if not len(alone):
        return []
    sites, of_row = side.sites, side.data["site"]
    known = {
        (sites[c].model, sites[c].module, sites[c].api) for c in np.unique(of_row[paired]).tolist()
    }
    counts = Counter(of_row[alone].tolist())
    by = np.argsort(side.data["order"][alone], kind="stable")
    codes, first = np.unique(of_row[alone][by], return_index=True)
    groups: dict[tuple[str, str, str], list[int]] = {}
    for code in codes[np.argsort(first)].tolist():
        site = sites[code]
        groups.setdefault((site.model, site.module, site.api), []).append(code)
    starts = dict(zip(codes.tolist(), first.tolist(), strict=True))
    found = []
    for (model, module, api), mine in groups.items():
        kinds = [sites[c].type for c in mine if sites[c].direction != "optimizer"]
        rows = alone[np.isin(of_row[alone], mine)]
        calls = {
            (s, m, c)
            for s, m, c in zip(
                *(side.data[n][rows].tolist() for n in ("step", "micro_step", "call")), strict=True
            )
        }
        shapes = frozenset((sites[c].role, sites[c].leaf, _shape(side, rows, c)) for c in mine)
        whole = (model, module, api) not in known
        found.append(
            Left(
                name,
                model,
                module,
                next(iter(kinds), sites[mine[0]].type),
                api,
                sum(counts[c] for c in mine),
                len(calls),
                "not in the other run" if whole else other.reason(mine),
                whole,
                shapes,
                starts[mine[0]] / len(alone),
            )
        )
    return found


def _shape(side: Side, rows: Rows, code: int) -> Any:
    first = rows[side.data["site"][rows] == code][0]
    shape = int(side.data["shape"][first])
    return side.columns.tables.shapes.values[shape] if shape >= 0 else None


def _likely(left: dict[str, list[Left]]) -> dict[tuple[str, str, str], str]:
    """Pair what is left over by likeness, the surest first; each is used once."""
    ones, others = (
        [e for e in left[side] if e.whole][:_MANY] for side in ("baseline", "candidate")
    )
    scores = [
        (score, a, b)
        for a, one in enumerate(ones)
        for b, other in enumerate(others)
        if bool(one.api) == bool(other.api) and (score := _alike(one, other)) >= _CERTAIN
    ]
    found: dict[tuple[str, str, str], str] = {}
    used: set[tuple[str, int]] = set()
    for _, a, b in sorted(scores, key=lambda each: (-each[0], each[1], each[2])):
        if ("one", a) in used or ("other", b) in used:
            continue
        used |= {("one", a), ("other", b)}
        one, other = ones[a], others[b]
        found["baseline", one.module, one.api] = other.api or other.module
        found["candidate", other.module, other.api] = one.api or one.module
    return found


def _alike(one: Left, other: Left) -> float:
    """Return how like two are, from 0 to 1: shapes tell most, then the class, name and place."""
    both = one.shapes | other.shapes
    shapes = len(one.shapes & other.shapes) / len(both) if both else 0.0
    name = SequenceMatcher(None, unwrapped(one.module), unwrapped(other.module)).ratio()
    near = 1.0 - abs(one.place - other.place)
    return 0.45 * shapes + 0.2 * (one.type == other.type) + 0.15 * name + 0.2 * near
