"""A run in a terminal: the worst finding in words, the worst rows, under 30 lines."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from probe_nb.analysis.missed import missed_of
from probe_nb.analysis.words import plural
from probe_nb.terms import printable
from probe_nb.view.frame import FrameBuilder, reading
from probe_nb.view.html import SIGNS, made_with, summary_line
from probe_nb.view.rows import rows_of, worst_first

if TYPE_CHECKING:
    from probe_nb.run import Run

ROWS: Final = 10
_WIDTH: Final = 100
_CELL: Final = 30
_COLUMNS: Final = ("finding", "module", "tensor", "step", "not_finite", "min", "max", "std")
_LEFT: Final = ("finding", "module", "tensor")


def summary(run: Run) -> str:
    """Return what was found in `run`, at most 29 lines."""
    with reading(run) as builder:
        return lines_of(builder)


def lines_of(builder: FrameBuilder) -> str:
    """Return the same of a builder that has read its run."""
    found = builder.verdict()
    lines = _wrapped(f"{SIGNS[found.kind]} {found.sentence}", 3)
    lines += _wrapped(found.detail, 3, "  ")
    lines += _wrapped(summary_line(builder), 2, "  ")
    info = builder.info
    lines += _wrapped(made_with(info), 2, "  ")
    lines += _table(builder)
    for notice in info.notices[:2]:
        lines += _wrapped(f"! {notice}", 2)
    missing = missed_of(builder.tally, info)
    if missing:
        lines.append(f"{missing}: see run.coverage()")
    return printable("\n".join(lines))


def _table(builder: FrameBuilder) -> list[str]:
    order = worst_first(builder)
    if not len(order):
        return []
    rows = [list(_COLUMNS)]
    rows += [
        [_short(getattr(row, name)) for name in _COLUMNS] for row in rows_of(builder, order[:ROWS])
    ]
    rows[0] = [name.replace("_", " ") for name in _COLUMNS]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_COLUMNS))]
    lines = ["", *("  ".join(_cells(row, widths)).rstrip() for row in rows)]
    left = len(order) - ROWS
    if left > 0:
        lines.append(f"… and {plural(left, 'more row')}; all are in run.df")
    return lines


def _cells(row: list[str], widths: list[int]) -> list[str]:
    return [
        cell.ljust(width) if name in _LEFT else cell.rjust(width)
        for cell, width, name in zip(row, widths, _COLUMNS, strict=True)
    ]


def _short(cell: str) -> str:
    """Return a cell on one line, its end kept: the end of a module path tells most."""
    cell = " ".join(cell.split())
    return cell if len(cell) <= _CELL else "…" + cell[1 - _CELL :]


def _wrapped(text: str, limit: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent or "  ",
        max_lines=limit,
        placeholder=" …",
    )
