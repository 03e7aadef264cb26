"""The report as a plain HTML table: no script, no style sheet, no colour is needed to read it.

What survives on GitHub, in an untrusted notebook and in a mail is a bare table: so alignment is
said by `align`, and to the left by `style` too, which notebooks overrule; findings by a sign and a
word, and histograms by unicode bars. Every text is escaped. The tags are those that the strictest
of them leaves in place (`nbconvert --sanitize-html` shows others as text, a `<th>` outside its
table), so a head cell is a bold cell with a role. Cells whose words belong together hold
non-breaking spaces: JupyterLab overrules `nowrap`.
"""

from __future__ import annotations

from html import escape
from typing import Final

from probe_nb.analysis.missed import missed, missed_of
from probe_nb.analysis.words import plural, steps_of
from probe_nb.terms import READ_FROM, ROOT_LABEL, RunInfo, printable
from probe_nb.view import found as findings
from probe_nb.view.frame import FrameBuilder, title
from probe_nb.view.rows import ABSENT, Row, rows_of, worst_first

ROWS: Final = 20
"""Rows of the plain table."""

_UNSEEN: Final = 5
"""Modules without a record that are named."""

SIGNS: Final = {"bad": "✕", "warn": "!", "ok": "✓", "empty": ABSENT}

_VERSIONS: Final = {
    "torch": "torch",
    "cuda": "CUDA",
    "hip": "HIP",
    "cuda_driver": "driver",
    "torch_npu": "torch_npu",
    "cann": "CANN",
    "npu_driver": "driver",
}
"""What numbers depend on, and as what people know it."""

_COLUMNS: Final = (
    ("Finding", "left"),
    ("Module", "left"),
    ("Tensor", "left"),
    ("Step", "right"),
    ("Shape", "left"),
    ("Not finite", "right"),
    ("Magnitudes", "left"),
    ("Zeros", "right"),
    ("Min", "right"),
    ("Max", "right"),
    ("Mean", "right"),
    ("Std", "right"),
)


def static(builder: FrameBuilder) -> str:
    """Return headline, table and what was left out."""
    parts = [headline(builder), _table(builder), *_remarks(builder)]
    return printable("\n".join(part for part in parts if part))


def headline(builder: FrameBuilder) -> str:
    """Return the worst finding, its detail under it, and up to two more."""
    found = builder.verdict()
    sentence = escape(f"{SIGNS[found.kind]} {found.sentence}")
    more = "".join(_div(line) for line in further(builder))
    return printable(f"<div><b>{sentence}</b></div>" + _div(found.detail) + more)


def further(builder: FrameBuilder) -> list[str]:
    """Return what was found besides the headline in two lines, and how many more there are."""
    said, left = findings.further(builder.findings())
    lines = [f"{findings.MARKS[each.severity]} {each.sentence}" for each in said]
    if left:
        lines[-1] += f" (and {left} more: run.findings())"
    return lines


def summary_line(builder: FrameBuilder) -> str:
    """Return what was watched and how it ended, as plain text."""
    tally, info = builder.tally, builder.info
    parts = [
        title(info),
        steps_of(len(tally.steps)),
        plural(len(tally.listed), "module"),
        plural(tally.records, "record"),
        info.ended,
    ]
    return " · ".join(part for part in parts if part)


def made_with(info: RunInfo) -> str:
    """Return on which devices a run was made and with which versions, as plain text."""
    first, others = "".join(info.devices[:1]), len(info.devices) - 1
    parts = [f"{first} and {plural(others, 'more device')}" if others > 0 else first]
    parts += [
        f"{word} {info.versions[key]}" for key, word in _VERSIONS.items() if key in info.versions
    ]
    return " · ".join(part for part in parts if part)


def _table(builder: FrameBuilder) -> str:
    order = worst_first(builder)
    if not len(order):
        return ""
    head = "".join(
        f'<td {aligned(align)} role="columnheader"><b>{name}</b></td>' for name, align in _COLUMNS
    )
    body = "\n".join(_line(row) for row in rows_of(builder, order[:ROWS]))
    rows = f"<thead>\n<tr>{head}</tr>\n</thead>\n<tbody>\n{body}\n</tbody>"
    table = sideways(f'<table cellpadding="4">\n{rows}\n</table>')
    left = len(order) - ROWS
    if left <= 0:
        return table
    which = (
        "worst first"
        if builder.verdict().kind in ("bad", "warn")
        else "outputs first, in execution order"
    )
    return f"{table}\n<div>… and {plural(left, 'more row')} ({which}); all are in run.df</div>"


def _line(row: Row) -> str:
    cells = (
        _together(row.finding),
        f"<code>{escape(row.module)}</code> <div>{escape(row.type)}</div>",
        _together(row.tensor),
        row.step,
        f"{escape(row.shape)} {escape(row.dtype)}",
        _together(row.not_finite),
        f"<code>{escape(row.bars)}</code>",
        *(escape(each) for each in (row.zeros, row.min, row.max, row.mean, row.std)),
    )
    pairs = zip(cells, _COLUMNS, strict=True)
    return (
        "<tr>"
        + "".join(f"<td {aligned(align)}>{cell}</td>" for cell, (_, align) in pairs)
        + "</tr>"
    )


def sideways(table: str) -> str:
    """Let a table that is too wide for its place scroll there: what is around it stays."""
    return f'<div style="overflow-x:auto">{table}</div>'


def aligned(align: str) -> str:
    """Say the alignment; notebooks align cells to the right, against the attribute alone."""
    return f'align="{align}"' + (' style="text-align:left"' if align == "left" else "")


def _together(text: str) -> str:
    return escape(text).replace(" ", "&nbsp;")


def _remarks(builder: FrameBuilder) -> list[str]:
    """Return what else must be said: the run in two lines, notices, modules that were not seen."""
    info = builder.info
    lines = [_div(summary_line(builder)), _div(made_with(info))]
    lines += [_div(noticed(notice)) for notice in info.notices[:ROWS]]
    found = missed(info)
    if found:
        items = [_unseen(each) for each in found[:_UNSEEN]]
        left = len(found) - _UNSEEN
        if left > 0:
            items.append(f"<li>{plural(left, 'more module')}: see run.coverage()</li>")
        lines.append(_div(f"{missed_of(builder.tally, info)} (what to do: run.coverage())"))
        lines.append(f"<ul>{''.join(items)}</ul>")
    return lines


def noticed(notice: str) -> str:
    """Return a notice with its sign, which tells a warning from what is only said."""
    return f"{SIGNS['empty' if notice.startswith(READ_FROM) else 'warn']} {notice}"


def _unseen(module: dict[str, str]) -> str:
    name, reason = module.get("module", "") or ROOT_LABEL, module.get("reason", "")
    return f"<li><code>{escape(name)}</code>: {escape(reason)}</li>"


def _div(text: str) -> str:
    return f"<div>{escape(text)}</div>" if text else ""
