"""A whole run as a monitor's folder, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from probe_nb.errors import ConfigError, closest, notify
from probe_nb.exports.layout import Layout, Sheets
from probe_nb.exports.lines import OPS, Line, Shares, lines
from probe_nb.exports.monitor_csv import CsvFolder, new_folder
from probe_nb.exports.names import reduces
from probe_nb.store.columns import Columns
from probe_nb.terms import RunInfo

DEFAULT: Final = ("min", "max", "mean", "norm", "nans", "shape", "dtype")
"""All but `zeros`, which not every run tells."""


def monitor_csv(
    columns: Columns,
    base: Path,
    info: RunInfo,
    *,
    ops: Sequence[str],
    eps: float,
    ndigits: int,
    steps_per_file: int,
) -> Path:
    """Write a run below `base` and return the folder of its rank.

    Raises:
        ConfigError: An operation is not known, or `zeros` cannot be told.
    """
    for op in ops:
        if op not in OPS:
            raise ConfigError(f"`{op}` is no quantity.{closest(op, OPS)} Known: {', '.join(OPS)}.")
    layout = Layout(ops=tuple(ops), eps=eps, before_reduction=reduces(info.models))
    files = CsvFolder(
        new_folder(base, info.rank), layout, ndigits=ndigits, steps_per_file=steps_per_file
    )
    told = any(site.leaf.startswith("before.") for site in columns.tables.sites.values)
    kept: tuple[int, list[Line]] = (-1, [])
    for step in _steps(columns):
        rows = lines(columns, [step])
        before = kept[1] if kept[0] == step - 1 else []
        files.write(Sheets([*rows, *before], Shares(columns, rows, eps), layout).tables())
        kept = step, [] if told else _kept(rows)
    if not any(files.path.iterdir()):
        notify(
            f"`{files.path}` is empty: a monitor's files hold modules, their parameters and "
            "gradients, and this run has no number of one."
        )
    return files.path


def _steps(columns: Columns) -> list[int]:
    found: set[int] = set()
    for _, chunk in columns.chunks(names=("step",)):
        found.update(np.unique(chunk["step"]).tolist())
    return sorted(found)


def _kept(rows: Sequence[Line]) -> list[Line]:
    """Return what an optimizer kept after a step, as what it kept before the next one."""
    changed: dict[str, Any] = {"direction": "forward"}
    return [
        each._replace(step=each.step + 1, leaf=f"before.{each.leaf}", **changed)
        for each in rows
        if each.role == "state" and each.direction == "optimizer"
    ]
