"""The tree of modules, as text, as a table of HTML, as a DataFrame and as a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

import pandas as pd

from probe_nb.analysis.structure import THROUGH, Node, Tensor, nodes
from probe_nb.analysis.words import plural
from probe_nb.store.blocks import whole
from probe_nb.store.columns import Columns
from probe_nb.terms import Made, Role, RunInfo, printable, shown
from probe_nb.view.frame import FrameBuilder
from probe_nb.view.html import aligned, sideways

_COUNTED: Final = Made._fields[3:]
COLUMNS: Final = (*Made._fields, "step", "calls", *THROUGH.values())
"""The columns of `run.structure().df`, in order."""

ROWS: Final = 300
"""Modules that are shown; the DataFrame has all."""

_CELL: Final = 48
_NOTICES: Final = 5
_NOTHING: Final = "\N{EN DASH}"
_HEAD: Final = ("module", "type", "parameters", "inputs", "outputs")
_TABLE: Final[dict[Role, str]] = {
    "input": "Inputs",
    "output": "Outputs",
    "grad_output": "Gradients of outputs",
    "grad_input": "Gradients of inputs",
}


class Structure:
    """What `run.structure()` returns: shows the tree of modules; `df` has it as a DataFrame."""

    def __init__(self, columns: Columns, info: RunInfo, step: int | None = None) -> None:
        """Read it from the rows of a run."""
        self._columns = columns
        self._nodes = nodes(columns, info, step)
        self._models, self._notices = info.models, info.notices
        self._why = {(e["model"], e["module"]): e["reason"] for e in info.unobserved}

    @property
    def df(self) -> pd.DataFrame:
        """One row per module: its parameters, and the tensors of its first call.

        Columns: `model`, `module`, `type`; `parameters` and `trainable`, the numbers in its own
        parameters and in those that learn, `total` and `total_trainable` with all modules inside,
        each parameter counted once, `pd.NA` where nobody knows; `step`, the step of the call,
        `calls`, how often it ran in it; `inputs`, `outputs`, `grad_outputs`, `grad_inputs`, such as
        `"0: float32 (4, 8), kwargs.mask: bool (4, 4)"`.
        """
        rows = [
            (
                *each.made,
                next(iter(each.steps), None),
                each.calls,
                *map(_listed, each.through.values()),
            )
            for each in self._nodes
        ]
        frame = pd.DataFrame(rows, columns=list(COLUMNS))
        return frame.astype(dict.fromkeys((*_COUNTED, "step"), "Int64"))

    def __repr__(self) -> str:
        """Draw the tree, one line per module."""
        return self.as_text(ROWS)

    def as_text(self, limit: int) -> str:
        """Draw the tree with so many modules at most."""
        whole = [list(_HEAD), *(self._cells(*each) for each in self._drawn(limit))]
        rows = [[_cut(cell) for cell in row] for row in whole]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [self._title(), "", *(_line(row, widths) for row in rows), *self._left(limit)]
        return printable("\n".join(lines))

    def _repr_html_(self) -> str:
        """Draw the tree as a table that needs no script, style or colour."""
        head = "".join(
            f'<td {aligned(align)} role="columnheader"><b>{name}</b></td>'
            for name, align in zip(
                ("Module", "Type", "Parameters", *_TABLE.values()),
                ("left", "left", "right", *["left"] * 4),
                strict=True,
            )
        )
        body = "\n".join(self._row(*each) for each in self._drawn(ROWS))
        table = f"<thead>\n<tr>{head}</tr>\n</thead>\n<tbody>\n{body}\n</tbody>"
        parts = [f"<div><b>{escape(self._title())}</b></div>"]
        parts += [sideways(f'<table cellpadding="4">\n{table}\n</table>')]
        parts += [f"<div>{escape(line)}</div>" for line in self._left(ROWS)]
        return printable("\n".join(parts))

    def to_module_struct(self, path: str | os.PathLike[str]) -> Path:
        """Write what went through each module as `module_struct.json`, and return the path.

        The layout is that of msProbe's training monitor, whose `targets` it is made for.
        """
        from probe_nb.exports.lines import lines
        from probe_nb.exports.structure import module_struct

        places = {name: place for place, name in enumerate(self._models)}
        rows = lines(self._columns, {step for each in self._nodes for step in each.steps})
        found = module_struct(rows, lambda line: f"{places.get(line.model, 0)}:{line.module}")
        target = Path(path).expanduser()
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole(target) as file:
            file.write(json.dumps(found, indent=2).encode())
        return target

    # -- the tree ------------------------------------------------------------------------------

    def _drawn(self, limit: int) -> Iterator[tuple[Node, int]]:
        """Yield the modules that are shown, and how deep each lies below those that are there."""
        there = {each.made[:2] for each in self._nodes}
        for each in self._nodes[:limit]:
            parts = each.made.module.split(".") if each.made.module else []
            above = (".".join(parts[:n]) for n in range(len(parts)))
            yield each, sum((each.made.model, path) in there for path in above)

    def _title(self) -> str:
        models = [f"{name} · {cls}" for name, cls in self._models.items()]
        roots = [each.made for each in self._nodes if not each.made.module]
        parts = [", ".join(models), plural(len(self._nodes), "module")]
        parts += [_numbers(each, "parameters") for each in roots if len(roots) == 1]
        return " · ".join(part for part in parts if part)

    def _left(self, limit: int) -> list[str]:
        """Return what must be said below the table."""
        left = len(self._nodes) - limit
        more = [f"… and {plural(left, 'more module')}: see run.structure().df"] if left > 0 else []
        return [*more, *(f"! {notice}" for notice in self._notices[:_NOTICES])]

    def _cells(self, node: Node, depth: int) -> list[str]:
        made, through = node.made, node.through
        why = self._why.get(made[:2], "")
        if not any(through.values()):
            return [
                _name(made, depth, self._models),
                made.type,
                _numbers(made),
                f"({why})" if why else _NOTHING,
                "",
            ]
        sides = [_listed(through[role]) or _NOTHING for role in ("input", "output")]
        return [_name(made, depth, self._models), made.type, _numbers(made), *sides]

    def _row(self, node: Node, depth: int) -> str:
        made = node.made
        why = self._why.get(made[:2], "") if not any(node.through.values()) else ""
        name = escape(_name(made, 0, self._models))
        cells = [
            ("left", f"{'&nbsp;' * 4 * depth}<code>{name}</code>"),
            ("left", escape(made.type)),
        ]
        cells += [("right", escape(_numbers(made)))]
        cells += [("left", escape(_listed(node.through[role]))) for role in _TABLE]
        if why:
            cells[3] = ("left", escape(f"({why})"))
        return "<tr>" + "".join(f"<td {aligned(a)}>{cell}</td>" for a, cell in cells) + "</tr>"


def structure_alone(builder: FrameBuilder) -> Structure | None:
    """Return the tree of a run in which nothing but structure was recorded, None of others."""
    if not builder.info.config.get("structure"):
        return None
    return Structure(builder.tally.columns, builder.info)


def _name(made: Made, depth: int, models: dict[str, Any]) -> str:
    own = shown(made.module) if not depth else made.module.rpartition(".")[2]
    prefix = f"{made.model}: " if len(models) > 1 and not made.module else ""
    return "  " * depth + prefix + own


def _numbers(made: Made, noun: str = "") -> str:
    if made.total is None or made.total_trainable is None:
        return _NOTHING
    text = f"{made.total:,}" + (f" {noun}" if noun else "")
    learns = made.total_trainable
    return text if learns == made.total else f"{text} ({learns:,} trainable)"


def _listed(tensors: Sequence[Tensor]) -> str:
    """Return tensors as text; the leaf path of a lone one, which is `0`, says nothing."""
    alone = len(tensors) == 1 and tensors[0].leaf == "0"
    return ", ".join(
        f"{'' if alone else f'{each.leaf}: '}{each.dtype} {each.shape}" for each in tensors
    )


def _cut(cell: str) -> str:
    return cell if len(cell) <= _CELL else f"{cell[: _CELL - 1]}…"


def _line(row: list[str], widths: list[int]) -> str:
    right = _HEAD.index("parameters")
    cells = [
        cell.rjust(width) if place == right else cell.ljust(width)
        for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
