"""The last steps of every site, side by side."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.grouping import Groups
from probe_nb.store.table import ABSENT, Arrays

WINDOW: Final = 32
"""Steps that trends look back on."""

_SLACK: Final = 3 * WINDOW
"""Columns to write on before the last `WINDOW` of them are moved back to the beginning."""


class Window:
    """Tables of sites and steps, of which the oldest steps fall off.

    Attributes:
        steps: The last `WINDOW` steps, rising.
    """

    def __init__(self) -> None:
        """Start without a site and without a step."""
        self.steps = np.empty(0, np.int64)
        self._end = 0
        self._peaks = np.empty((0, _SLACK))
        self._sizes = np.empty((0, _SLACK))
        self._zeros = np.empty((0, _SLACK), np.int8)

    @property
    def peaks(self) -> NDArray[np.float64]:
        """Largest `absmax` per site and step: NaN absent, +Inf if anything was not finite."""
        return self._peaks[:, self._begin : self._end]

    @property
    def sizes(self) -> NDArray[np.float64]:
        """Largest `l2` per site and step, NaN where absent."""
        return self._sizes[:, self._begin : self._end]

    @property
    def zeros(self) -> NDArray[np.int8]:
        """1 where every element of the step was zero, 0 where not, -1 where absent."""
        return self._zeros[:, self._begin : self._end]

    @property
    def _begin(self) -> int:
        return self._end - len(self.steps)

    def grow(self, extra: int) -> None:
        """Add sites."""
        self._peaks = longer(self._peaks, extra, np.nan)
        self._sizes = longer(self._sizes, extra, np.nan)
        self._zeros = longer(self._zeros, extra, ABSENT)

    def add(self, block: Arrays, groups: Groups, loud: NDArray[np.bool_]) -> None:
        """Write the steps of a block, where a record that is `loud` counts as infinite."""
        self._make_room(groups.steps)
        peak = np.where(loud, np.inf, block["absmax"])
        zero = np.where(block["zero_count"] < 0, 2, block["zero_count"] == block["numel"])
        zero[block["numel"] == 0] = 2
        inside = groups.step >= self.steps[0]
        site, place = groups.site[inside], np.searchsorted(self.steps, groups.step[inside])
        for table, values in ((self.peaks, peak), (self.sizes, block["l2"])):
            table[site, place] = np.fmax(table[site, place], groups.fmax(values)[inside])
        fresh, old = groups.min(zero.astype(np.int8))[inside], self.zeros[site, place]
        fresh = np.minimum(fresh, np.where(old < 0, 2, old))
        self.zeros[site, place] = np.where(fresh == 2, ABSENT, fresh)  # noqa: PLR2004 - no count

    def _make_room(self, steps: NDArray[np.int64]) -> None:
        """Let the tables end with these steps."""
        new = steps[~np.isin(steps, self.steps)][-WINDOW:]
        if not len(new):
            return
        if len(self.steps) and new[0] < self.steps[-1]:
            self._insert(new)
            return
        if self._end + len(new) > _SLACK:
            self._insert(new[:0])
        self._end += len(new)
        self.steps = np.concatenate([self.steps, new])[-WINDOW:]

    def _insert(self, steps: NDArray[np.int64]) -> None:
        """Lay the tables out anew, with steps between the old ones."""
        wanted = np.union1d(self.steps, steps)[-WINDOW:]
        kept = np.isin(self.steps, wanted)
        place = np.searchsorted(wanted, self.steps[kept])
        for name, empty in (("peaks", np.nan), ("sizes", np.nan), ("zeros", ABSENT)):
            old = getattr(self, name)
            new = np.full((len(old), _SLACK), empty, old.dtype)
            new[:, place] = old[:, kept]
            setattr(self, f"_{name}", new)
        self.steps, self._end = wanted, len(wanted)


def longer(values: NDArray[Any], extra: int, empty: float) -> NDArray[Any]:
    """Return `values` with `extra` more rows of `empty`."""
    more = np.full((extra, *values.shape[1:]), empty, values.dtype)
    return np.concatenate([values, more])
