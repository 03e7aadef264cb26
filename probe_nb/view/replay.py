"""A replay in words and as a plain table: what came out first; every text is escaped."""

from __future__ import annotations

import textwrap
from html import escape
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from probe_nb.analysis.words import number, plural
from probe_nb.terms import printable
from probe_nb.view.html import aligned

if TYPE_CHECKING:
    from probe_nb.replay.result import Replay

_WIDTH: Final = 100
_ROWS: Final = 20
_SIGNS: Final = {"within": "✓", "above": "✕", "not_judged": "!"}
_ABSENT: Final = "\N{EN DASH}"
_COLUMNS: Final = (
    ("Verdict", "left"),
    ("Run", "left"),
    ("Tensor", "left"),
    ("Type", "left"),
    ("Error", "right"),
    ("Rounding explains", "right"),
    ("Worst element", "right"),
    ("Why", "left"),
)

_GREAT: Final = 10.0
"""From here on amplified rounding is pointed at."""


def amplifies(of: Replay) -> str:
    """Say by how much the call enlarges what came in."""
    if of.amplification is None:
        return ""
    factor = number(float(f"{of.amplification:.2g}"))
    if of.amplification < _GREAT:
        return f"it amplifies rounding by a factor {factor}"
    return f"it amplifies rounding by a factor {factor}: differences behind it are to be expected"


def place(of: Replay) -> str:
    """Say what was replayed."""
    kind = f" ({of.type})" if of.type and not of.api else ""
    return f"{of.name}{kind}, step {of.step}, call {of.call}, again in float64 on the CPU"


def text(of: Replay) -> str:
    """Return a replay in a few lines."""
    lines = _wrapped(f"{_SIGNS[of.verdict]} {of.sentence}", "")
    lines += [*_wrapped(amplifies(of), "  "), *_wrapped(place(of), "  ")]
    lines += [line for each in of.notices for line in _wrapped(f"! {each}", "")]
    return printable("\n".join([*lines, *_table(of)]))


def _wrapped(said: str, indent: str) -> list[str]:
    return textwrap.wrap(
        said, _WIDTH, initial_indent=indent, subsequent_indent=indent or "  ", max_lines=4
    )


def _table(of: Replay) -> list[str]:
    if of.df.empty:
        return []
    head = [name.lower() for name, _ in _COLUMNS[:7]]
    cells = [head, *(_cells(row)[:7] for row in of.df.head(_ROWS).itertuples())]
    widths = [max(len(line[n]) for line in cells) for n in range(len(head))]
    lines = [
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells
    ]
    left = len(of.df) - _ROWS
    for row in of.df.head(_ROWS).itertuples():
        if row.reason and str(row.reason) not in of.sentence:
            lines += _wrapped(f"{_cells(row)[2]} of {row.run!s}: {row.reason!s}", "  ")
    return [
        "",
        *lines,
        *([f"… and {plural(left, 'more row')}; all are in .df"] if left > 0 else []),
    ]


def _cells(row: Any) -> list[str]:
    return [
        f"{_SIGNS[row.verdict]} {row.verdict.replace('_', ' ')}",
        str(row.run),
        f"{row.role} {row.leaf}",
        _ABSENT if pd.isna(row.dtype) else str(row.dtype),
        _number(row.error),
        _number(row.bound),
        _number(row.worst),
        str(row.reason),
    ]


def _number(value: Any) -> str:
    return _ABSENT if pd.isna(value) else number(float(value))


def html(of: Replay) -> str:
    """Return what came out, and a table of the tensors."""
    parts = [f"<div><b>{escape(f'{_SIGNS[of.verdict]} {of.sentence}')}</b></div>"]
    parts += [f"<div>{escape(each)}</div>" for each in (amplifies(of), place(of)) if each]
    parts += [f"<div>{escape(f'! {each}')}</div>" for each in of.notices]
    return printable("\n".join(["<div>", *parts, *_html_table(of), "</div>"]))


def _html_table(of: Replay) -> list[str]:
    if of.df.empty:
        return []
    head = "".join(
        f'<td {aligned(align)} role="columnheader"><b>{name}</b></td>' for name, align in _COLUMNS
    )
    body = [_line(_cells(row)) for row in of.df.head(_ROWS).itertuples()]
    left = len(of.df) - _ROWS
    more = [f"<div>… and {plural(left, 'more row')}; all are in .df</div>"] if left > 0 else []
    inside = ["<thead>", f"<tr>{head}</tr>", "</thead>", "<tbody>", *body, "</tbody>"]
    return ['<table cellpadding="4">', *inside, "</table>", *more]


def _line(cells: list[str]) -> str:
    pairs = zip(cells, _COLUMNS, strict=True)
    return "<tr>" + "".join(f"<td {aligned(a)}>{escape(c)}</td>" for c, (_, a) in pairs) + "</tr>"
