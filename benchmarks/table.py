"""Rows with their bars, as a Markdown table, and the place of that table in a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.timing import Ratio

START: Final = "<!-- benchmark:start -->"
END: Final = "<!-- benchmark:end -->"
_HEAD: Final = (
    "| what | bar | bar today | measured: median (lowest to highest round) | verdict |\n"
    "|---|---|---|---|---|"
)
_FINE: Final = 1.1
"""Below this a third decimal tells."""


@dataclass(frozen=True)
class Row:
    """One measured ratio; `missing` says why there is none.

    `bar` is the design's, `today` the one that must hold now; either may be absent.
    """

    what: str
    measured: Ratio | None
    bar: float | None = None
    today: float | None = None
    missing: str = ""


def verdict(row: Row) -> str:
    """Say in words whether the median meets the bars."""
    if row.measured is None:
        return f"not measured: {row.missing}"
    if row.bar is None and row.today is None:
        return "for comparison"
    median = row.measured.median
    if row.bar is not None and median <= row.bar:
        return "meets the bar"
    if row.today is not None:
        return "meets today's bar" if median <= row.today else "misses today's bar"
    return "misses the bar"


def markdown(rows: Sequence[Row]) -> str:
    """Return the table, with ratios only."""
    return "\n".join([_HEAD, *(_line(row) for row in rows)])


def _line(row: Row) -> str:
    cells = (row.what, _bar(row.bar), _bar(row.today), _measured(row.measured), verdict(row))
    return f"| {' | '.join(cells)} |"


def _bar(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")


def _measured(found: Ratio | None) -> str:
    if found is None:
        return ""
    return f"{_number(found.median)} ({_number(found.low)} to {_number(found.high)})"


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < _FINE else f"{value:.2f}"


def refresh(path: Path, text: str) -> bool:
    """Put `text` between the markers of a file; False if there is no such file or no markers."""
    if not path.is_file():
        return False
    before, start, rest = path.read_text(encoding="utf-8").partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        return False
    path.write_text(f"{before}{START}\n{text}\n{END}{after}", encoding="utf-8")
    return True
