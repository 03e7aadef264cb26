"""Numbers of parameters in one step: a row per module in execution order, a dot per parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.transforms import blended_transform_factory

from probe_nb.view.plots import scales, style
from probe_nb.view.plots.data import Booleans, names_of
from probe_nb.view.plots.maps import height_of
from probe_nb.view.plots.parameters import Flow
from probe_nb.view.plots.style import Palette

_ROOMY: Final = 0.13
"""Inches between rows from which on words fit into them."""

_KINDS: Final = ("weight", "bias", "other")
_MARKERS: Final = {
    "none": "s",
    "frozen": "d",
    "0": "v",
}


def kind_of(leaf: str) -> str:
    """Return whether a parameter is a weight, a bias or something else, by its name.

    >>> [kind_of(leaf) for leaf in ("weight", "in_proj_bias", "gamma")]
    ['weight', 'bias', 'other']
    """
    return next((kind for kind in ("bias", "weight") if kind in leaf), "other")


Entries = list[tuple[Artist, str]]


def draw(
    ax: Axes | None,
    flow: Flow,
    title: str,
    label: str,
    *,
    missing: str,
    guide: Callable[[Axes, Palette], Entries] | None = None,
) -> Axes:
    """Draw a dot per parameter on a log axis, and in words what has no number.

    Args:
        ax: Axes to draw on.
        flow: What is drawn.
        title: The headline.
        label: What the numbers are.
        missing: What the legend says of a parameter without a number.
        guide: Draws more behind the dots, and returns what a legend says of it.
    """
    modules = list(dict.fromkeys(key[:2] for key in flow.keys))
    ax, colours = style.axes(ax, 8.0, height_of(len(modules)))
    rows = np.array([modules.index(key[:2]) for key in flow.keys])
    is_log = scales.log_values(ax.xaxis, flow.values, log=True)
    shown = np.where(flow.values > 0, flow.values, np.nan) if is_log else flow.values
    words = _words(flow, is_log=is_log)
    ax.margins(x=0.2 if any(words) else 0.06)
    entries = _dots(ax, flow, rows, shown, colours)
    entries += _bad(ax, flow.bad, rows, shown, colours)
    entries += _edge(ax, words, rows, missing, colours)
    _write(ax, flow, words, rows, colours)
    first = np.flatnonzero(flow.bad)
    scales.names_down(ax, names_of(modules), int(rows[first[0]]) if len(first) else None)
    ax.grid(visible=True, axis="x", color=colours.faint, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.set_xlabel(label)
    if not np.isfinite(shown).any():
        ax.set_xticks([])
    style.title(ax, title)
    if guide is not None:
        entries += guide(ax, colours)
    style.legend(ax, entries)
    return ax


def _dots(ax: Axes, flow: Flow, rows: Any, shown: Any, colours: Palette) -> Entries:
    """Draw the numbers: weights are joined from module to module, the rest hangs on them."""
    for row in np.unique(rows).tolist():
        there = shown[(rows == row) & np.isfinite(shown)]
        if len(there) > 1:
            ax.hlines(row, there.min(), there.max(), color=colours.soft, linewidth=1.0, zorder=1.5)
    kinds = np.array([kind_of(key[2]) for key in flow.keys])
    entries: Entries = []
    for kind in _KINDS:
        chosen = kinds == kind
        if not chosen.any():
            continue
        look: dict[str, Any] = {
            "linestyle": "-" if kind == "weight" else "none",
            "linewidth": 1.0,
            "color": colours.data,
            "marker": "D" if kind == "other" else "o",
            "markersize": 5.0,
            "markerfacecolor": colours.data if kind == "weight" else colours.page,
        }
        ax.plot(shown[chosen], rows[chosen], gid=kind, **look)
        entries.append((Line2D([], [], **look), kind))
    return entries


def _bad(ax: Axes, bad: Booleans, rows: Any, shown: Any, colours: Palette) -> Entries:
    """Mark what is not finite: at the value of the rest, else at the right edge."""
    if not bad.any():
        return []
    look: dict[str, Any] = {
        "linestyle": "none",
        "marker": "X",
        "markersize": 8,
        "markerfacecolor": colours.alarm,
        "markeredgecolor": colours.page,
        "zorder": 5,
        "clip_on": False,
    }
    inside = bad & np.isfinite(shown)
    ax.plot(shown[inside], rows[inside], gid="bad", **look)
    edge = blended_transform_factory(ax.transAxes, ax.transData)
    outside = rows[bad & ~inside]
    ax.plot(np.ones(len(outside)), outside, transform=edge, gid="bad at the edge", **look)
    return [(Line2D([], [], **look), "NaN or Inf")]


def _words(flow: Flow, *, is_log: bool) -> list[str]:
    """Return why a parameter has no dot, in a word."""
    found = []
    for value, missing, frozen in zip(flow.values, flow.missing, flow.frozen, strict=True):
        if missing:
            found.append("frozen" if frozen else "none")
        else:
            found.append("0" if value == 0 and is_log else "")
    return found


def _edge(ax: Axes, words: Sequence[str], rows: Any, missing: str, colours: Palette) -> Entries:
    """Mark at the left edge what has no dot, in words where there is room."""
    edge = blended_transform_factory(ax.transAxes, ax.transData)
    entries: Entries = []
    meaning = {"none": missing, "frozen": "frozen", "0": "exactly 0"}
    for word, marker in _MARKERS.items():
        places = np.unique(rows[[each == word for each in words]])
        if not len(places):
            continue
        look: dict[str, Any] = {
            "linestyle": "none",
            "marker": marker,
            "markersize": 5.0,
            "markerfacecolor": colours.page,
            "markeredgecolor": colours.soft if word == "frozen" else colours.text,
        }
        x = np.full(len(places), 0.012)
        ax.plot(x, places, transform=edge, gid=word, **look)
        entries.append((Line2D([], [], **look), meaning[word]))
    return entries


def _write(ax: Axes, flow: Flow, words: Sequence[str], rows: Any, colours: Palette) -> None:
    """Write into a row which parameters have no dot, and why, unless words would touch."""
    figure = style.whole_figure(ax)
    count = int(rows.max()) + 1
    if ax.get_position().height * figure.get_figheight() < _ROOMY * count:
        return
    edge = blended_transform_factory(ax.transAxes, ax.transData)
    for row in range(count):
        its = [place for place in np.flatnonzero(rows == row).tolist() if words[place]]
        if not its:
            continue
        text = _said([words[place] for place in its], [flow.keys[place][2] for place in its])
        if len(its) == int((rows == row).sum()) and len({words[place] for place in its}) == 1:
            text = words[its[0]]
        ax.annotate(
            text,
            (0.012, row),
            (7, 0),
            edge,
            "offset points",
            va="center",
            color=colours.text,
            fontsize="x-small",
        )


def _said(words: Sequence[str], leaves: Sequence[str]) -> str:
    """Write `none: bias`, of several words one after the other."""
    by_word: dict[str, list[str]] = {}
    for word, leaf in zip(words, leaves, strict=True):
        by_word.setdefault(word, []).append(style.name(leaf, 20))
    return "; ".join(f"{word}: {', '.join(each)}" for word, each in by_word.items())
