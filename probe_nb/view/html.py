"""The report as a plain HTML table: no script, no style sheet, no colour is needed to read it.

What survives on GitHub, in an untrusted notebook and in a mail is a bare table: so alignment is
said by `align`, findings by a sign and a word, and histograms by unicode bars. Every text is
escaped.
"""

from __future__ import annotations

from html import escape
from typing import Final

from probe_nb.analysis.words import plural, steps_of
from probe_nb.view.frame import FrameBuilder, title
from probe_nb.view.rows import ABSENT, Row, rows_of, worst_first

ROWS: Final = 20
"""Rows of the plain table."""

SIGNS: Final = {"bad": "✕", "warn": "!", "ok": "✓", "empty": ABSENT}

_COLUMNS: Final = (
    ("Finding", "left"),
    ("Module", "left"),
    ("Tensor", "left"),
    ("Step", "right"),
    ("Shape", "left"),
    ("Not finite", "right"),
    ("Zeros", "right"),
    ("Min", "right"),
    ("Max", "right"),
    ("Mean", "right"),
    ("Std", "right"),
    ("Magnitudes", "left"),
)


def static(builder: FrameBuilder) -> str:
    """Return headline, table and what was left out."""
    parts = [headline(builder), _table(builder), *_remarks(builder)]
    return "\n".join(part for part in parts if part)


def headline(builder: FrameBuilder) -> str:
    """Return the worst finding, and its detail under it."""
    found = builder.verdict()
    sentence = escape(f"{SIGNS[found.kind]} {found.sentence}")
    detail = f"<br>\n{escape(found.detail)}" if found.detail else ""
    return f"<p><b>{sentence}</b>{detail}</p>"


def summary_line(builder: FrameBuilder) -> str:
    """Return what was watched and how it ended, as plain text."""
    tally, info = builder.tally, builder._info  # noqa: SLF001
    parts = [
        title(info),
        steps_of(len(tally.steps)),
        plural(len(tally.modules), "module"),
        plural(tally.rows, "record"),
        info.ended,
    ]
    return " · ".join(part for part in parts if part)


def _table(builder: FrameBuilder) -> str:
    order = worst_first(builder)
    if not len(order):
        return ""
    head = "".join(f'<th align="{align}">{name}</th>' for name, align in _COLUMNS)
    body = "\n".join(_line(row) for row in rows_of(builder, order[:ROWS]))
    left = len(order) - ROWS
    note = (
        f"<p>… and {plural(left, 'more row')}, not as bad as these; all are in "
        "<code>run.df</code>.</p>"
        if left > 0
        else ""
    )
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n{note}"


def _line(row: Row) -> str:
    cells = (
        escape(row.finding),
        f"<code>{escape(row.module)}</code> {escape(row.type)}",
        escape(row.tensor),
        row.step,
        f"{escape(row.shape)} {escape(row.dtype)}",
        *(
            escape(each)
            for each in (row.not_finite, row.zeros, row.min, row.max, row.mean, row.std)
        ),
        f"<code>{escape(row.bars)}</code>",
    )
    pairs = zip(cells, _COLUMNS, strict=True)
    return (
        "<tr>" + "".join(f'<td align="{align}">{cell}</td>' for cell, (_, align) in pairs) + "</tr>"
    )


def _remarks(builder: FrameBuilder) -> list[str]:
    """Return what else must be said: the run in one line, notices, modules that were not seen."""
    info = builder._info  # noqa: SLF001
    lines = [f"<p>{escape(summary_line(builder))}</p>"]
    lines += [f"<p>! {escape(str(notice))}</p>" for notice in info.notices[:ROWS]]
    if info.unobserved:
        items = "".join(
            f"<li><code>{escape(each.get('module', '') or '(root)')}</code>: "
            f"{escape(each.get('reason', ''))}</li>"
            for each in info.unobserved[:ROWS]
        )
        left = len(info.unobserved) - ROWS
        more = (
            f"<li>{plural(left, 'more module')}: see <code>run.coverage()</code></li>"
            if left > 0
            else ""
        )
        count = plural(len(info.unobserved), "module")
        lines.append(
            f"<details><summary>{count} without a record</summary><ul>{items}{more}</ul></details>"
        )
    return lines
