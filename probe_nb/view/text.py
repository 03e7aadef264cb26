"""A run in a terminal: the worst finding in words, the worst rows, under 30 lines."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from probe_nb.analysis.missed import missed_of
from probe_nb.analysis.words import plural
from probe_nb.terms import printable
from probe_nb.view.frame import FrameBuilder, reading
from probe_nb.view.html import SIGNS, further, made_with, noticed, summary_line
from probe_nb.view.rows import rows_of, worst_first
from probe_nb.view.structure import structure_alone

if TYPE_CHECKING:
    from probe_nb.run import Run

ROWS: Final = 10
_MODULES: Final = 20
_WIDTH: Final = 100
_TABLE: Final = 120
_CELL: Final = 30
_WIDE: Final = 60
"""Cells are cut to this where the line has room, and to the other where it has not."""
_COLUMNS: Final = ("finding", "module", "tensor", "step", "not_finite", "min", "max", "std")
_LEFT: Final = ("finding", "module", "tensor")


def summary(run: Run) -> str:
    """Return what was found in `run`, at most 29 lines."""
    with reading(run) as builder:
        return lines_of(builder)


def lines_of(builder: FrameBuilder) -> str:
    """Return the same of a builder that has read its run."""
    if alone := structure_alone(builder):
        return alone.as_text(_MODULES)
    found = builder.verdict()
    lines = _wrapped(f"{SIGNS[found.kind]} {found.sentence}", 3)
    lines += _wrapped(found.detail, 3, "  ")
    for each in further(builder):
        lines += _wrapped(each, 1)
    lines += _wrapped(summary_line(builder), 2, "  ")
    info = builder.info
    lines += _wrapped(made_with(info), 2, "  ")
    lines += _table(builder)
    for notice in info.notices[:2]:
        lines += _wrapped(noticed(notice), 2)
    missing = missed_of(builder.tally, info)
    if missing:
        lines.append(f"{missing}: see run.coverage()")
    return printable("\n".join(lines))


def _table(builder: FrameBuilder) -> list[str]:
    order = worst_first(builder)
    if not len(order):
        return []
    whole = [[name.replace("_", " ") for name in _COLUMNS]]
    whole += [
        [" ".join(getattr(row, name).split()) for name in _COLUMNS]
        for row in rows_of(builder, order[:ROWS])
    ]
    rows, widths = _fitting(whole)
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


def _fitting(whole: list[list[str]]) -> tuple[list[list[str]], list[int]]:
    """Return the rows with cells as long as the line has room for, and the widths of columns."""
    for limit in range(_WIDE, _CELL - 1, -1):
        rows = [
            [_short(cell, limit, name) for cell, name in zip(row, _COLUMNS, strict=True)]
            for row in whole
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        if sum(widths) + 2 * (len(widths) - 1) <= _TABLE:
            break
    return rows, widths


def _short(cell: str, limit: int, column: str) -> str:
    """Return a cell cut to `limit` where it tells least.

    The end of a module path tells most, and both ends of a tensor's words do: its role and its
    leaf. Of what was found, and of counts, it is the beginning.
    """
    if len(cell) <= limit:
        return cell
    kept = {"module": 0, "tensor": limit // 2}.get(column, limit - 1)
    return f"{cell[:kept]}…{cell[len(cell) - (limit - 1 - kept) :]}"


def _wrapped(text: str, limit: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent or "  ",
        max_lines=limit,
        placeholder=" …",
    )
