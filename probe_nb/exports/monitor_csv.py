"""The folder of a training monitor: its names, its files, its numbers."""

from __future__ import annotations

import csv
import datetime as dt
import io
import math
import re
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from probe_nb.appending import appended
from probe_nb.errors import ConfigError
from probe_nb.exports.layout import Layout, Row

_MONTHS: Final = (
    *("Jan", "Feb", "Mar", "Apr", "May", "Jun"),
    *("Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)
"""Of msProbe's folder names, whatever the locale."""

_NUMBERS: Final = 4

NDIGITS: Final = 6
"""Digits behind the point, unless more are asked for."""


def stamp(now: dt.datetime) -> str:
    """Return a moment as it begins the name of a folder: `Nov29_20-35-24`."""
    return f"{_MONTHS[now.month - 1]}{now:%d_%H-%M-%S}"


def moment(text: str) -> tuple[int, ...]:
    """Return a stamp in a form that sorts; it has no year.

    Raises:
        ConfigError: It is none.
    """
    month, *numbers = re.split(r"(?<=[a-z])(?=\d)|[_-]", text)
    if month not in _MONTHS or len(numbers) != _NUMBERS or not all(map(str.isdecimal, numbers)):
        raise ConfigError(f"`{text}` is no moment of a folder's name, such as `Dec03_21-34-40`.")
    return (_MONTHS.index(month), *map(int, numbers))


def new_folder(base: Path, rank: int | None) -> Path:
    """Return the path of a folder that no other run writes to."""
    now = dt.datetime.now().astimezone()
    return base / f"{stamp(now)}-rank{rank or 0}-{uuid.uuid4().hex[:8]}"


class CsvFolder:
    """Writes tables, step by step; each file is closed again at once."""

    def __init__(
        self, path: Path, layout: Layout, *, ndigits: int = NDIGITS, steps_per_file: int = 1
    ) -> None:
        """Make the folder.

        Raises:
            OSError: It cannot be made.
        """
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._layout = layout
        self._ndigits = ndigits
        self._steps = steps_per_file

    def write(self, tables: Mapping[str, Iterable[Row]]) -> None:
        """Append rows to the files of their tables and steps."""
        for table, rows in tables.items():
            parts: dict[int, list[Row]] = {}
            for row in rows:
                parts.setdefault(row.step // self._steps, []).append(row)
            for part, mine in parts.items():
                first = part * self._steps
                name = f"{table}_{first}-{first + self._steps - 1}.csv"
                head = self._layout.columns(table)
                written = (self._written(row) for row in mine)
                append(self.path / name, head, written)

    def write_stacks(self, stacks: Mapping[str, str]) -> None:
        """Write from where each module was called."""
        append(self.path / "stack_info.csv", ["module_name", "stack_info"], stacks.items())

    def _written(self, row: Row) -> list[Any]:
        begin: list[Any] = [row.vpp_stage, row.name, row.step]
        if row.micro_step is not None:
            begin.append(row.micro_step)
        return begin + [number(value, self._ndigits) for value in row.values]


def number(value: Any, ndigits: int) -> Any:
    """Return a value as the monitor writes it: rounded, and `nan` where there is none."""
    if value is None:
        return "nan"
    if not isinstance(value, float):
        return value
    if math.isnan(value):
        return "nan"
    return round(value, ndigits)


def append(path: Path, head: list[str], rows: Iterable[Iterable[Any]]) -> None:
    """Append rows to a file, all or none; it begins with the names of its columns."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    if not path.exists() or not path.stat().st_size:
        writer.writerow(head)
    writer.writerows(rows)
    appended(path, text.getvalue().encode())
