"""Records grouped by site and step: one sort, then one reduction per question."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Groups:
    """The groups of a block, in rising order of site and, within a site, of step.

    Attributes:
        steps: The distinct steps of the block, rising.
        place: Number of the record's step within `steps`, one per record.
        site, step, step_place, count: One value per group.
    """

    def __init__(self, site: NDArray[Any], step: NDArray[Any]) -> None:
        """Sort records into groups."""
        self.steps, self.place = np.unique(step.astype(np.int64), return_inverse=True)
        key = site.astype(np.int64) * len(self.steps) + self.place
        self._by = np.argsort(key, kind="stable")
        key = key[self._by]
        self._start = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
        self.count = np.diff(np.append(self._start, len(key)))
        self._alone = len(self._start) == len(key)  # each record is a group: nothing to reduce
        self.site, self.step_place = np.divmod(key[self._start], len(self.steps))
        self.step = self.steps[self.step_place]

    def min(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the smallest value of each group."""
        found: NDArray[Any] = values[self._by]
        return found if self._alone else np.minimum.reduceat(found, self._start)

    def fmax(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the largest value of each group that is not NaN, NaN if none is there."""
        found: NDArray[np.float64] = values[self._by]
        return found if self._alone else np.fmax.reduceat(found, self._start)

    def sum(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the sum of each group."""
        found: NDArray[Any] = values[self._by]
        return found if self._alone else np.add.reduceat(found, self._start)

    def last(self) -> NDArray[np.intp]:
        """Return the last record of each group."""
        found: NDArray[np.intp] = self._by[self._start + self.count - 1]
        return found

    def worst(self, badness: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the record of each group with the greatest badness; the last of equals."""
        number = len(badness)
        score = badness[self._by] * number + np.arange(number)
        found = np.maximum.reduceat(score, self._start) % number
        records: NDArray[np.intp] = self._by[found]
        return records

    def last_of_site(self) -> NDArray[np.intp]:
        """Return the group of each site's last step."""
        return np.flatnonzero(np.concatenate([self.site[1:] != self.site[:-1], [True]]))
