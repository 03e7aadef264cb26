"""The rows of a static table: worst first, everything already text.

A row that found something shows the record where it first happened, any other the latest one: the
`step` column says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis import verdict as v
from probe_nb.analysis.evidence import same_call
from probe_nb.analysis.finding import Finding
from probe_nb.analysis.uncounted import is_uncounted
from probe_nb.analysis.words import module, number, tensor
from probe_nb.terms import COUNTS, ROLES, STATISTICS, STATUSES
from probe_nb.view.found import BADGED, NAMED, said
from probe_nb.view.frame import FrameBuilder

ABSENT: Final = "\N{EN DASH}"
_TIMES: Final = "\N{MULTIPLICATION SIGN}"
_BARS: Final = "▁▂▃▄▅▆▇█"
_WIDTH: Final = 16
_FOUND, _OUTPUTS, _REST = 9, 10, 11
_NAMES: Final = ("step", "numel", *STATISTICS, *COUNTS, "status")

_TOLD: Final = ("ok", "has_inf")
"""Statuses that need no word of their own: the column beside says it."""


@dataclass(frozen=True)
class Row:
    """One line of a table, as text; `bars` is the histogram between its outermost exponents."""

    finding: str
    module: str
    type: str
    tensor: str
    step: str
    dtype: str
    shape: str
    not_finite: str
    zeros: str
    min: str
    max: str
    mean: str
    std: str
    bars: str


def worst_first(builder: FrameBuilder) -> NDArray[np.intp]:
    """Return all recorded sites: the culprit, its inputs, the other alarms and findings, the rest.

    Of the rest the outputs come first: they tell most. Non-finite rows stand in the order in
    which they became so, equals of the rest in execution order.
    """
    tally, bits = builder.tally, builder.judge.badges()
    rank = np.where(tally.role == ROLES.index("output"), _OUTPUTS, _REST)
    rank[[each.site for each in builder.findings() if each.severity != "note"]] = _FOUND
    for place, (bit, _) in reversed(list(enumerate(BADGED, 4))):
        rank[(bits & bit) > 0] = place
    bad = (bits & (v.NAN | v.INF)) > 0
    rank[bad] = 2
    headline = builder.verdict().site
    if headline is not None and builder.verdict().kind in ("bad", "warn"):
        if tally.role[headline] == ROLES.index("output"):
            inputs = (tally.module == tally.module[headline]) & (tally.role == ROLES.index("input"))
            rank[inputs & (rank > 1)] = 1
        rank[headline] = 0
    first = tally.firsts["bad"]
    known = bad & (first.step >= 0)
    step = np.where(known, first.step, np.iinfo(np.int64).max)
    order = np.where(known, first.order, tally.latest["order"])
    rows = np.lexsort((order, step, rank))
    return rows[tally.latest["row"][rows] >= 0]


def rows_of(builder: FrameBuilder, sites: NDArray[np.intp]) -> list[Row]:
    """Return the rows of these sites."""
    bits, about = builder.judge.badges(), _about(builder)
    return [_row(builder, int(site), int(bits[site]), about.get(int(site), [])) for site in sites]


def _about(builder: FrameBuilder) -> dict[int, list[Finding]]:
    """Return the findings about each site, worst first: those that name it before the others."""
    found: dict[int, list[Finding]] = {}
    for each in builder.findings():
        if said(each):
            for site in (each.site, *each.others):
                found.setdefault(site, []).append(each)
    for site, mine in found.items():
        mine.sort(key=lambda each, site=site: each.site != site)  # type: ignore[misc]
    return found


def _row(builder: FrameBuilder, site: int, bits: int, found: list[Finding]) -> Row:
    tally, tables = builder.tally, builder.tally.columns.tables
    about = tables.sites.values[site]
    named = [each.row for each in found if each.site == site and each.kind in NAMED]
    values = _values(builder, site, named)
    status = STATUSES[int(values["status"])]
    dtype, shape = tables.dtypes.values[values["dtype"]], tables.shapes.values[values["shape"]]
    return Row(
        finding=_finding(bits, status, int(tally.firsts["bad"].step[site]), found),
        module=module(about, several=tally.several_models),
        type=about.type,
        tensor=tensor(about),
        step=str(int(values["step"])),
        dtype=dtype,
        shape=_TIMES.join(map(str, shape)) or "scalar",
        not_finite=_not_finite(values),
        zeros=_count(values["zero_count"]),
        bars=_histogram(builder, site, int(values["row"])),
        **{name: _statistic(values[name]) for name in ("min", "max", "mean", "std")},
    )


def _values(builder: FrameBuilder, site: int, named: list[int]) -> dict[str, Any]:
    """Return the record that a row shows; `named` are those of findings."""
    tally = builder.tally
    rows = [int(tally.firsts[kind].row[site]) for kind in ("bad", "saturated", "risk")] + named
    row = next((row for row in rows if row >= 0), -1)
    if row < 0:
        row = _fed_to_culprit(builder, site)
    names = (*_NAMES, "dtype", "shape")
    if row in (-1, tally.latest["row"][site]):
        return {name: tally.latest[name][site] for name in (*names, "row")}
    found = tally.columns.take([row], names)
    return {"row": row, **{name: found[name][0] for name in names}}


def _fed_to_culprit(builder: FrameBuilder, site: int) -> int:
    """Return the record of this site that went into the culprit's call, -1 if there is none."""
    tally, culprit = builder.tally, builder.judge.culprit()
    first = None if culprit is None else culprit[1]
    if first is None or tally.module[site] != tally.module[first.site]:
        return -1
    role = tally.columns.tables.sites.values[site].role
    rows = same_call(tally, first, role)
    rows = rows[tally.columns.take(rows, ("site",))["site"] == site]
    return int(rows[-1]) if len(rows) else -1


def _finding(bits: int, status: str, step: int, found: list[Finding]) -> str:
    words = []
    if bits & v.NAN:
        words.append("✕ NaN")
    if bits & v.INF:
        words.append("✕ Inf")
    if words:
        since = f" from step {step}" if step >= 0 else ""
        return f"{', '.join(words)}{since}{' (follows)' if bits & v.DOWNSTREAM else ''}"
    words = [word for bit, word in BADGED if bits & bit]
    words += [said(each) for each in found]
    if not words and status not in _TOLD:
        return f"{ABSENT} {status}"
    return ", ".join(dict.fromkeys(words)) or "✓ ok"


def _not_finite(values: dict[str, Any]) -> str:
    counts = [("nan_count", "NaN"), ("posinf_count", "+Inf"), ("neginf_count", "-Inf")]
    if is_uncounted(values["status"]):
        ends = (("+Inf", values["max"] == np.inf), ("-Inf", values["min"] == -np.inf))
        there = ", ".join(word for word, is_there in ends if is_there)
        return f"{there or 'NaN'}, not counted"
    if values["nan_count"] < 0:
        return ABSENT
    found = [f"{values[name]:,} {word}" for name, word in counts if values[name] > 0]
    return f"{', '.join(found)} of {values['numel']:,}" if found else "0"


def _count(value: Any) -> str:
    return f"{int(value):,}" if value >= 0 else ABSENT


def _statistic(value: float) -> str:
    """Write a statistic; NaN inside means that it was not computed."""
    return ABSENT if np.isnan(value) else number(value)


def _histogram(builder: FrameBuilder, site: int, row: int) -> str:
    """Draw the magnitudes: `2^-7 ▁▂▅▇▂ 2^3`, small ones at the left."""
    tally = builder.tally
    if row == tally.latest["row"][site]:
        cut = slice(tally.hist_start[site], tally.hist_start[site] + tally.hist_size[site])
        bins, counts = tally.hist_bins[cut].astype(np.int64), tally.hist_counts[cut]
    else:
        found = tally.columns.histogram(row)
        if found is None:
            return ABSENT
        bins, counts = found.bins, found.counts.astype(np.float32)
    if not len(bins):
        return ABSENT
    exponents = bins % 256 - 127
    low, high = int(exponents.min()), int(exponents.max())
    heights = np.bincount((exponents - low) * _WIDTH // max(high - low + 1, _WIDTH), counts).astype(
        np.float64
    )
    return f"2^{low} {_bars(heights)} 2^{high}".replace(" ", "\N{NO-BREAK SPACE}")


def _bars(heights: NDArray[np.float64]) -> str:
    """Draw heights; what is there at all has at least the lowest bar."""
    top = heights.max()
    place = np.ceil(heights / top * len(_BARS)).astype(int)
    return "".join(_BARS[each - 1] if each else "\u2007" for each in place)
