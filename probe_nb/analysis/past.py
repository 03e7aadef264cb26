"""What a run knows of the time before a birth: when something was last finite, and who wrote it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from probe_nb.analysis.births import Birth
from probe_nb.analysis.uncounted import is_uncounted
from probe_nb.store.columns import Columns, Filter

_BAD = ("nan_count", "posinf_count", "neginf_count")


class Past:
    """The records of earlier steps that say how a parameter or buffer came to be as it is."""

    def __init__(self, columns: Columns, birth: Birth) -> None:
        """Look at these records when asked."""
        self._columns = columns
        self._birth = birth
        self._mine = _equal("rank", birth.rank)

    @cached_property
    def last(self) -> int:
        """The last step before in which it was read, and was finite; -1 if there is none."""
        birth = self._birth
        names = ("step", "nan_count", "status")
        _, found = self._columns.where([_equal("site", birth.code), self._mine], names)
        known = (found["nan_count"] >= 0) & ~is_uncounted(found["status"])
        earlier = found["step"][(found["step"] < birth.step) & known]
        return int(earlier.max(initial=-1))

    @cached_property
    def unseen(self) -> int:
        """How many steps were not recorded in which something may have written what was held."""
        if self._birth.why != "held" or self.last < 0:
            return 0
        last, now = self.last, self._birth.step
        between = Filter("step", lambda values: (values > last) & (values < now))
        seen = self._columns.where([between, self._mine], ("step",))[1]["step"]
        return now - last - 1 - len(np.unique(seen))

    def was_stepped(self) -> bool:
        """Tell whether it was recorded after an optimizer step when it was last finite."""
        mine = self._birth.site
        codes = [
            code
            for code, s in enumerate(self._columns.tables.sites.values)
            if s.direction == "optimizer"
            and s.role == "param"
            and (s.model, s.module, s.leaf) == (mine.model, mine.module, mine.leaf)
        ]
        filters = [_equal("step", self.last), Filter("site", lambda v: np.isin(v, codes))]
        filters.append(self._mine)
        return len(self._columns.where(filters, _BAD)[1]["nan_count"]) > 0

    def settings(self) -> list[str]:
        """Name the numbers of the optimizer itself that were not finite in that step."""
        sites = self._columns.tables.sites.values
        codes = [n for n, s in enumerate(sites) if s.direction == "optimizer" and s.api]
        filters = [_equal("step", self._birth.step), Filter("site", lambda v: np.isin(v, codes))]
        filters.append(self._mine)
        _, found = self._columns.where(filters, ("site", *_BAD))
        bad = sum(np.maximum(found[name], 0) for name in _BAD)
        leaves = dict.fromkeys(sites[code].leaf for code in found["site"][np.asarray(bad) > 0])
        return [f"`{leaf}`" for leaf in leaves]


def _equal(column: str, value: Any) -> Filter:
    return Filter(column, lambda values: values == value)
