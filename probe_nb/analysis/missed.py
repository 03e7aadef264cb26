"""What a run does not hold: modules without a record, records without numbers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from probe_nb.reasons import EXPECTED, NUMBERED, REMEDIES
from probe_nb.store.columns import Columns, Filter
from probe_nb.terms import STATUSES, shown

if TYPE_CHECKING:
    from probe_nb.analysis.tally import Tally
    from probe_nb.terms import RunInfo

COLUMNS: Final = ("module", "reason", "remedy", "type", "model", "rows")
"""The columns of `run.coverage()`: what a terminal has room for comes first."""

_CONTAINERS: Final = frozenset({"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"})
"""Nobody can call these; runs of older versions do not say so."""

_NAMED: Final = 3
"""So many modules are named."""


def missed(info: RunInfo) -> list[dict[str, str]]:
    """Return the modules without a record that could have had one."""
    return [
        each
        for each in info.unobserved
        if each.get("reason") not in EXPECTED and each.get("type") not in _CONTAINERS
    ]


def missed_of(tally: Tally, info: RunInfo) -> str:
    """Write how many modules were not seen, of how many, and why; empty if none.

    A module that was not called may have records all the same, of its parameters.
    """
    found = missed(info)
    if not found:
        return ""
    here = _watched(tally, info, found)
    why: dict[str, list[str]] = {}
    for each in found:
        if reason := each.get("reason"):
            why.setdefault(reason, []).append(f"`{shown(each.get('module', ''))}`")
    by_number = sorted(why.items(), key=lambda pair: -len(pair[1]))
    listed = ", ".join(f"{len(at):,} {reason} ({_first(at)})" for reason, at in by_number)
    modules = f"module{'' if here == 1 else 's'}"
    several = f"The forward of {len(found):,} of {here:,} {modules} was not seen"
    return f"{several}: {listed}" if listed else several


def _first(names: list[str]) -> str:
    """Write the first names; a number alone reads like the name of a module of a `Sequential`."""
    more = ["..."] if len(names) > _NAMED else []
    return ", ".join([*names[:_NAMED], *more])


def watched(tally: Tally, info: RunInfo) -> int:
    """Return the number of modules with a record, or that could have had one."""
    return _watched(tally, info, missed(info))


def _watched(tally: Tally, info: RunInfo, found: list[dict[str, str]]) -> int:
    only = next(iter(info.models), "")
    names = {(each.get("model", only), each.get("module", "")) for each in found}
    return len(tally.listed) + len(names - tally.listed)


def coverage(columns: Columns, info: RunInfo) -> list[dict[str, Any]]:
    """Return one entry per module and reason: modules that were not seen, then rows that lack."""
    unseen = [{**each, "rows": None} for each in info.unobserved]
    return [
        {**each, "remedy": REMEDIES.get(each.get("reason", ""), "")}
        for each in [*unseen, *_without_numbers(columns)]
    ]


def _without_numbers(columns: Columns) -> list[dict[str, Any]]:
    """Count the rows without numbers per module and status, in the order of the sites."""
    lacks = [code for code, status in enumerate(STATUSES) if status not in NUMBERED]
    without = Filter("status", lambda values: np.isin(values, lacks))
    _, there = columns.where([without], ("site", "status"))
    pairs = np.stack([there["site"], there["status"]]).astype(np.int64)
    counts = Counter[tuple[str, str, str, str]]()
    for (site, status), rows in zip(*_unique(pairs), strict=True):
        about = columns.tables.sites.values[site]
        counts[about.model, about.module, about.type, STATUSES[status]] += rows
    names = ("model", "module", "type", "reason")
    return [dict(zip(names, key, strict=True), rows=rows) for key, rows in counts.items()]


def _unique(pairs: np.ndarray) -> tuple[list[list[int]], list[int]]:
    """Return the distinct columns of an array of two rows, and how often each is there."""
    found, counts = np.unique(pairs, axis=1, return_counts=True)
    return found.T.tolist(), counts.tolist()
