"""How large updates are against the parameters that they change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from matplotlib.artist import Artist
from matplotlib.axes import Axes

from probe_nb.view.plots import dots, lines, style
from probe_nb.view.plots.data import Grid
from probe_nb.view.plots.parameters import Flow
from probe_nb.view.plots.style import Palette

GUIDE: Final = 1e-3
BAND: Final = (3e-4, 3e-3)
"""The rule of thumb, and what is as good as on it."""

_LABEL: Final = "l2 of the update / l2 of the parameter"
_TITLE: Final = "updates against parameters"


def over_steps(ax: Axes | None, grid: Grid) -> Axes:
    """Draw a line per parameter."""
    ax, colours, entries = lines.draw(ax, grid, log=True)
    entries.append(_guide(ax.axhspan, ax.axhline, colours))
    alone = f" of {style.name(grid.names[0])}" if len(grid.keys) == 1 else ""
    style.title(ax, f"{_TITLE}{alone}")
    ax.set_ylabel(_LABEL)
    style.legend(ax, entries)
    return ax


def in_step(ax: Axes | None, flow: Flow) -> Axes:
    """Draw a dot per parameter, a row per module."""

    def guide(made: Axes, colours: Palette) -> list[tuple[Artist, str]]:
        return [_guide(made.axvspan, made.axvline, colours)]

    title = f"{_TITLE}, step {flow.step:,}"
    return dots.draw(ax, flow, title, _LABEL, missing="none: no update", guide=guide)


def _guide(
    span: Callable[..., Any], line: Callable[..., Any], colours: Palette
) -> tuple[Artist, str]:
    """Draw the rule of thumb behind the data."""
    made: Artist = span(
        *BAND, color=colours.lines[2], alpha=0.3 if colours.dark else 0.16, linewidth=0, zorder=0.2
    )
    line(GUIDE, color=colours.lines[2], linewidth=1.0, alpha=0.8, zorder=0.3)
    return made, "about 1e-3: rule of thumb"
