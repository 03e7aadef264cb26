"""The last steps of every site, side by side."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.grouping import Groups, together
from probe_nb.store.table import ABSENT, Arrays

WINDOW: Final = 32
"""Steps that trends look back on."""

_SLACK: Final = 2 * WINDOW
"""Columns to write on before the last `WINDOW` of them are moved back to the beginning."""

_EMPTY: Final = {
    "peaks": np.nan,
    "last": np.nan,
    **dict.fromkeys(("counted", "finite", "total", "square", "zero", "small"), 0.0),
}
"""What stands in each table where a site was not seen."""

Table = NDArray[np.float64]


class Window:
    """Tables of sites and steps, of which the oldest steps fall off.

    What is kept adds up or is a maximum, so that it does not matter in how many pieces a step
    came, and mean, rms and shares of a whole step follow from it exactly.

    Attributes:
        steps: The last `WINDOW` steps, rising.
    """

    def __init__(self) -> None:
        """Start without a site and without a step."""
        self.steps = np.empty(0, np.int64)
        self._end = 0
        # a step is written at a time, so its numbers lie side by side in memory
        self._tables = {name: np.empty((_SLACK, 0)) for name in _EMPTY}

    def __getitem__(self, name: str) -> Table:
        """Return one table, one row per site and one column per step.

        `peaks`: largest absmax, NaN absent, +Inf if anything was not finite on no purpose.
        `last`: l2 of the last record. `counted`: elements that were counted, of which `zero` are
        zero and `small` subnormal. `finite`: elements behind `total`, their sum, and `square`, the
        sum of their squares.
        """
        return self._tables[name][self._begin : self._end].T

    @property
    def peaks(self) -> Table:
        """Largest `absmax` per site and step: NaN absent, +Inf if anything was not finite."""
        return self["peaks"]

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Tell at which steps a site has numbers."""
        return ~np.isnan(self.peaks)

    @property
    def sizes(self) -> Table:
        """The l2 of all that a site held in a step, NaN where absent."""
        sizes: Table = np.where(self["finite"] > 0, np.sqrt(self["square"]), np.nan)
        return sizes

    @property
    def zeros(self) -> NDArray[np.int8]:
        """1 where every element of the step was zero, 0 where not, -1 where absent."""
        counted, zero = self["counted"], self["zero"]
        return np.where(counted > 0, zero == counted, ABSENT).astype(np.int8)

    def rms(self, sites: Any = slice(None)) -> Table:
        """Return the root mean square of the finite elements, NaN where absent."""
        return np.sqrt(self.mean_square(sites))

    def mean_square(self, sites: Any = slice(None)) -> Table:
        """Return the mean square of the finite elements, NaN where absent."""
        return _share(self["square"][sites], self["finite"][sites])

    def means(self, sites: Any = slice(None)) -> Table:
        """Return the mean of the finite elements, NaN where absent."""
        return _share(self["total"][sites], self["finite"][sites])

    def zero_share(self, sites: Any = slice(None)) -> Table:
        """Return which share of the elements is zero, NaN where none was counted."""
        return _share(self["zero"][sites], self["counted"][sites])

    def small_share(self, sites: Any = slice(None)) -> Table:
        """Return which share of the elements that are not zero is subnormal."""
        return _share(self["small"][sites], self["counted"][sites] - self["zero"][sites])

    @property
    def _begin(self) -> int:
        return self._end - len(self.steps)

    def grow(self, extra: int) -> None:
        """Add sites."""
        self._tables = {
            name: np.concatenate([table, np.full((_SLACK, extra), _EMPTY[name])], axis=1)
            for name, table in self._tables.items()
        }

    def add(self, block: Arrays, groups: Groups, loud: NDArray[np.bool_]) -> None:
        """Write the steps of a block, where a record that is `loud` counts as infinite."""
        self._make_room(groups.steps)
        tables = {name: table.reshape(-1) for name, table in self._tables.items()}
        line = np.searchsorted(self.steps, groups.steps) + self._begin
        at = line[groups.step_place] * self._tables["peaks"].shape[1] + groups.site
        inside: Any = slice(None)
        if groups.steps[0] < self.steps[0]:
            inside = groups.step >= self.steps[0]
            at = at[inside]
        at = together(at)
        fresh = groups.fmax(np.where(loud, np.inf, block["absmax"]))[inside]
        tables["peaks"][at] = np.fmax(tables["peaks"][at], fresh)
        last = block["l2"][groups.last()][inside]
        tables["last"][at] = np.where(np.isnan(last), tables["last"][at], last)
        for name, values in _summed(block).items():
            tables[name][at] += groups.sum(values)[inside]

    def _make_room(self, steps: NDArray[np.int64]) -> None:
        """Let the tables end with these steps."""
        later = not len(self.steps) or steps[0] > self.steps[-1]
        new = (steps if later else steps[~np.isin(steps, self.steps)])[-WINDOW:]
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
        for name, empty in _EMPTY.items():
            old = self[name].T[kept]
            self._tables[name][:] = empty
            self._tables[name][place] = old
        self.steps, self._end = wanted, len(wanted)


def _summed(block: Arrays) -> dict[str, NDArray[np.float64]]:
    """Return what adds up over the records of a step."""
    numel = block["numel"]
    bad = sum(np.maximum(block[n], 0) for n in ("nan_count", "posinf_count", "neginf_count"))
    there = ~np.isnan(block["l2"])
    finite = np.where(there, numel - bad, 0)
    counted = block["zero_count"] >= 0
    square = np.where(there, block["l2"] ** 2, 0.0)  # infinite beyond 1e154
    return {
        "counted": np.where(counted, numel, 0.0),
        "finite": finite.astype(np.float64),
        "total": np.where(there, block["mean"] * finite, 0.0),
        "square": square,
        "zero": np.where(counted, block["zero_count"], 0.0),
        "small": np.maximum(block["subnormal_count"], 0).astype(np.float64),
    }


def _share(part: Table, whole: Table) -> Table:
    shares: Table = np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > 0)
    return shares


def longer(values: NDArray[Any], extra: int, empty: float) -> NDArray[Any]:
    """Return `values` with `extra` more rows of `empty`."""
    more = np.full((extra, *values.shape[1:]), empty, values.dtype)
    return np.concatenate([values, more])
