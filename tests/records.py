"""Runs written by hand, row by row, so that what is asked of them has an answer known beforehand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from probe_nb.exponents import Histogram
from probe_nb.run import Run
from probe_nb.store.columns import Columns
from probe_nb.store.table import DTYPES
from probe_nb.terms import COUNTS, STATISTICS, STATUS_CODE, RunInfo, Site

_DIRECTIONS = {"grad_output": "backward", "grad_input": "backward", "param_grad": "backward"}


def info(**facts: Any) -> RunInfo:
    about = {
        "name": "by hand",
        "created": "2020-01-01T00:00:00+00:00",
        "models": {"model": "Net"},
        "modules": 2,
        "config": {},
        "versions": {"torch": "0"},
        "devices": ["cpu"],
    }
    return RunInfo(**{**about, **facts})


def run(rows: list[dict[str, Any]], **facts: Any) -> Run:
    made = Run(info(**facts))
    append(made.columns, rows)
    return made


def _elements(row: dict[str, Any]) -> int:
    """Return how many elements a row must have for its histogram and counts to add up."""
    if "histogram" not in row:
        return 4
    outside = ("zero_count", "nan_count", "posinf_count", "neginf_count")
    return row["histogram"].total + sum(row.get(name, 0) for name in outside)


def append(columns: Columns, rows: list[dict[str, Any]]) -> None:
    """Add one block; a row names only what matters, the rest is as of a small CPU tensor."""
    tables = columns.tables
    block: dict[str, list[Any]] = {name: [] for name in DTYPES}
    bins, counts, sizes = [], [], []
    for number, row in enumerate(rows):
        role = row.get("role", "output")
        site = Site(
            row.get("model", "model"),
            row.get("module", "layer"),
            row.get("type", "Linear"),
            "",
            row.get("direction", _DIRECTIONS.get(role, "forward")),
            role,
            row.get("leaf", "0"),
        )
        codes = {
            "site": tables.sites.code(site),
            "dtype": tables.dtypes.code(row.get("dtype", "float32")),
            "shape": tables.shapes.code(row.get("shape", (2, 2))),
            "device": tables.devices.code(row.get("device", "cpu")),
            "status": STATUS_CODE[row.get("status", "ok")],
            "order": row.get("order", len(columns) + number),
            "numel": row.get("numel", _elements(row)),
            "rank": row.get("rank", -1),
            "backward": row.get("backward", -1),
            "checksum": -1,
            "loss_scale": row.get("loss_scale", math.nan),
        }
        there = row.get("status", "ok") == "ok"
        codes |= {name: row.get(name, 0.0 if there else math.nan) for name in STATISTICS}
        codes |= {name: row.get(name, 0 if there else -1) for name in COUNTS}
        for name in DTYPES:
            block[name].append(codes.get(name, row.get(name, 0)))
        histogram: Histogram | None = row.get("histogram")
        sizes.append(0 if histogram is None else len(histogram.bins))
        bins += [] if histogram is None else histogram.bins.tolist()
        counts += [] if histogram is None else histogram.counts.tolist()
    arrays = {name: np.array(values, DTYPES[name]) for name, values in block.items()}
    arrays["hist_size"] = np.array(sizes, np.uint16)
    arrays["hist_bins"] = np.array(bins, np.uint16)
    arrays["hist_counts"] = np.array(counts, np.uint32)
    columns.append(arrays)
