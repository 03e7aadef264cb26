"""What msProbe's second monitor writes: its files, names and columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from probe_nb.exports.lines import Line, value
from probe_nb.exports.monitor_csv import append
from probe_nb.exports.names import arrived, leaves_of

OPS: Final = ("min", "max", "mean", "norm", "nans")
MONITORS: Final = ("module", "weight_grad", "optimizer", "param", "cc")
_MOMENTS: Final = ("exp_avg", "exp_avg_sq")
_WAY: Final = {"input": 0, "output": 1, "grad_input": 0, "grad_output": 1}
"""Roles of a module's rows, and which of both directions comes first in the backward."""


@dataclass(frozen=True)
class Wanted:
    """What one of the monitors writes."""

    name: str
    ops: tuple[str, ...] = OPS
    targets: tuple[str, ...] = ()
    every_gradient: bool = False
    before_reduction: bool = False


def rows_of(wanted: Wanted, lines: Sequence[Line], batches: int) -> list[dict[str, Any]]:
    """Return the rows that one monitor writes of one step."""
    mine = [each for each in lines if not each.recompute and not each.api and each.measured]
    makers: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "module": lambda: _modules(wanted, mine),
        "weight_grad": lambda: _gradients(wanted, mine, batches),
        "optimizer": lambda: _moments(wanted, mine),
        "param": lambda: _parameters(wanted, mine),
    }
    return makers[wanted.name]()


def write(
    folder: Path, wanted: Wanted, rows: Iterable[dict[str, Any]], part: tuple[int, int]
) -> None:
    """Append the rows of a step to the file of its part."""
    rows = list(rows)
    if rows:
        path = folder / f"{wanted.name}_step{part[0]}-{part[1]}.csv"
        append(path, list(rows[0]), (each.values() for each in rows))


def _modules(wanted: Wanted, lines: Sequence[Line]) -> list[dict[str, Any]]:
    mine = [each for each in lines if each.role in _WAY and each.training is not False]
    if wanted.targets:
        mine = [e for e in mine if any(t in _staged(e, e.module) for t in wanted.targets)]
    first: dict[tuple[Any, ...], int] = {}
    for line in mine:
        first.setdefault(line.place, line.order)

    leaves = leaves_of(lines)

    def place(line: Line) -> tuple[int, ...]:
        if line.direction != "backward":
            return 0, line.order
        known = leaves[line.model, line.module, line.role.removeprefix("grad_")]
        leaf = known.index(line.leaf) if line.leaf in known else len(known)
        return 1, first[line.place], _WAY[line.role], leaf  # of each call its inputs first

    mine.sort(key=place)
    numbers: dict[tuple[Any, ...], int] = {}
    made = []
    for line in mine:
        key = (*line.place, line.role)
        number = numbers[key] = numbers.get(key, -1) + 1
        made.append(_row(wanted, line, f"{line.module}.{line.role}.{number}", line.direction))
    return made


def _gradients(wanted: Wanted, lines: Sequence[Line], batches: int) -> list[dict[str, Any]]:
    every = wanted.every_gradient
    made = [
        _gradient(wanted, line, name, "unreduced", line.micro_step + 1 if every else batches)
        for line, name in arrived(lines, every=every, before=wanted.before_reduction)
    ]
    taken = [e for e in lines if e.role == "param_grad" and e.direction == "optimizer"]
    return made + [_gradient(wanted, e, e.leaf, "reduced", batches) for e in taken]


def _gradient(wanted: Wanted, line: Line, leaf: str, scope: str, micro: int) -> dict[str, Any]:
    row = _row(wanted, line, _path(line, leaf), scope)
    head = {name: row.pop(name) for name in ("vpp_stage", "step", "module_name", "scope")}
    return {**head, "micro_step": micro, **row}


def _moments(wanted: Wanted, lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return what the optimizer keeps after its step."""
    made = []
    for moment in _MOMENTS:
        for line in lines:
            kept = line.role == "state" and line.direction == "optimizer"
            if kept and line.leaf.endswith(f".{moment}"):
                made.append(_row(wanted, line, _path(line, line.leaf), moment))
    return made


def _parameters(wanted: Wanted, lines: Sequence[Line]) -> list[dict[str, Any]]:
    return [
        _row(wanted, line, _path(line, line.leaf), scope)
        for direction, scope in (("forward", "param_origin"), ("optimizer", "param_updated"))
        for line in lines
        if line.role == "param" and line.direction == direction
    ]


def _row(wanted: Wanted, line: Line, name: str, scope: str) -> dict[str, Any]:
    staged = line.model.isdecimal()
    values = {op: _number(value(line, op)) for op in wanted.ops}
    return {
        "vpp_stage": int(line.model) if staged else -1,
        "step": line.step,
        "module_name": _staged(line, name),
        "scope": scope,
        **values,
    }


def _staged(line: Line, name: str) -> str:
    return f"{line.model}:{name}" if line.model.isdecimal() else name


def _path(line: Line, leaf: str) -> str:
    return f"{line.module}.{leaf}" if line.module else leaf


def _number(number: Any) -> Any:
    return "nan" if number is None else float(number)
