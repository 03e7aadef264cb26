"""What tests of plots share: drawing for real, and reading back what was drawn."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np

mpl.use("Agg")

MINUS = "\N{MINUS SIGN}"


def draw(ax):
    """Draw for real: a formula that does not parse, or a letter without a picture, fails here."""
    ax.figure.draw_without_rendering()
    return ax


def marked(ax, gid):
    return [line for line in ax.lines if line.get_gid() == gid]


def words(ax):
    legend = ax.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def texts(ax):
    return [text.get_text() for text in ax.texts]


def names_down(ax):
    draw(ax)
    return [t.get_text() for t in ax.get_yticklabels()]


def boxes(ax, gid):
    """Return the (row, column) pairs that the boxes of a collection cover."""
    found = set()
    for collection in ax.collections:
        if collection.get_gid() == gid:
            for path in collection.get_paths():
                (left, top), (right, bottom) = path.vertices.min(axis=0), path.vertices.max(axis=0)
                assert bottom - top == 1
                found |= {(round(top + 0.5), round(x)) for x in np.arange(left + 0.5, right)}
    return found
