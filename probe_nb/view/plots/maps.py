"""Numbers as colours over steps: modules below each other, or the exponents of one site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from matplotlib import colors
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.image import AxesImage
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import NullLocator

from probe_nb.exponents import Histogram
from probe_nb.view.plots import scales, style
from probe_nb.view.plots.data import Booleans, Floats, Grid
from probe_nb.view.plots.style import Palette

_ROW: Final = 0.17
"""Inches that the row of a module takes where there is room."""

_TALLEST: Final = 9.0
_MOST: Final = (0.02, 0.98)
_NEAR: Final = 10.0
"""Numbers whose ratio is below this are coloured on a linear scale, others on a log scale."""


def heatmap(ax: Axes | None, grid: Grid, title: str, label: str) -> Axes:
    """Draw one statistic of modules, in execution order, over steps."""
    ax, colours = style.axes(ax, 8.0, height_of(len(grid.keys)))
    values = np.where(grid.bad, np.nan, grid.values)
    signed = bool((values < 0).any())
    shown = values if signed else np.where(values == 0, np.nan, values)
    image = ax.imshow(
        np.ma.masked_invalid(shown),
        norm=_norm(values, signed=signed),
        cmap=colours.signed() if signed else colours.magnitudes(),
        aspect="auto",
        interpolation="nearest",
    )
    entries = bad_cells(ax, grid.bad, colours)
    if not signed:
        entries += _cells(ax, values == 0, colours.soft, "exactly 0")
    scales.names_down(ax, grid.names, None if grid.first is None else grid.first[0])
    scales.steps_along(ax, grid.steps.tolist())
    ax.grid(visible=False)
    style.title(ax, title)
    if np.isfinite(shown).any():
        _bar(ax, image, label)
    above(ax, entries)
    _say(image, grid)
    return ax


def height_of(rows: int) -> float:
    """Return the height of a figure with a row per module, in inches."""
    return min(_TALLEST, max(2.4, 1.1 + _ROW * rows))


def _norm(values: Floats, *, signed: bool) -> colors.Normalize:
    """Return a log scale where numbers differ much, a linear one where they do not."""
    there = values[np.isfinite(values) & (values != 0)]
    if not len(there):
        return colors.Normalize(0.0, 1.0)
    low, high = _told_apart(np.abs(there))
    wide = high >= _NEAR * low
    if not signed:
        return colors.LogNorm(low, high) if wide else colors.Normalize(low, high)
    if not wide:
        return colors.Normalize(-high, high)
    small = scales.smallest_told(there)
    linear = scales.linear_share(small, high)
    return colors.SymLogNorm(small, linscale=linear, vmin=-high, vmax=high)


def _told_apart(sizes: Floats) -> tuple[float, float]:
    """Return the sizes between which colours differ: a few far away must not hide the rest."""
    low, high = map(float, np.quantile(sizes, _MOST))  # numpy's own warn where they overflow
    room = max(10.0, high / low)
    return max(float(sizes.min()), low / room), min(float(sizes.max()), high * room)


def bad_cells(
    ax: Axes, bad: Booleans, colours: Palette, first: float = 0.0
) -> list[tuple[Patch, str]]:
    """Cover cells that are not finite: a colour of their own, hatched, never too thin to see."""
    if not bad.any():
        return []
    boxes = _runs(bad, first)
    ground = PatchCollection(boxes, facecolor=colours.alarm, edgecolor=colours.alarm, linewidth=1)
    ground.set_gid("bad")
    hatch = PatchCollection(boxes, facecolor="none", edgecolor=colours.page, linewidth=0)
    hatch.set_hatch("xxxx")
    for each in (ground, hatch):
        ax.add_collection(each, autolim=False)
    sample = Patch(facecolor=colours.alarm, edgecolor=colours.page, hatch="xxxx", linewidth=0)
    return [(sample, "NaN or Inf")]


def _cells(ax: Axes, cells: Booleans, colour: str, words: str) -> list[tuple[Patch, str]]:
    """Cover cells with one colour."""
    if not cells.any():
        return []
    made = PatchCollection(_runs(cells), facecolor=colour, edgecolor="none")
    made.set_gid(words)
    ax.add_collection(made, autolim=False)
    return [(Patch(facecolor=colour), words)]


def _runs(cells: Booleans, first: float = 0.0) -> list[Rectangle]:
    """Return boxes around the cells, neighbours in a row in one; the first row is at `first`."""
    edges = np.diff(np.pad(cells.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    rows, begins = np.nonzero(edges == 1)
    _, ends = np.nonzero(edges == -1)
    return [
        Rectangle((begin - 0.5, first + row - 0.5), end - begin, 1.0)
        for row, begin, end in zip(rows.tolist(), begins.tolist(), ends.tolist(), strict=True)
    ]


def above(ax: Axes, entries: Sequence[tuple[Patch, str]]) -> None:
    """Explain cells above the right end of the axes, where no data is."""
    style.legend(
        ax,
        entries,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=len(entries) or 1,
        frameon=False,
        borderaxespad=0.1,
        handlelength=1.4,
    )


def _bar(ax: Axes, image: AxesImage, label: str) -> None:
    """Draw the colours and their numbers; what lies beyond them is told by its largest."""
    figure = style.whole_figure(ax)
    shown: Any = image.get_array()
    norm: Any = image.norm
    values = shown.compressed()
    less, more = bool((values < norm.vmin).any()), bool((values > norm.vmax).any())
    extend = {(False, True): "max", (True, False): "min", (True, True): "both"}
    if more:
        label = f"{label} (up to {style.written(values.max())})"
    where: dict[str, Any] = {"ax": ax, "pad": 0.015, "aspect": 28}
    if figure.get_layout_engine() is not None:  # close to its axes, whatever stands beside them
        where = {"cax": ax.inset_axes((1.015, 0.0, 0.025, 1.0))}
    tips = extend.get((less, more), "neither")
    bar = figure.colorbar(image, label=label, extend=tips, extendfrac=0.03, **where)
    bar.outline.set_visible(False)
    if isinstance(norm, colors.LogNorm):
        scales.logged_ticks(bar.ax.yaxis, np.array([norm.vmin, norm.vmax]))
    elif isinstance(norm, colors.SymLogNorm):
        bar.set_ticks(scales.both_signs(norm.linthresh, norm.vmax or 1.0))
        bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.tick_params(which="both", labelsize="small")


def _say(image: AxesImage, grid: Grid) -> None:
    """Let an interactive window say which module, which step and which number the mouse is at."""

    def said(x: float, y: float) -> str:
        row, column = round(y), round(x)
        if not (0 <= row < len(grid.keys) and 0 <= column < len(grid.steps)):
            return ""
        number = style.written(grid.values[row, column])
        bad = ", NaN or Inf" if grid.bad[row, column] else ""
        return f"{style.name(grid.names[row])}, step {grid.steps[column]}: {number}{bad}"

    image.axes.format_coord = said  # type: ignore[method-assign]


# -- histograms over steps -----------------------------------------------------------------------


_FOOT: Final = 2
"""Rows under the exponents where there are zeros: these, and a gap."""

_APART: Final = 0.06
"""The share of the height that a label takes."""

_NEAR_TOP: Final = 0.1
_LABELS: Final = 9
"""Powers of two that are written beside the exponents, and not more."""


@dataclass(frozen=True)
class Exponents:
    """The exponents of one site over steps.

    Attributes:
        low: The exponent of the first row.
        shares: One row per exponent, one column per step: the share of all elements; NaN where
            nothing was counted.
        zero: The share that is 0, per step.
        bad: The share that is not finite, per step.
    """

    low: int
    shares: Floats
    zero: Floats
    bad: Floats


def exponents_of(found: Sequence[Histogram | None]) -> Exponents:
    """Lay the histograms of steps beside each other."""
    counts = [None if each is None else each.exponents() for each in found]
    seen = np.concatenate([each[0] for each in counts if each is not None])
    low, high = (int(seen.min()), int(seen.max())) if len(seen) else (0, 0)
    shares = np.full((high - low + 1, len(found)), np.nan)
    zero, bad = np.full(len(found), np.nan), np.full(len(found), np.nan)
    for place, (each, pair) in enumerate(zip(found, counts, strict=True)):
        if each is None or pair is None or not each.total:
            continue
        shares[:, place] = 0.0
        shares[pair[0] - low, place] = pair[1] / each.total
        zero[place] = each.zero / each.total
        bad[place] = (each.nan + each.posinf + each.neginf) / each.total
    return Exponents(low, shares, zero, bad)


def histograms(
    ax: Axes | None,
    steps: Sequence[int],
    found: Exponents,
    title: str,
    limits: dict[str, float],
) -> Axes:
    """Draw the exponents of one site over steps, with some exponents named."""
    ax, colours = style.axes(ax, 8.0, 4.0)
    zeros = bool((found.zero > 0).any())
    foot = _FOOT if zeros else 0
    bottom = np.full((foot, len(steps)), np.nan)  # a gap, so that zeros are no exponent
    bottom[:1] = found.zero
    table = np.vstack([bottom, found.shares])
    shown = np.where(table > 0, table, np.nan)
    least = float(np.nanmin(shown)) if np.isfinite(shown).any() else 0.5
    low, top = found.low - 0.5 - foot, found.low + len(found.shares) - 0.5
    image = ax.imshow(
        np.ma.masked_invalid(shown),
        norm=colors.LogNorm(min(least, 0.5), 1.0),
        cmap=colours.magnitudes(),
        aspect="auto",
        interpolation="nearest",
        origin="lower",
        extent=(-0.5, len(steps) - 0.5, low, top),
    )
    bad = np.nan_to_num(found.bad)[None] > 0
    entries = bad_cells(ax, bad, colours, top + 1.25)
    ax.set_ylim(low, top + (2.0 if entries else 0.0))
    _exponent_ticks(ax, found.low, found.low + len(found.shares) - 1, zeros=zeros)
    _limits(ax, limits, colours)
    scales.steps_along(ax, list(steps))
    ax.grid(visible=False)
    ax.set_ylabel("magnitude")
    style.title(ax, title)
    _bar(ax, image, "share of the elements")
    above(ax, entries)
    return ax


def _exponent_ticks(ax: Axes, low: int, high: int, *, zeros: bool) -> None:
    size = next((size for size in (1, 2, 4, 8, 16, 32) if (high - low) / size <= _LABELS), 64)
    ticks = [each for each in range(low, high + 1) if each % size == 0]
    # a row holds [2**e, 2**(e+1)): its lower edge is 2**e
    marks = {each - 0.5: f"$2^{{{each}}}$" for each in ticks}
    if zeros:
        foot, apart = low - float(_FOOT), _APART * (high - low)
        marks = {at: mark for at, mark in marks.items() if at - foot >= apart} | {foot: "0"}
    ax.set_yticks(list(marks), list(marks.values()))


def _limits(ax: Axes, limits: dict[str, float], colours: Palette) -> None:
    """Draw the limits of a dtype as far as they are in view."""
    low, high = ax.get_ylim()
    for words, exponent in limits.items():
        y = exponent - 0.5
        if not low < y <= high:
            continue
        ax.axhline(y, color=colours.text, linewidth=1.0, linestyle="--", gid=words)
        near_top = high - y < _NEAR_TOP * (high - low)
        text = ax.annotate(
            words,
            (1, y),
            (-4, -3 if near_top else 3),
            ("axes fraction", "data"),
            "offset points",
            ha="right",
            va="top" if near_top else "bottom",
            color=colours.text,
            fontsize="small",
        )
        text.set_path_effects([withStroke(linewidth=2.5, foreground=colours.page)])
