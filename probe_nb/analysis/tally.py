"""What is known of each site, kept up to date block by block.

A live view asks several times a second, and a run only grows: so every record is read once, in
vectorised passes over what was added since the last time, and the answers stand ready per site.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis import alarms
from probe_nb.analysis.grouping import Groups
from probe_nb.store.columns import Columns
from probe_nb.store.table import ABSENT, Arrays
from probe_nb.terms import COUNTS, DIRECTIONS, ROLES, STATISTICS

WINDOW: Final = 32
"""Steps that trends look back on."""

KEPT: Final = ("step", "numel", *STATISTICS, *COUNTS, "status", "dtype", "shape", "device")
_OPEN: Final = 4
"""Steps whose first order number is remembered: late records may still belong to them."""


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


class Tally:
    """Per-site state of a run, built from its columns.

    Attributes:
        latest: Column name to one value per site, of the latest record: the last step in which
            the site was seen, and in it the call with most non-finite elements, else the last
            call. Statistics that are absent are NaN, counts -1, and `row` is -1 where nothing was
            recorded. Besides `KEPT`: `row`, `order` (first order number, counted from the
            step's first record), `calls`, `quiet` (non-finite on purpose: see `alarms`).
        steps: The last `WINDOW` steps, rising.
        peaks, sizes: Largest `absmax` and `l2` per site and step of `steps`, NaN where absent; a
            peak is +Inf where the step had non-finite elements.
        zeros: 1 where every element of the step was zero, 0 where not, -1 where absent.
        firsts: Per alarm kind the first record of all.
        first_step, first_row: Per alarm kind and site, -1 where it never happened.
    """

    def __init__(self, columns: Columns) -> None:
        """Start with nothing read."""
        self.columns = columns
        self.rows = 0
        self.sites = 0
        self.all_steps: set[int] = set()
        self.latest: Arrays = {name: np.empty(0, np.float64) for name in (*STATISTICS, "calls")}
        for name in (*KEPT, "row", "order"):
            self.latest.setdefault(name, np.empty(0, np.int64))
        self.latest["quiet"] = np.empty(0, np.bool_)
        self.direction = np.empty(0, np.int8)
        self.role = np.empty(0, np.int8)
        self.module = np.empty(0, np.int32)
        self.modules: dict[tuple[str, str], int] = {}
        self.steps = np.empty(0, np.int64)
        self.peaks = np.empty((0, 0))
        self.sizes = np.empty((0, 0))
        self.zeros = np.empty((0, 0), np.int8)
        self.firsts: dict[str, First] = {}
        self.first_step = {kind: np.empty(0, np.int64) for kind in alarms.KINDS}
        self.first_order = {kind: np.empty(0, np.int64) for kind in alarms.KINDS}
        self.first_row = {kind: np.empty(0, np.int64) for kind in alarms.KINDS}
        self.scaler = alarms.ScalerSteps()
        self.hist_start = np.empty(0, np.int64)
        self.hist_size = np.empty(0, np.int64)
        self.hist_bins = np.empty(0, np.uint16)
        self.hist_counts = np.empty(0, np.float32)
        self._bases: dict[int, int] = {}

    def read(self) -> bool:
        """Take in what was added since the last time; tell whether there was anything."""
        block = self.columns.tail(self.rows)
        number = len(block["step"])
        if not number:
            return False
        self._grow(int(block["site"].max()) + 1)
        groups = Groups(block["site"], block["step"])
        self.all_steps.update(groups.steps.tolist())
        found = alarms.find(block, self.role, self.direction, self.module, self._limits())
        for kind, rows in found.of_kind.items():
            self._note(kind, block, rows)
        self.scaler.add(block, found, self.rows)
        self._follow(block, groups, found.loud)
        taken, records = self._take_latest(block, groups, found)
        self._take_histograms(block, taken, records)
        self.rows += number
        return True

    # -- sites -----------------------------------------------------------------------------------

    def _grow(self, number: int) -> None:
        """Make room for the sites up to `number`."""
        extra = number - self.sites
        if extra <= 0:
            return
        new = self.columns.tables.sites.values[self.sites : number]
        ids = [self.modules.setdefault((s.model, s.module), len(self.modules)) for s in new]
        self.module = np.concatenate([self.module, np.array(ids, np.int32)])
        roles = np.array([ROLES.index(s.role) for s in new], np.int8)
        self.role = np.concatenate([self.role, roles])
        ways = np.array([DIRECTIONS.index(s.direction) for s in new], np.int8)
        self.direction = np.concatenate([self.direction, ways])
        for name, values in self.latest.items():
            empty: Any = np.nan if name in STATISTICS else (0 if name == "quiet" else ABSENT)
            self.latest[name] = _longer(values, extra, empty)
        for table in (self.first_step, self.first_order, self.first_row):
            for kind in table:
                table[kind] = _longer(table[kind], extra, ABSENT)
        self.peaks, self.sizes = (
            _longer(self.peaks, extra, np.nan),
            _longer(self.sizes, extra, np.nan),
        )
        self.zeros = _longer(self.zeros, extra, ABSENT)
        self.hist_start, self.hist_size = (
            _longer(self.hist_start, extra, 0),
            _longer(self.hist_size, extra, 0),
        )
        self.sites = number

    def _limits(self) -> NDArray[np.float64]:
        """Return the largest finite value of each dtype code, NaN where it has none."""
        known = [
            alarms.LIMITS.get(name, (0, 0, np.nan))[2] for name in self.columns.tables.dtypes.values
        ]
        return np.array([*known, np.nan])

    # -- what happened first ---------------------------------------------------------------------

    def _note(self, kind: str, block: Arrays, rows: NDArray[np.intp]) -> None:
        """Remember the first of these rows, of all and of each site."""
        if not len(rows):
            return
        step, order, site = block["step"], block["order"], block["site"]
        rows = rows[np.lexsort((order[rows], step[rows]))]
        head = rows[0]
        first = First(int(step[head]), int(order[head]), self.rows + int(head), int(site[head]))
        if first.before(self.firsts.get(kind)):
            self.firsts[kind] = first
        sites, where = np.unique(site[rows], return_index=True)
        rows = rows[where]
        old_step, old_order = self.first_step[kind][sites], self.first_order[kind][sites]
        earlier = (step[rows] < old_step) | ((step[rows] == old_step) & (order[rows] < old_order))
        new = (old_step < 0) | earlier
        self.first_step[kind][sites[new]] = step[rows[new]]
        self.first_order[kind][sites[new]] = order[rows[new]]
        self.first_row[kind][sites[new]] = self.rows + rows[new]

    # -- trends ----------------------------------------------------------------------------------

    def _follow(self, block: Arrays, groups: Groups, loud: NDArray[np.bool_]) -> None:
        """Write the new steps into the trends and let the oldest go."""
        self._shift(groups.steps)
        peak = np.where(loud, np.inf, block["absmax"])
        zero = (block["zero_count"] == block["numel"]) & (block["numel"] > 0)
        inside = groups.step >= self.steps[0]
        site = groups.site[inside]
        place = np.searchsorted(self.steps, groups.step[inside])
        for table, values in ((self.peaks, peak), (self.sizes, block["l2"])):
            table[site, place] = np.fmax(table[site, place], groups.fmax(values)[inside])
        fresh, old = groups.min(zero.astype(np.int8))[inside], self.zeros[site, place]
        self.zeros[site, place] = np.where(old < 0, fresh, np.minimum(old, fresh))

    def _shift(self, steps: NDArray[np.int64]) -> None:
        wanted = np.union1d(self.steps, steps)[-WINDOW:]
        if np.array_equal(wanted, self.steps):
            return
        kept = np.isin(self.steps, wanted)
        place = np.searchsorted(wanted, self.steps[kept])
        for name, empty in (("peaks", np.nan), ("sizes", np.nan), ("zeros", ABSENT)):
            old = getattr(self, name)
            new = np.full((self.sites, len(wanted)), empty, old.dtype)
            new[:, place] = old[:, kept]
            setattr(self, name, new)
        self.steps = wanted

    # -- the latest record -----------------------------------------------------------------------

    def _take_latest(
        self, block: Arrays, groups: Groups, found: alarms.Found
    ) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
        """Replace what is older; return the sites that have a new record, and those records."""
        last = groups.last_of_site()
        site, step = groups.site[last], groups.step[last]
        order = (
            groups.min(block["order"])[last] - self._base(block, groups)[groups.step_place[last]]
        )
        record, calls = groups.worst(found.bad_count)[last], groups.count[last]
        latest = self.latest
        newer, same = step > latest["step"][site], step == latest["step"][site]
        worse = same & (found.bad_count[record] >= _bad(latest, site))
        latest["calls"][site] = np.where(same, latest["calls"][site], 0) + calls * (newer | same)
        latest["order"][site[newer]] = order[newer]
        taken = newer | worse
        site, record = site[taken], record[taken]
        for name in KEPT:
            latest[name][site] = block[name][record]
        latest["row"][site] = self.rows + record
        latest["quiet"][site] = found.quiet[record]
        return site, record

    def _base(self, block: Arrays, groups: Groups) -> NDArray[np.int64]:
        """Return the first order number of each step of the block."""
        found = np.full(len(groups.steps), np.iinfo(np.int64).max)
        np.minimum.at(found, groups.place, block["order"].astype(np.int64))
        for number, step in enumerate(groups.steps.tolist()):
            found[number] = min(int(found[number]), self._bases.get(step, int(found[number])))
        self._bases.update(
            zip(groups.steps[-_OPEN:].tolist(), found[-_OPEN:].tolist(), strict=True)
        )
        for step in sorted(self._bases)[:-_OPEN]:
            del self._bases[step]
        return found

    def _take_histograms(
        self, block: Arrays, sites: NDArray[np.int64], records: NDArray[np.intp]
    ) -> None:
        """Put the histograms of these records in the place of the older ones, end to end."""
        starts = np.cumsum(block["hist_size"], dtype=np.int64) - block["hist_size"]
        self.hist_start[sites] = len(self.hist_bins) + starts[records]
        self.hist_size[sites] = block["hist_size"][records]
        bins = np.concatenate([self.hist_bins, block["hist_bins"]])
        counts = np.concatenate([self.hist_counts, block["hist_counts"].astype(np.float32)])
        ends = np.cumsum(self.hist_size)
        begins = ends - self.hist_size
        total = int(ends[-1])
        index = np.arange(total) + np.repeat(self.hist_start - begins, self.hist_size)
        self.hist_bins, self.hist_counts, self.hist_start = bins[index], counts[index], begins


def _bad(latest: Arrays, site: NDArray[np.int64]) -> NDArray[np.int64]:
    names = ("nan_count", "posinf_count", "neginf_count")
    return sum(np.maximum(latest[name][site], 0) for name in names)  # type: ignore[return-value]


def _longer(values: NDArray[Any], extra: int, empty: float) -> NDArray[Any]:
    """Return `values` with `extra` more rows of `empty`."""
    more = np.full((extra, *values.shape[1:]), empty, values.dtype)
    return np.concatenate([values, more])
