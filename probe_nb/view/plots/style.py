"""How the plots look: colours that go with the style in force, names written as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from matplotlib import colors
from matplotlib import pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from probe_nb.analysis.words import number
from probe_nb.terms import printable

_LIGHT: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#7A5195")
_DARK: Final = ("#56B4E9", "#E69F00", "#2BC596", "#CC79A7", "#F0E442", "#B79BDB")
_ALARM: Final = ("#99180A", "#FF8A5C")
"""Of Okabe and Ito's palette, made lighter or darker where the page asks for it."""

_SHADES: Final = (
    ("#D9E8F3", "#8CBEDE", "#338DC2", "#005E96", "#002C4D"),
    ("#1C3445", "#225C82", "#388CBE", "#76C0EC", "#CDEAFD"),
)
"""One hue from little to much; the inspector draws with the same ones (`ramp.ts`)."""

_HALF: Final = 0.5

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
        """Colours from small to large, all of them apart from the page; lightness tells them."""
        return colors.LinearSegmentedColormap.from_list("magnitudes", _SHADES[self.dark])

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


def written(value: float) -> str:
    """Write a number for a label."""
    return number(value).replace("-", "\N{MINUS SIGN}")


def whole_figure(ax: Axes) -> Any:
    """Return the figure that has a layout, around any subfigure; before 3.10 by its canvas alone.

    >>> from matplotlib.figure import Figure
    >>> figure = Figure()
    >>> whole_figure(figure.subfigures().subplots()) is figure
    True
    """
    figure: Any = ax.get_figure()
    return figure.canvas.figure


def legend(ax: Axes, entries: Sequence[tuple[Artist, str]], **options: Any) -> None:
    """Explain what is drawn, beside the axes where the figure makes room for it.

    The names are set afterwards: matplotlib drops those that begin with an underscore.
    """
    if not entries:
        return
    figure = whole_figure(ax)
    look: dict[str, Any] = {"labelcolor": palette(ax).text, "fontsize": "small"}
    if options:
        look |= options
    elif figure.get_layout_engine() is not None:
        look |= {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "frameon": False}
    made = ax.legend([handle for handle, _ in entries], ["x"] * len(entries), **look)
    for text, (_, words) in zip(made.get_texts(), entries, strict=True):
        text.set_text(words)
