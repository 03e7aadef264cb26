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
        self.steps = np.array(sorted(set(step[starts(step)].tolist())), np.int64)
        self.place = np.searchsorted(self.steps, step)
        key = site.astype(np.int64) * len(self.steps) + self.place
        in_order = bool((key[1:] > key[:-1]).all())  # one step after the other, as a rule
        self._by = np.arange(len(key)) if in_order else np.argsort(key, kind="stable")
        self._sorted: Any = slice(None) if in_order else self._by
        self._start = self._by if in_order else starts(key[self._by])
        self._alone = len(self._start) == len(key)  # each record is a group: nothing to reduce
        one_each = np.ones(len(key), np.int64)
        self.count = one_each if self._alone else np.diff(self._start, append=len(key))
        first = self._sorted if self._alone else self._by[self._start]
        self.site, self.step_place = site[first].astype(np.int64), self.place[first]
        self.step = self.steps[self.step_place]

    def min(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the smallest value of each group."""
        found: NDArray[Any] = values[self._sorted]
        return found if self._alone else np.minimum.reduceat(found, self._start)

    def fmax(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the largest value of each group that is not NaN, NaN if none is there."""
        found: NDArray[np.float64] = values[self._sorted]
        return found if self._alone else np.fmax.reduceat(found, self._start)

    def sum(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the sum of each group."""
        found: NDArray[Any] = values[self._sorted]
        return found if self._alone else np.add.reduceat(found, self._start)

    def last(self) -> NDArray[np.intp]:
        """Return the last record of each group."""
        return self._by if self._alone else self._by[self._start + self.count - 1]

    def worst(self, badness: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the record of each group with the greatest badness; the last of equals."""
        if self._alone:
            return self._by
        number = len(badness)
        score = badness[self._by] * number + np.arange(number)
        found = np.maximum.reduceat(score, self._start) % number
        records: NDArray[np.intp] = self._by[found]
        return records

    def last_of_site(self) -> Any:
        """Return the group of each site's last step, as an index."""
        if len(self.steps) == 1:
            return slice(None)
        return np.append(starts(self.site)[1:], len(self.site)) - 1


def together(places: NDArray[np.intp]) -> Any:
    """Return places as a slice if each follows on the one before: that is read far faster."""
    if len(places) and (places[1:] - places[:-1] == 1).all():
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def starts(values: NDArray[Any]) -> NDArray[np.intp]:
    """Return where another value begins than the one before; there is one at least."""
    begins = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=begins[1:])
    return np.flatnonzero(begins)
