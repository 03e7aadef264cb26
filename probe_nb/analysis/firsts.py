"""When each kind of alarm happened first, in the whole run and at each site."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.window import longer
from probe_nb.store.table import ABSENT, Arrays


@dataclass(frozen=True)
class First:
    """The first record of a kind in execution order."""

    step: int
    order: int
    row: int
    site: int

    def before(self, other: First | None) -> bool:
        """Tell whether this one came first."""
        return other is None or (self.step, self.order) < (other.step, other.order)


class Firsts:
    """The first records of one kind of alarm.

    Attributes:
        overall: The first of all, None if there is none.
        step: The first step of each site, -1 if there is none.
        order: The order number of that record.
        row: The number of that record.
    """

    def __init__(self) -> None:
        """Start without a site."""
        self.overall: First | None = None
        self.step = np.empty(0, np.int64)
        self.order = np.empty(0, np.int64)
        self.row = np.empty(0, np.int64)

    def grow(self, extra: int) -> None:
        """Add sites."""
        for name in ("step", "order", "row"):
            setattr(self, name, longer(getattr(self, name), extra, ABSENT))

    def add(self, block: Arrays, rows: NDArray[np.intp], offset: int) -> None:
        """Take in the alarming rows of a block whose first record has the number `offset`."""
        if not len(rows):
            return
        step, order, site = block["step"], block["order"], block["site"]
        known = self.step[site[rows]]
        rows = rows[(known < 0) | (step[rows] <= known)]  # the others cannot be first
        if not len(rows):
            return
        rows = rows[np.lexsort((order[rows], step[rows]))]
        head = int(rows[0])
        first = First(int(step[head]), int(order[head]), offset + head, int(site[head]))
        if first.before(self.overall):
            self.overall = first
        sites, where = np.unique(site[rows], return_index=True)
        rows = rows[where]
        old_step, old_order = self.step[sites], self.order[sites]
        earlier = (step[rows] < old_step) | ((step[rows] == old_step) & (order[rows] < old_order))
        new = (old_step < 0) | earlier
        sites, rows = sites[new], rows[new]
        self.step[sites], self.order[sites], self.row[sites] = (
            step[rows],
            order[rows],
            offset + rows,
        )
