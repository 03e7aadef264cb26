"""How the plots look: colours that go with the style in force, names written as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from matplotlib import colors
from matplotlib import pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    Locator,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    ScalarFormatter,
)

from probe_nb.analysis.words import number
from probe_nb.terms import printable

_LIGHT: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#7A5195")
_DARK: Final = ("#56B4E9", "#E69F00", "#2BC596", "#CC79A7", "#F0E442", "#B79BDB")
_ALARM: Final = ("#C43C00", "#FF7F50")
"""Of Okabe and Ito's palette, made lighter or darker where the page asks for it."""

_HALF: Final = 0.5
_APART: Final = 1.6
"""Names per line of text and a blank one, by which matplotlib counts."""

_POWERS: Final = 4
_SMALL: Final = 0.1
_SHORT: Final = 100.0
NAME: Final = 34
"""Characters of a name that a plot has room for."""


@dataclass(frozen=True)
class Palette:
    """The colours of one pair of axes.

    Attributes:
        text: What is read.
        soft: What is read second.
        faint: Rules and grounds.
        page: What lies behind.
        alarm: What is not finite, and nothing else.
        lines: Data, one after the other.
        dark: Whether the page is darker than the text.
    """

    text: str
    soft: str
    faint: str
    page: str
    alarm: str
    lines: tuple[str, ...]
    dark: bool

    @property
    def data(self) -> str:
        """The colour of data that is alone."""
        return self.lines[0]

    def magnitudes(self) -> colors.Colormap:
        """Colours from small to large, all of them apart from the page."""
        shades = plt.get_cmap("viridis")(np.linspace(0.18 if self.dark else 0.0, 1.0, 256))
        return colors.ListedColormap(shades, name="magnitudes")

    def signed(self) -> colors.Colormap:
        """Colours from negative over grey to positive."""
        middle = "#5f6368" if self.dark else "#c4c7cc"
        ends = ("#D8A6F0", "#7FE0A8") if self.dark else ("#762A83", "#00693E")
        return colors.LinearSegmentedColormap.from_list("signed", [ends[0], middle, ends[1]])


def palette(ax: Axes) -> Palette:
    """Return colours that go with the style in which the axes were made."""
    text = ax.xaxis.label.get_color()
    page: Any = ax.get_facecolor()
    if page[3] == 0:
        page = colors.to_rgba("black" if _lightness(text) > _HALF else "white")
    dark = _lightness(page) < _lightness(text)
    return Palette(
        text=colors.to_hex(text),
        soft=_mixed(text, page, 0.68),
        faint=_mixed(text, page, 0.2),
        page=colors.to_hex(page),
        alarm=_ALARM[dark],
        lines=_DARK if dark else _LIGHT,
        dark=dark,
    )


def _lightness(color: Any) -> float:
    return float(np.dot(colors.to_rgb(color), (0.2126, 0.7152, 0.0722)))


def _mixed(color: Any, page: Any, share: float) -> str:
    rgb = np.array([colors.to_rgb(color), colors.to_rgb(page)])
    return colors.to_hex(rgb[0] * share + rgb[1] * (1 - share))


def axes(ax: Axes | None, width: float, height: float) -> tuple[Axes, Palette]:
    """Return the axes to draw on, new ones unless some are given, and their colours."""
    if ax is None:
        _, ax = plt.subplots(figsize=(width, height), layout="constrained")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax, palette(ax)


# -- text ----------------------------------------------------------------------------------------


def plain(text: str) -> str:
    r"""Return a text that is drawn as it is: a dollar begins no formula, a line does not break.

    >>> plain("cost$ in $")
    'cost\\$ in \\$'
    """
    visible = "".join(c if c.isprintable() else repr(c)[1:-1] for c in printable(text))
    return visible.replace("$", r"\$")


def name(text: str, limit: int = NAME) -> str:
    """Return a name short enough for a plot: of a long one its beginning and its end.

    >>> name("model.decoder.layers.11.self_attn.out_proj")
    'model.decod….11.self_attn.out_proj'
    """
    head = limit // 3
    short = text if len(text) <= limit else f"{text[:head]}…{text[head + 1 - limit :]}"
    return plain(short)


def title(ax: Axes, text: str, second: str = "") -> None:
    """Write a headline and, smaller under it, what else is to be known."""
    ax.set_title(text, loc="left", pad=20 if second else None)
    if second:
        soft = palette(ax).soft
        ax.annotate(
            second, (0, 1), (0, 6), "axes fraction", "offset points", color=soft, fontsize="small"
        )


def share(part: float) -> str:
    """Write a share in per cent: what is there is not 0, what is not all is not 100.

    >>> [share(part) for part in (0.0, 1e-7, 0.123456, 0.99999, 1.0)]
    ['0 %', '1e-05 %', '12.3 %', '>99.9 %', '100 %']
    """
    text = f"{100 * part:.3g}"
    return ">99.9 %" if text == "100" and part < 1 else f"{text} %"


def legend(ax: Axes, entries: Sequence[tuple[Artist, str]], **options: Any) -> None:
    """Explain what is drawn, beside the axes where the figure makes room for it.

    The names are set afterwards: matplotlib drops those that begin with an underscore.
    """
    if not entries:
        return
    figure: Any = ax.get_figure(root=True)
    look: dict[str, Any] = {"labelcolor": palette(ax).text, "fontsize": "small"}
    if options:
        look |= options
    elif figure.get_layout_engine() is not None:
        look |= {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "frameon": False}
    made = ax.legend([handle for handle, _ in entries], ["x"] * len(entries), **look)
    for text, (_, words) in zip(made.get_texts(), entries, strict=True):
        text.set_text(words)


# -- axes ----------------------------------------------------------------------------------------


class Thinned(Locator):
    """Places at whole numbers, as many as can be read one under the other.

    Attributes:
        count: How many names there are.
        always: The one that is named in any case, with none so near that both could not be read.
    """

    def __init__(self, count: int, always: int | None = None) -> None:
        """Place names from 0 on."""
        self.count = count
        self.always = always

    def __call__(self) -> list[float]:
        """Return the places in view."""
        axis: Any = self.axis
        low, high = sorted(axis.get_view_interval())
        return self.tick_values(low, high)

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        """Return the places between these."""
        axis: Any = self.axis
        room = max(1, int(_APART * axis.get_tick_space()))
        step = max(1, math.ceil((vmax - vmin) / room))
        first, last = max(0, math.ceil(vmin)), min(self.count - 1, math.floor(vmax))
        found = [float(each) for each in range(0, self.count, step) if first <= each <= last]
        if self.always is not None and first <= self.always <= last:
            found = [each for each in found if abs(each - self.always) >= step]
            found = sorted([*found, float(self.always)])
        return found


def names_down(ax: Axes, names: Sequence[str], always: int | None = None) -> None:
    """Write names down the y axis, the first one at the top."""
    short = [name(each) for each in names]

    def named(value: float, _: Any) -> str:
        place = round(value)
        return short[place] if place == value and 0 <= place < len(short) else ""

    ax.set_ylim(len(short) - 0.5, -0.5)
    ax.yaxis.set_major_locator(Thinned(len(short), always))
    ax.yaxis.set_major_formatter(FuncFormatter(named))
    ax.tick_params(axis="y", length=0, labelsize="small")


def steps_along(ax: Axes, steps: Sequence[int] | None = None) -> None:
    """Write steps along the x axis: whole numbers, or these at the places 0, 1, 2, and so on."""
    ax.set_xlabel("step")
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    if steps is None:
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        return
    known = list(steps)

    def stepped(value: float, _: Any) -> str:
        place = round(value)
        return str(known[place]) if place == value and 0 <= place < len(known) else ""

    ax.xaxis.set_major_formatter(FuncFormatter(stepped))


def is_wide(values: Any, ratio: float) -> bool:
    """Tell whether positive numbers differ so much that only a log axis shows them all."""
    there = np.abs(values[np.isfinite(values) & (values != 0)])
    return bool(len(there)) and bool(there.max() >= ratio * there.min())


def log_values(axis: Axis, values: Any, *, log: bool | None) -> bool:
    """Choose the scale of an axis, a log one where it helps; tell whether it is one."""
    there = values[np.isfinite(values)]
    negative = bool((there < 0).any())
    wide = is_wide(there, 1e4 if negative else 30)
    if not (there != 0).any() or not (wide if log is None else log):
        axis.set_major_formatter(_linear())
        return False
    ax: Any = axis.axes
    set_scale = ax.set_xscale if axis is ax.xaxis else ax.set_yscale
    if negative:
        small, high = smallest_told(there), float(np.abs(there).max())
        set_scale("symlog", linthresh=small, linscale=linear_share(small, high))
        axis.set_major_locator(FixedLocator(both_signs(small, high)))
        return False
    set_scale("log")
    logged_ticks(axis, there)
    return True


def smallest_told(values: Any) -> float:
    """Return the size below which a scale for both signs is linear: that of the small values."""
    return float(np.quantile(np.abs(values[values != 0]), _SMALL))


def linear_share(small: float, high: float) -> float:
    """Return how many decades the part of such a scale takes that is linear."""
    return max(1.0, math.log10(high / small) / 6)


def both_signs(small: float, high: float) -> list[float]:
    """Return powers of ten on both sides of 0, few enough to be read."""
    first, last = math.ceil(math.log10(small)), math.floor(math.log10(high))
    size = max(1, math.ceil((last - first + 1) / _POWERS))
    powers = [10.0**each for each in range(last, first - 1, -size)]
    return [*(-each for each in powers), 0.0, *reversed(powers)]


def logged_ticks(axis: Any, values: Any) -> None:
    """Write numbers where a log axis is so short that powers of ten would be too few."""
    if is_wide(values, _SHORT):
        return
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))
    axis.set_minor_formatter(NullFormatter())


def _linear() -> ScalarFormatter:
    made = ScalarFormatter(useOffset=False)
    made.set_powerlimits((-3, 5))
    return made


def written(value: float) -> str:
    """Write a number for a label."""
    return number(value).replace("-", "\N{MINUS SIGN}")
