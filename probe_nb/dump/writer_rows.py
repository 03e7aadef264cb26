"""The rows of one step and rank, as the writer reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from probe_nb.dump.writer_values import Numbers, counted, there
from probe_nb.store.blocks import HISTOGRAM
from probe_nb.store.columns import Columns, Filter
from probe_nb.store.table import ABSENT, Arrays, Tables
from probe_nb.terms import COUNTS, STATISTICS, STATUSES, Site

_ABOUT: Final = (
    *("order", "micro_step", "call", "backward", "site", "dtype", "shape", "recompute"),
    *("requires_grad", "loss_scale", "checksum", "status"),
)
NAMES: Final = (*_ABOUT, *STATISTICS, *COUNTS, *HISTOGRAM)


class Row(NamedTuple):
    """One record."""

    order: int
    micro_step: int
    call: int
    backward: int
    site: Site
    recompute: bool
    numbers: Numbers
    bins: dict[str, list[int]]


def places(columns: Columns) -> list[tuple[int, int]]:
    """Return the steps and ranks of which there are records; a rank may be absent."""
    found: set[tuple[int, int]] = set()
    for _, piece in columns.chunks(names=("step", "rank")):
        found |= set(zip(piece["step"].tolist(), piece["rank"].tolist(), strict=True))
    return sorted(found)


def rows_of(columns: Columns, step: int, rank: int) -> list[Row]:
    """Return the records of one step and rank in execution order."""
    filters = [Filter("step", lambda x: x == step), Filter("rank", lambda x: x == rank)]
    _, found = columns.where(filters, NAMES)
    rows = list(_rows(found, columns.tables))
    return sorted(rows, key=lambda row: row.order)


def _rows(found: Arrays, tables: Tables) -> Iterator[Row]:
    lists = {name: found[name].tolist() for name in (*_ABOUT, *STATISTICS, *COUNTS)}
    ends = np.cumsum(found["hist_size"].astype(np.int64)).tolist()
    bins, counts = (found[name].tolist() for name in HISTOGRAM[1:])
    start = 0
    for place, end in enumerate(ends):
        at = {name: values[place] for name, values in lists.items()}
        histogram = {"hist_bins": bins[start:end], "hist_counts": counts[start:end]}
        start = end
        yield Row(
            at["order"],
            at["micro_step"],
            at["call"],
            at["backward"],
            tables.sites.values[at["site"]],
            at["recompute"],
            _numbers(at, tables),
            histogram if histogram["hist_bins"] else {},
        )


def _numbers(at: dict[str, Any], tables: Tables) -> Numbers:
    checksum = at["checksum"]
    return Numbers(
        tables.dtypes.values[at["dtype"]],
        tables.shapes.values[at["shape"]],
        STATUSES[at["status"]],
        at["requires_grad"],
        there(at["loss_scale"]),
        None if checksum == ABSENT else tables.checksums.values[checksum],
        {name: there(at[name]) for name in STATISTICS},
        {name: counted(at[name]) for name in COUNTS},
    )
