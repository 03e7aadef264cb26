"""Which line of one dump belongs to which of another, as msProbe finds them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from probe_nb.dump.verdict_lines import Line

_FLOATS: Final = (
    frozenset({"float16", "float32", "float64", "bfloat16"}),
    frozenset({"torch.float16", "torch.float32", "torch.float64", "torch.bfloat16"}),
)
_WAY: Final = re.compile(r"\.(?:forward|backward|parameters_grad)\.")

Pair = tuple[Line, Line | None]


class Mapped(NamedTuple):
    """How names are matched."""

    fuzzy: bool
    data: dict[str, str]
    cells: dict[str, str]


def matched(npu: Sequence[Line], bench: Sequence[Line], how: Mapped, mode: str) -> list[Pair]:
    """Return every line of the candidate with what belongs to it in the baseline."""
    if how.fuzzy:
        found = _fuzzy([(_wanted(line, how), line) for line in npu], bench)
        if mode == "statistics":
            found = [(mine, other and _mixed_up(other)) for mine, other in found]
    else:
        known: dict[str, list[Line | None]] = {}
        for line in bench:
            known.setdefault(line.key, []).append(line)
        nothing: list[Line | None] = [None]
        found = [(mine, other) for mine in npu for other in known.get(_wanted(mine, how), nothing)]
    any_type = bool(how.data)
    return [(mine, other if any_type or _fits(mine, other) else None) for mine, other in found]


def _mixed_up(line: Line) -> Line:
    """Return a line as msProbe 26.2 reads it where it matches statistics fuzzily.

    It takes each column for the next but one, so no type fits but that of what is nothing.
    """
    said: dict[str, Any] = {"name": line.dtype, "dtype": line.shape, "shape": str(list(line.four))}
    return replace(line, **said, requires_grad=line.name, four=("N/A",) * 4)


def _fits(mine: Line, other: Line | None) -> bool:
    """Tell whether types may differ so: among floating-point types msProbe lets them."""
    if other is None or mine.dtype == other.dtype:
        return True
    return any(mine.dtype in each and other.dtype in each for each in _FLOATS)


def _wanted(line: Line, how: Mapped) -> str:
    """Return the name that the line has in the baseline."""
    if how.cells:
        return _in_cell(line.name, how.cells)
    if how.data:
        return how.data.get(line.name, line.name)
    return line.name if how.fuzzy else line.key


def _in_cell(name: str, cells: dict[str, str]) -> str:
    if not _WAY.search(f"{name}."):
        return "N/A"
    name = name.replace("Cell", "Module", 1)
    cell = _WAY.split(name.partition(".")[2])[0]
    if cell in cells:
        new = cells[cell]
    else:
        new = cell
        for mine, other in cells.items():
            new = new.replace(mine, other, 1)
    return name.replace(cell, new, 1) if new != cell else name


# -- without the numbers of calls -----------------------------------------------------------------


def _bare(name: str) -> str:
    """Return a name without the number before its direction, as a function has it there.

    Of a module this is its class: msProbe takes that off.
    """
    for way in ("forward", "backward"):
        if way in name:
            before, after = name.split(way)[:2]
            return f"{before.rsplit('.', 2)[0]}.{way}{after}"
    return name


def _fuzzy(npu: Sequence[tuple[str, Line]], bench: Sequence[Line]) -> list[Pair]:
    """Match lines in their order, each with the first equal one that waits on the other side."""
    mine: list[tuple[str, Line]] = []
    other: list[tuple[str, Line]] = []
    found: list[Pair] = []
    for place in range(max(len(npu), len(bench))):
        if place < len(npu):
            mine.append((_bare(npu[place][0]), npu[place][1]))
        if place < len(bench):
            other.append((_bare(bench[place].name), bench[place]))
        if bool(mine) != bool(other):
            break
        at = _point(mine, other)
        if at is None:
            continue
        found += [(line, None) for _, line in mine[: at[0]]]
        found.append((mine[at[0]][1], other[at[1]][1]))
        del mine[: at[0] + 1], other[: at[1] + 1]
    found += [(line, None) for _, line in mine]
    return found


def _point(
    mine: Sequence[tuple[str, Line]], other: Sequence[tuple[str, Line]]
) -> tuple[int, int] | None:
    """Return the places of the first two that belong together, one of them the newest."""
    newest = mine[-1][0]
    for place, (name, _) in enumerate(other):
        if name == newest:
            return len(mine) - 1, place
    newest = other[-1][0]
    for place, (name, _) in enumerate(mine[:-1]):
        if name == newest:
            return place, len(other) - 1
    return None
