"""Numbers over steps, a line per site; what is not finite stands out, what is absent is a gap."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.transforms import blended_transform_factory

from probe_nb.view.plots import scales, style
from probe_nb.view.plots.data import Booleans, Floats, Grid
from probe_nb.view.plots.style import Palette

_NAMED: Final = 12
"""So many lines have a name each; of more some have, and colours go with their order."""

_SOME: Final = 8

_STYLES: Final = ("-", "--", ":")
_DOTTED: Final = 40
"""Up to so many steps each has a dot."""


def trend(ax: Axes | None, grid: Grid, title: str, label: str, *, log: bool | None) -> Axes:
    """Draw one statistic of some sites over steps."""
    ax, _, entries = draw(ax, grid, log=log)
    style.title(ax, title)
    ax.set_ylabel(label)
    style.legend(ax, entries)
    return ax


def draw(
    ax: Axes | None, grid: Grid, *, log: bool | None
) -> tuple[Axes, Palette, list[tuple[Artist, str]]]:
    """Draw a line per site; return what a legend says, too."""
    ax, colours = style.axes(ax, 8.0 if len(grid.keys) > 1 else 6.4, 3.6)
    lines = []
    is_log = scales.log_values(ax.yaxis, grid.values, log=log)
    looks = _looks(len(grid.keys), colours)
    for name, values, look in zip(grid.names, grid.values, looks, strict=True):
        shown = np.where(values > 0, values, np.nan) if is_log else values
        dots = _alone(shown) if len(grid.steps) > _DOTTED else np.isfinite(shown)
        (line,) = ax.plot(grid.steps, shown, label=style.name(name), linewidth=1.5, **look)
        lines.append(line)
        line.set(marker="o", markersize=3.2, markevery=np.flatnonzero(dots).tolist())
    scales.steps_along(ax)
    ax.grid(visible=True, axis="y", color=colours.faint, linewidth=0.6)
    ax.set_axisbelow(True)
    low, high = int(grid.steps[0]), int(grid.steps[-1])
    margin = 0.03 * max(1, high - low)
    ax.set_xlim(low - margin, high + margin)
    return ax, colours, [*_names(lines, grid, colours), *marks(ax, grid, colours)]


def _looks(count: int, colours: Palette) -> list[dict[str, Any]]:
    """Return a colour and a dash for each line, by which they are told apart."""
    if count > _NAMED:
        shades = colours.magnitudes()(np.linspace(0.0, 0.9, count))
        return [{"color": shade, "alpha": 0.85} for shade in shades]
    known = len(colours.lines)
    return [
        {"color": colours.lines[place % known], "linestyle": _STYLES[place // known]}
        for place in range(count)
    ]


def _alone(values: Floats) -> Booleans:
    """Tell which numbers have no neighbour: no line can show them."""
    there = np.pad(np.isfinite(values), 1)
    found: Booleans = there[1:-1] & ~there[:-2] & ~there[2:]
    return found


def _names(lines: list[Line2D], grid: Grid, colours: Palette) -> list[tuple[Artist, str]]:
    """Return what a legend says of the lines; nothing where there is one alone."""
    names = [style.name(name) for name in grid.names]
    entries: list[tuple[Artist, str]] = [*zip(lines, names, strict=True)]
    if len(entries) == 1:
        return []
    if len(entries) <= _NAMED:
        return entries
    places = np.unique(np.linspace(0, len(entries) - 1, _SOME).round().astype(int)).tolist()
    more = Line2D([], [], linestyle="none", color=colours.soft)
    left = len(entries) - len(places)
    return [*(entries[place] for place in places), (more, f"and {left:,} between them")]


def marks(ax: Axes, grid: Grid, colours: Palette) -> list[tuple[Artist, str]]:
    """Mark what is not finite and, on a log axis, what is 0; return what a legend says of it."""
    return [*_bad(ax, grid, colours), *_zeros(ax, grid, colours)]


def _bad(ax: Axes, grid: Grid, colours: Palette) -> list[tuple[Artist, str]]:
    """Mark steps that are not finite: at the value of the rest, else at the upper edge."""
    first = grid.first
    if first is None:
        return []
    drawn = np.isfinite(grid.values) & ((grid.values > 0) | (ax.get_yscale() != "log"))
    at_value, at_edge = grid.bad & drawn, grid.bad & ~drawn
    look: dict[str, Any] = {
        "linestyle": "none",
        "marker": "X",
        "markersize": 8,
        "markerfacecolor": colours.alarm,
        "markeredgecolor": colours.page,
        "markeredgewidth": 0.8,
        "zorder": 5,
        "clip_on": False,
    }
    for step in grid.steps[grid.bad.any(axis=0)]:
        ax.axvline(float(step), color=colours.alarm, linewidth=0.8, alpha=0.25, zorder=0.5)
    site, place = np.nonzero(at_value)
    ax.plot(grid.steps[place], grid.values[site, place], gid="bad", **look)
    steps = grid.steps[at_edge.any(axis=0)]
    edge = blended_transform_factory(ax.transData, ax.transAxes)
    ax.plot(steps, np.ones(len(steps)), transform=edge, gid="bad at the edge", **look)
    where = f", {style.name(grid.names[first[0]], 26)}" if len(grid.keys) > 1 else ""
    return [(Line2D([], [], **look), f"NaN or Inf, first in step {first[1]:,}{where}")]


def _zeros(ax: Axes, grid: Grid, colours: Palette) -> list[tuple[Artist, str]]:
    """Mark zeros at the lower edge of a log axis, on which they have no place."""
    if ax.get_yscale() != "log" or not (grid.values == 0).any():
        return []
    zeros = grid.values == 0
    steps = grid.steps[zeros.any(axis=0)]
    edge = blended_transform_factory(ax.transData, ax.transAxes)
    look: dict[str, Any] = {
        "linestyle": "none",
        "marker": "v",
        "markersize": 4,
        "markerfacecolor": colours.page,
        "markeredgecolor": colours.text,
        "markeredgewidth": 0.7,
        "zorder": 4,
        "clip_on": False,
    }
    ax.plot(steps, np.zeros(len(steps)), transform=edge, gid="zeros", **look)
    sites = np.flatnonzero(zeros.any(axis=1)).tolist()
    who = style.name(grid.names[sites[0]], 26) if len(sites) == 1 else f"{len(sites):,} lines"
    where = f": {who}" if len(grid.keys) > 1 else ""
    return [(Line2D([], [], **look), f"exactly 0{where}")]
