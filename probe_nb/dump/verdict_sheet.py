"""The table of msProbe's verdicts as an Excel file, errors and warnings in colour."""

from __future__ import annotations

import io
import math
import os
from pathlib import Path
from typing import Any, Final

import pandas as pd

from probe_nb.dump.verdict_rules import ERROR, RESULT, WARNING
from probe_nb.errors import ConfigError
from probe_nb.store.blocks import whole
from probe_nb.terms import printable

_COLOURS: Final = {ERROR: ("#9C0006", "#FFC7CE"), WARNING: ("#7F6000", "#FFEB9C")}
"""The colours of letters and of what is behind them, as Excel's own styles have them."""

_PLAIN: Final = {
    "in_memory": True,  # the file is written by us, whole or not at all
    "strings_to_formulas": False,  # a name from a dump is a text, whatever it begins with
    "strings_to_urls": False,
    "strings_to_numbers": False,
}
_LONGEST: Final = 32_767
"""Characters that a cell of Excel may have."""

_ROWS: Final = 1_048_575
_WIDE, _NARROW = 60, 14


def write(frame: pd.DataFrame, path: str | os.PathLike[str]) -> Path:
    """Write a table that `verdicts.table` made, whole or not at all, and return its path.

    A row whose Result is an error or a warning has its colour.

    Raises:
        ConfigError: XlsxWriter is not installed, or the table has more rows than Excel takes.
    """
    try:
        import xlsxwriter
    except ImportError as error:
        raise ConfigError(
            "Excel files are written by XlsxWriter, which is not installed: "
            "pip install probe-nb[xlsx]"
        ) from error
    if len(frame) > _ROWS:
        raise ConfigError(f"Excel takes {_ROWS:,} rows, and the table has {len(frame):,}.")
    if frame.index.nlevels > 1:  # the step and rank of each row
        frame = frame.reset_index(level=["step", "rank"])
    target, held = Path(path).expanduser(), io.BytesIO()
    with xlsxwriter.Workbook(held, _PLAIN) as book:
        _fill(book, frame)
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole(target) as file:
        file.write(held.getvalue())
    return target


def _fill(book: Any, frame: pd.DataFrame) -> None:
    sheet = book.add_worksheet("compare")
    bold = book.add_format({"bold": True})
    formats = {
        result: book.add_format({"font_color": letters, "bg_color": behind})
        for result, (letters, behind) in _COLOURS.items()
    }
    columns = list(frame.columns)
    for place, name in enumerate(columns):
        sheet.write_string(0, place, str(name), bold)
        sheet.set_column(place, place, _WIDE if str(name).endswith("Name") else _NARROW)
    result = columns.index(RESULT)
    for number, values in enumerate(frame.itertuples(index=False, name=None), 1):
        style = formats.get(values[result])
        for place, value in enumerate(values):
            _cell(sheet, number, place, value, style)
    sheet.freeze_panes(1, 1)
    sheet.autofilter(0, 0, len(frame), len(columns) - 1)


def _cell(sheet: Any, row: int, column: int, value: Any, style: Any) -> None:
    if isinstance(value, bool):
        sheet.write_boolean(row, column, value, style)
    elif isinstance(value, (int, float)) and _fits(value):
        sheet.write_number(row, column, value, style)
    else:
        sheet.write_string(row, column, printable(str(value))[:_LONGEST], style)


def _fits(value: Any) -> bool:
    """Tell whether Excel holds a number as it is."""
    return abs(value) < 2**53 if isinstance(value, int) else math.isfinite(value)
