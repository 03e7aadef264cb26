"""Two runs in one picture: the difference over depth, histograms, one number over steps."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from probe_nb.errors import SelectionError, closest
from probe_nb.exponents import Histogram
from probe_nb.terms import STATISTICS, shown
from probe_nb.view.plots import scales, style
from probe_nb.view.plots.powers import places

_EDGE = 0.2
"""What is the same is drawn at the smallest difference times this."""


def profile(ax: Axes | None, found: pd.DataFrame, parted: set[int]) -> Axes:
    """Draw differences in execution order, their bound, and crosses where runs part."""
    names = [
        f"{shown(str(m))} {a}".strip() for m, a in zip(found["module"], found["api"], strict=True)
    ]
    ax, colours = style.axes(ax, 8.0, max(2.4, min(0.22 * len(names) + 1.2, 12.0)))
    size = found["difference"].to_numpy(np.float64, na_value=np.nan)
    bound = found["tolerance"].to_numpy(np.float64, na_value=np.nan)
    there = size[np.isfinite(size) & (size > 0)]
    low = _EDGE * min([*there.tolist(), float(np.nanmin(bound[bound > 0], initial=1.0))])
    high = 2 * max([*there.tolist(), 1e-6])
    shown_size = np.where(np.isposinf(size), high, np.where(size > 0, size, low))
    place = np.arange(len(names))
    known = np.isfinite(size) | np.isposinf(size)
    (line,) = ax.plot(np.where(known, shown_size, np.nan), place, color=colours.data, linewidth=1.2)
    line.set(marker="o", markersize=3.2)
    (limit,) = ax.plot(bound, place, color=colours.soft, linestyle="--", linewidth=1.0)
    ax.set_xscale("log")
    ax.set_xlim(low, high * 2)
    verdicts = enumerate(zip(found.index, found["verdict"], strict=True))
    mine = [n for n, (label, v) in verdicts if label in parted and v == "diverged"]
    cross = ax.plot(
        shown_size[mine], place[mine], gid="parts", **_cross(colours.alarm, colours.page)
    )
    scales.names_down(ax, names, mine[0] if mine else None)
    ax.set_xlabel("difference, relative to the scale")
    ax.grid(visible=True, axis="x", color=colours.faint, linewidth=0.6)
    ax.set_axisbelow(True)
    step = found["step"].iloc[0]
    style.title(ax, f"How far apart the {found['role'].iloc[0]}s are, step {step}")
    entries = [(line, "difference"), (limit, "rounding of one call")]
    style.legend(ax, [*entries, (cross[0], "the runs part")] if mine else entries)
    return ax


def _cross(alarm: str, page: str) -> dict[str, Any]:
    return {
        "linestyle": "none", "marker": "X", "markersize": 9, "markerfacecolor": alarm,
        "markeredgecolor": page, "zorder": 5, "clip_on": False,
    }  # fmt: skip


def histograms(
    ax: Axes | None,
    baseline: list[Histogram | None],
    candidate: list[Histogram | None],
    title: str,
) -> Axes:
    """Draw two histograms over one another: filled the baseline, outlined the candidate."""
    both = [[each for each in side if each is not None] for side in (baseline, candidate)]
    if not all(both):
        raise SelectionError(f"{title} has no histogram on both sides.")
    one, other = (reduce(add, side) for side in both)
    ax, colours = style.axes(ax, 8.0, 3.2)
    where = places(one + other, signed=True)
    for found, look in (
        (one, {"color": colours.data, "alpha": 0.55}),
        (other, {"fill": False, "edgecolor": colours.lines[1], "linewidth": 1.6}),
    ):
        bars = found.signed()
        x = [*(where.at(exponent + 0.5, sign) for sign, exponent, _ in bars), 0.0]
        ax.bar(x, [*(count for _, _, count in bars), found.zero], width=1.0, **look)  # type: ignore[arg-type]
    ax.set_yscale("symlog")
    ticks = [e for e in range(where.low, where.high + 2) if e % 8 == 0]
    at = {
        where.at(e, sign): f"${'-' if sign < 0 else ''}2^{{{e}}}$"
        for sign in (1, -1)
        for e in ticks
    }
    ax.set_xticks([*at, 0.0], [*at.values(), "0"], fontsize="small")
    ax.set_xlabel("value")
    style.title(ax, style.plain(title))
    handles = [
        (Patch(color=colours.data, alpha=0.55), _counted("baseline", one)),
        (Patch(fill=False, edgecolor=colours.lines[1]), _counted("candidate", other)),
    ]
    style.legend(ax, handles)
    return ax


def _counted(name: str, of: Histogram) -> str:
    outside = {"NaN": of.nan, "+Inf": of.posinf, "\N{MINUS SIGN}Inf": of.neginf}
    words = ", ".join(f"{count:,} {word}" for word, count in outside.items() if count)
    return f"{name}: {words}" if words else name


def trend(ax: Axes | None, found: pd.DataFrame, stat: str) -> Axes:
    """Draw one statistic of both runs over steps."""
    if stat not in STATISTICS:
        raise SelectionError(
            f"`{stat}` is not a statistic.{closest(stat, STATISTICS)} "
            f"Known: {', '.join(STATISTICS)}."
        )
    ax, colours = style.axes(ax, 6.4, 3.4)
    steps = found["step"].to_numpy(np.int64)
    values = [
        found[f"{stat}_{side}"].to_numpy(np.float64, na_value=np.nan)
        for side in ("baseline", "candidate")
    ]
    scales.log_values(ax.yaxis, np.concatenate(values), log=None)
    looks: tuple[dict[str, Any], ...] = (
        {"color": colours.data},
        {"color": colours.lines[1], "linestyle": "--"},
    )
    lines = [
        ax.plot(steps, v, marker="o", markersize=3.2, **look)[0]
        for v, look in zip(values, looks, strict=True)
    ]
    scales.steps_along(ax)
    ax.set_ylabel(stat)
    ax.grid(visible=True, axis="y", color=colours.faint, linewidth=0.6)
    first = found.iloc[0]
    style.title(ax, style.name(f"{shown(str(first['module']))} {first['role']} {first['leaf']}"))
    entries: list[tuple[Line2D, str]] = [*zip(lines, ("baseline", "candidate"), strict=True)]
    style.legend(ax, entries)
    return ax
