"""The histogram of one row, and under it what other dtypes can hold.

Values are mirrored about zero, as in the inspector: large negative ones far left, small ones next
to the bar of zeros in the middle, large positive ones far right. What has no exponent stands
outside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedFormatter, FixedLocator
from matplotlib.transforms import blended_transform_factory

from probe_nb.analysis.alarms import LIMITS
from probe_nb.analysis.words import plural
from probe_nb.exponents import Histogram
from probe_nb.view.plots import style
from probe_nb.view.plots.powers import DTYPES, Lost, Places, fit, known_dtypes, places
from probe_nb.view.plots.style import Palette, written

_ROW: Final = 0.075
_LABEL: Final = 0.42
"""Inches that a power of two takes."""

_LEFT: Final = 0.8
"""The share of the axes that is left when there is room for what stands beside them."""

_COLUMNS: Final = {"under": 56, "subnormal": 112, "over": 168}
"""What a dtype does to values, and how many points right of the axes that stands."""

_DENSE: Final = 80
"""From so many powers of two on an edge would hide its bar."""

_TICKS: Final = (1, 2, 5)
_DISTANCE: Final = 0.13


def draw(
    ax: Axes | None,
    histogram: Histogram,
    title: str,
    dtypes: Sequence[str],
    *,
    signed: bool,
    absmax: float,
) -> Axes:
    """Draw a histogram of elements up to `absmax`, with a band for each dtype under it."""
    names = known_dtypes(dtypes)
    ax, colours = style.axes(ax, 8.4, 3.4 + 0.24 * len(names))
    where = places(histogram, signed=signed)
    foot = _ROW * (len(names) + 0.6) if names else 0.0
    bars = _bars(histogram, signed=signed)
    outside = _outside(histogram, where)
    counts = [*(count for _, _, count in bars), histogram.zero, *outside.values()]
    _scale(ax, max([1, *counts]), foot)
    ax.bar(
        [where.at(exponent + 0.5, sign) for sign, exponent, _ in bars],
        [count for _, _, count in bars],
        width=1.0,
        color=colours.data,
        edgecolor=colours.page,
        linewidth=0.4 if where.high - where.low < _DENSE else 0.0,
    )
    ax.bar([0.0], [histogram.zero], width=0.9 * where.slot, color=colours.soft)
    _draw_outside(ax, where, colours, outside, foot)
    _along(ax, where, colours, outside)
    if names:
        _head(ax, colours, foot)
    for row, each in enumerate(names):
        y, lost = foot - _ROW * (row + 0.9), fit(histogram, each, absmax)
        _band(ax, where, colours, each, y, lost)
        _verdict(ax, colours, each, y, lost, "the finite fit" if outside else "fits")
    style.title(ax, title, _counted(histogram))
    return ax


def _bars(histogram: Histogram, *, signed: bool) -> list[tuple[int, int, int]]:
    """Return (sign, exponent, count) of each bar."""
    if signed:
        return histogram.signed()
    return [(1, int(e), int(c)) for e, c in zip(*histogram.exponents(), strict=True)]


def _outside(histogram: Histogram, where: Places) -> dict[tuple[float, str], int]:
    """Return place, name and count of what no bin can hold; only what is there."""
    far = where.end + 0.8 * where.outer
    right = [("+Inf", histogram.posinf), ("NaN", histogram.nan)]
    if not where.signed:
        right.insert(0, ("\N{MINUS SIGN}Inf", histogram.neginf))
    found = [(name, count) for name, count in right if count]
    slots = {(far + 1.1 * k * where.outer, name): count for k, (name, count) in enumerate(found)}
    if where.signed and histogram.neginf:
        slots[-far, "\N{MINUS SIGN}Inf"] = histogram.neginf
    return slots


def _draw_outside(
    ax: Axes, where: Places, colours: Palette, outside: dict[tuple[float, str], int], foot: float
) -> None:
    """Draw what is not finite: a bar among millions could not be seen, its ground can."""
    for (place, _), count in outside.items():
        half = 0.5 * where.outer
        ground = ax.axvspan(
            place - half, place + half, foot, 1, facecolor="none", edgecolor=colours.alarm
        )
        ground.set(hatch="xxxx", alpha=0.45, linewidth=0)
        ax.bar([place], [count], width=2 * half, color=colours.alarm)
        text = ax.annotate(
            f"{count:,}",
            (place, 1.0),
            (0, -3),
            blended_transform_factory(ax.transData, ax.transAxes),
            "offset points",
            ha="center",
            va="top",
            color=colours.alarm,
            fontsize="small",
            fontweight="bold",
        )
        text.set_path_effects([withStroke(linewidth=3, foreground=colours.page)])


def _scale(ax: Axes, top: int, foot: float) -> None:
    """Scale counts by their square root, above a strip of this share of the height."""

    def forward(values: Any) -> Any:
        return np.sign(values) * np.sqrt(np.abs(values))

    def inverse(values: Any) -> Any:
        return np.sign(values) * np.square(values)

    ax.set_yscale("function", functions=(forward, inverse))
    height = 1.06 * math.sqrt(top)
    ax.set_ylim(-((height * foot / (1 - foot)) ** 2), height**2)
    marks = _round_numbers(top)
    ax.yaxis.set_major_locator(FixedLocator(marks))
    ax.yaxis.set_major_formatter(FixedFormatter([f"{mark:,}" for mark in marks]))
    ax.yaxis.set_minor_locator(FixedLocator([]))
    ax.set_ylabel("elements (square-root scale)", y=foot + (1 - foot) / 2)


def _round_numbers(top: int) -> list[int]:
    """Return round numbers up to the largest, far enough apart under a square root."""
    powers = [10**k for k in range(len(str(top)))]
    known = [factor * power for power in powers for factor in _TICKS if factor * power <= top]
    chosen: list[int] = []
    for each in reversed(known):
        high = math.sqrt(chosen[-1] / top) if chosen else math.inf
        if min(high - math.sqrt(each / top), math.sqrt(each / top)) >= _DISTANCE:
            chosen.append(each)
    return [0, *reversed(chosen)]


def _along(
    ax: Axes, where: Places, colours: Palette, outside: dict[tuple[float, str], int]
) -> None:
    """Write powers of two along the x axis."""
    ends = [0.0, *(place for place, _ in outside)]
    left = min(-where.end if where.signed else 0.0, *ends) - 0.6 * where.outer
    right = max(where.end, *ends) + 0.6 * where.outer
    ax.set_xlim(left, right)
    size = _apart(ax, right - left)
    exponents = [e for e in range(where.low, where.high + 2) if e % size == 0]
    signs = (1, -1) if where.signed else (1,)
    ticks = {where.at(e, sign): _power(e, sign) for sign in signs for e in exponents}
    ticks = {place: text for place, text in ticks.items() if abs(place) > 1.3 * where.slot}
    ticks |= {0.0: "0"} | dict(outside.keys())
    ax.set_xticks(list(ticks), list(ticks.values()), fontsize="small")
    for label, place in zip(ax.get_xticklabels(), ticks, strict=True):
        if any(place == each for each, _ in outside):
            label.set(color=colours.alarm, fontweight="bold")
    ax.set_xlabel("value" if where.signed else "magnitude")
    ax.axhline(0, color=colours.text, linewidth=0.8)
    ax.grid(visible=True, axis="x", color=colours.faint, linewidth=0.6)
    ax.set_axisbelow(True)


def _apart(ax: Axes, width: float) -> int:
    """Return how many powers of two lie between ticks whose labels do not touch."""
    figure = style.whole_figure(ax)
    inches = ax.get_position().width * figure.get_figwidth()
    needed = _LABEL * width / (_LEFT * inches)
    return next((size for size in (4, 8, 16, 32) if size >= needed), 64)


def _power(exponent: int, sign: int) -> str:
    return f"${'-' if sign < 0 else ''}2^{{{exponent}}}$"


def _head(ax: Axes, colours: Palette, foot: float) -> None:
    """Write what the columns beside the bands say."""
    for text, x in _COLUMNS.items():
        _beside(ax, text, (x, foot - 0.25 * _ROW), color=colours.soft, fontsize="x-small")


def _band(  # noqa: PLR0917
    ax: Axes, where: Places, colours: Palette, dtype: str, y: float, lost: Lost
) -> None:
    """Draw what a dtype can hold: thick what is normal, thin what is subnormal."""
    normal = DTYPES[dtype][1]
    smallest, _, largest = LIMITS[dtype]
    transform = blended_transform_factory(ax.transData, ax.transAxes)
    top = math.log2(largest)
    spans = [(max(normal, where.low), min(top, where.high + 1), 6.0)]
    spans.append((max(smallest, where.low), min(normal, where.high + 1), 2.0))
    for low, high, width in spans:
        for sign in (1, -1) if where.signed else (1,):
            if low < high:
                ends = [where.at(low, sign), where.at(high, sign)]
                line = Line2D(ends, [y, y], transform=transform, linewidth=width)
                line.set(color=colours.alarm if lost.over else colours.data, alpha=0.75)
                line.set(solid_capstyle="butt", gid=f"{dtype} {width:.0f}")
                ax.add_line(line)
    if top <= where.high:
        largest_at = (where.at(top, 1), y)
        ax.annotate(
            f" {written(largest)}",
            largest_at,
            xycoords=transform,
            va="center",
            color=colours.soft,
            fontsize="x-small",
        )


def _verdict(  # noqa: PLR0917
    ax: Axes, colours: Palette, dtype: str, y: float, lost: Lost, fits: str
) -> None:
    """Write the name of a dtype left of its band, and right of it what it could not hold."""
    ax.annotate(
        DTYPES[dtype][0],
        (0, y),
        (-6, 0),
        "axes fraction",
        "offset points",
        ha="right",
        va="center",
        color=colours.text,
        fontsize="small",
    )
    over = lost.over + lost.perhaps
    if not any(lost):
        _beside(ax, fits, (_COLUMNS["under"], y), color=colours.soft)
        return
    up_to = "\N{LESS-THAN OR EQUAL TO}\N{THIN SPACE}" if lost.perhaps else ""
    cells = [
        ("under", lost.under, "", colours.text),
        ("subnormal", lost.subnormal, "", colours.text),
        ("over", over, up_to, colours.alarm),
    ]
    for column, part, before, colour in cells:
        text = f"{before}{style.share(part)}" if part else "0"
        _beside(ax, text, (_COLUMNS[column], y), color=colour if part else colours.soft)


def _beside(ax: Axes, text: str, at: tuple[float, float], **look: Any) -> None:
    """Write right of the axes, so many points from them, up to there."""
    look = {"fontsize": "small", "ha": "right", "va": "center", **look}
    ax.annotate(text, (1, at[1]), (at[0], 0), "axes fraction", "offset points", **look)


def _counted(histogram: Histogram) -> str:
    """Say how many elements there are, and how many of them no bin holds."""
    parts = {
        "NaN": histogram.nan,
        "+Inf": histogram.posinf,
        "\N{MINUS SIGN}Inf": histogram.neginf,
        "zero": histogram.zero,
    }
    words = ", ".join(f"{count:,} {name}" for name, count in parts.items() if count)
    total = plural(histogram.total, "element")
    return f"{total}: {words}" if words else total
