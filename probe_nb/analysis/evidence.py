"""Single records, and the other side of the call that one was taken in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.firsts import First
from probe_nb.analysis.tally import Tally
from probe_nb.store.columns import Filter
from probe_nb.terms import COUNTS, ROLES, STATISTICS


def record(tally: Tally, row: int) -> Any:
    """Return one record with its dtype and shape spelled out."""
    tables, names = tally.columns.tables, ("step", "numel", *STATISTICS, *COUNTS)
    found = tally.columns.take([row], (*names, "dtype", "shape"))
    values = {name: found[name][0].item() for name in names}
    values["dtype"] = tables.dtypes.values[found["dtype"][0]]
    values["shape"] = tables.shapes.values[found["shape"][0]]
    return SimpleNamespace(**values)


def same_call(tally: Tally, first: First, role: str) -> NDArray[np.intp]:
    """Return the rows of the other side of the culprit's call."""
    sites = (tally.module == tally.module[first.site]) & (tally.role == ROLES.index(role))
    names = ("rank", "micro_step", "call")
    culprit = tally.columns.take([first.row], names)
    filters = [_equal("step", first.step), *(_equal(name, culprit[name][0]) for name in names)]
    filters.append(Filter("site", lambda values: np.isin(values, np.flatnonzero(sites))))
    return tally.columns.where(filters, ())[0]


def _equal(column: str, value: Any) -> Filter:
    return Filter(column, lambda values: values == value)
