"""What is known of each site, kept up to date block by block.

A live view asks several times a second, and a run only grows: so every record is read once, in
vectorised passes over what was added since the last time, and the answers stand ready per site.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis import alarms, words
from probe_nb.analysis.changes import Changes
from probe_nb.analysis.firsts import Firsts
from probe_nb.analysis.grouping import Groups, starts, together
from probe_nb.analysis.opening import Opening
from probe_nb.analysis.origins import Origins
from probe_nb.analysis.thresholds import DEFAULTS, Thresholds
from probe_nb.analysis.uncounted import judged
from probe_nb.analysis.window import WINDOW, Window, longer
from probe_nb.store.blocks import parts
from probe_nb.store.columns import Columns
from probe_nb.store.table import ABSENT, Arrays
from probe_nb.terms import COUNTS, DIRECTIONS, ROLES, STATISTICS, STATUSES, Site

KEPT: Final = (
    *("step", "numel", *STATISTICS, *COUNTS, "status", "dtype", "shape", "device"),
    *("training", "requires_grad"),
)
_OF_PARAMETERS: Final = frozenset({"param", "param_grad", "update", "state"})
_BEGIN: Final = ("step", "finite", "total", "square")
_AT_ONCE: Final = WINDOW // 2
"""Steps that are taken in at a time."""
_FAR: Final = np.iinfo(np.int64).max
_OPEN: Final = 4
"""Steps whose first order number is remembered: late records may still belong to them."""


class Tally:
    """Per-site state of a run, built from its columns.

    Attributes:
        rows: The number of the row to read next.
        records: How many were read.
        statuses: How many of them have each status.
        latest: Column name to one value per site, of the latest record: the last step in which
            the site was seen, and in it the call with most non-finite elements, else the last
            call. Statistics that are absent are NaN, counts -1, and `row` is -1 where nothing was
            recorded. Besides `KEPT`: `row`, `order` (first order number, counted from the
            step's first record), `calls`, `quiet` (non-finite on purpose: see `alarms`).
        firsts: The first records of each kind of alarm.
        origins: Where the first NaN or Inf was born, and how gradients fare under a loss scale.
        window: The last steps of each site.
        hist_start: Where the histogram of each site's latest record begins in `hist_bins` and
            `hist_counts`; they lie there in the order of the sites, without gaps.
        hist_size: How many bins it has.
        module: Number of the module of each site, as in `modules`; a function that is called in a
            module has a number of its own, for what it is fed is not what the module is fed.
        listed: The modules without what only optimizers have rows of.
        type: Number of the class of each site's module, as in `types`.
        parameter: Number of the parameter that a site belongs to, as in `parameters`; -1 if to
            none. Its value, its gradients, its update and its state have the same.
        held: Whether a site is what `.grad` holds, and not what a backward adds.
        begin: What the window had of each site's first step, and its number: `step`, -1 if none.
        begun: How often that has changed.
        opening: How large each site was in the first steps of the run.
    """

    def __init__(self, columns: Columns, limits: Thresholds = DEFAULTS) -> None:
        """Start with nothing read."""
        self.columns = columns
        self.limits = limits
        self.rows = 0
        self.records = 0
        self.statuses = np.zeros(len(STATUSES), np.int64)
        self.sites = 0
        self.steps: set[int] = set()
        self.modules: dict[tuple[str, str, str], int] = {}
        self.listed: set[tuple[str, str]] = set()
        self.several_models = False
        self.types: dict[str, int] = {}
        self.parameters: dict[tuple[str, str, str], int] = {}
        self.module = np.empty(0, np.int32)
        self.type = np.empty(0, np.int32)
        self.parameter = np.empty(0, np.int32)
        self.held = np.empty(0, np.bool_)
        self.direction = np.empty(0, np.int8)
        self.role = np.empty(0, np.int8)
        self.latest: Arrays = {name: np.empty(0, np.float64) for name in STATISTICS}
        for name in (*KEPT, "row", "order", "calls"):
            self.latest.setdefault(name, np.empty(0, np.int64))
        self.latest["quiet"] = np.empty(0, np.bool_)
        self.firsts = {kind: Firsts() for kind in alarms.KINDS}
        self.origins = Origins(columns)
        self.scaler = self.origins.scaler
        self.window = Window()
        self.changes = Changes(limits)
        self.begin: Arrays = {name: np.empty(0) for name in _BEGIN}
        self.begun = 0
        self.opening = Opening()
        self.ranks: set[int] = set()
        self.hist_start = np.empty(0, np.int64)
        self.hist_size = np.empty(0, np.int64)
        self.hist_bins = np.empty(0, np.uint16)
        self.hist_counts = np.empty(0, np.float32)
        self._bases: dict[int, int] = {}

    def read(self) -> bool:
        """Take in what was added since the last time; tell whether there was anything."""
        before = self.rows
        for first, block in self.columns.chunks(before):
            self._read(first, block)
        return self.rows > before

    def stops(self, ends: Sequence[int]) -> Iterator[int]:
        """Read like `read`, up to each of these rows, which rise; yield each when it is reached."""
        left = [*ends]
        for first, block in self.columns.chunks(self.rows):
            stops = [max(stop, first) for stop in left if stop <= first + len(block["step"])]
            left = left[len(stops) :]
            cuts = [0, *(stop - first for stop in stops), len(block["step"])]
            for at, part in enumerate(parts(block, cuts)):
                self._read(first + cuts[at], part)
                if at < len(stops):
                    yield stops[at]

    def _read(self, first: int, block: Arrays) -> None:
        if not len(block["step"]):
            return
        self.rows = first  # where files of a run were removed, numbers are left out
        for piece in _pieces(block):
            with np.errstate(over="ignore", invalid="ignore"):  # sizes beyond 1e154
                self._take_in(piece)
            self.records += len(piece["step"])

    def _take_in(self, block: Arrays) -> None:
        self._grow(int(block["site"].max()) + 1)
        groups = Groups(block["site"], block["step"])
        self.steps.update(groups.steps.tolist())
        known = judged(block)
        found = alarms.find(
            *(known, self.role, self.direction, self.module, self._limits()),
            headroom=self.limits.overflow_headroom,
        )
        for kind, rows in found.of_kind.items():
            self.firsts[kind].add(block, rows, self.rows)
        self.origins.add(known, self.rows)
        self.window.add(known, groups, found.loud)
        self._take_begin(groups)
        self.opening.add(self.window, groups.steps)
        self.changes.judge(self.window, self.role, self.direction)
        self.ranks.update(block["rank"][starts(block["rank"])].tolist())
        taken, records = self._take_latest(block, groups, found)
        self._take_histograms(block, taken, records)
        self.statuses += np.bincount(block["status"], minlength=len(STATUSES))
        self.rows += len(block["step"])

    # -- sites -----------------------------------------------------------------------------------

    def _grow(self, number: int) -> None:
        """Make room for the sites up to `number`."""
        extra = number - self.sites
        if extra <= 0:
            return
        new = self.columns.tables.sites.values[self.sites : number]
        modules = [s for s in new if words.is_inside(s) and not words.is_optimizer(s)]
        self.listed.update((s.model, s.module) for s in modules)
        keys = [(s.model, s.module, s.api if words.is_function(s) else "") for s in new]
        ids = [self.modules.setdefault(key, len(self.modules)) for key in keys]
        kinds = [self.types.setdefault(s.type, len(self.types)) for s in new]
        self.type = np.append(self.type, np.array(kinds, np.int32))
        owned = [self._parameter(site) for site in new]
        self.parameter = np.append(self.parameter, np.array(owned, np.int32))
        held = ["grad" in site.leaf.split(".")[1:] for site in new]
        self.held = np.append(self.held, np.array(held, np.bool_))
        self.several_models = len({model for model, _, _ in self.modules if model}) > 1
        self.module = np.append(self.module, np.array(ids, np.int32))
        self.role = np.append(self.role, np.array([ROLES.index(s.role) for s in new], np.int8))
        ways = np.array([DIRECTIONS.index(s.direction) for s in new], np.int8)
        self.direction = np.append(self.direction, ways)
        for name, values in self.latest.items():
            empty: Any = np.nan if name in STATISTICS else (0 if name == "quiet" else ABSENT)
            self.latest[name] = longer(values, extra, empty)
        for kind in self.firsts.values():
            kind.grow(extra)
        for name, values in self.begin.items():
            self.begin[name] = longer(values, extra, ABSENT if name == "step" else 0.0)
        self.window.grow(extra)
        self.changes.grow(extra)
        self.hist_start = longer(self.hist_start, extra, len(self.hist_bins))
        self.hist_size = longer(self.hist_size, extra, 0)
        self.sites = number

    def _parameter(self, site: Site) -> int:
        if site.role not in _OF_PARAMETERS or site.api:
            return ABSENT
        key = (site.model, site.module, site.leaf.split(".")[0])
        return self.parameters.setdefault(key, len(self.parameters))

    def _limits(self) -> NDArray[np.float64]:
        """Return the largest finite value of each dtype code, NaN where it has none."""
        nothing = (0, 0, np.nan)
        names = self.columns.tables.dtypes.values
        return np.array([*(alarms.LIMITS.get(name, nothing)[2] for name in names), np.nan])

    def _take_begin(self, groups: Groups) -> None:
        """Copy what the window has of the first step of each site of a block."""
        begin, steps = self.begin, self.window.steps
        known = begin["step"][groups.site]
        first = (known < 0) | (groups.step <= known)
        if not first.any():
            return
        site, step = groups.site[first], groups.step[first]
        np.minimum.at(begin["step"], site[begin["step"][site] >= 0], step[begin["step"][site] >= 0])
        fresh = begin["step"][site] < 0
        begin["step"][site[fresh][::-1]] = step[fresh][::-1]  # the earliest is written last
        mine = (step == begin["step"][site]) & (step >= steps[0])
        self.begun += int(mine.any())
        site, place = site[mine], np.searchsorted(steps, step[mine])
        for name in _BEGIN[1:]:
            begin[name][site] = self.window[name][site, place]

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
        latest, sites = self.latest, together(site)
        known = latest["step"][sites]
        newer, same = step > known, step == known
        latest["calls"][sites] = np.where(newer, calls, latest["calls"][sites] + calls * same)
        latest["order"][sites] = np.where(newer, order, latest["order"][sites])
        if not newer.all():
            taken = newer | (same & (found.bad_count[record] >= _bad(latest, site)))
            site, record = site[taken], record[taken]
            sites = together(site)
        records = together(record)
        for name in KEPT:
            latest[name][sites] = block[name][records]
        latest["row"][sites] = self.rows + record
        latest["quiet"][sites] = found.quiet[records]
        return site, record

    def _base(self, block: Arrays, groups: Groups) -> NDArray[np.int64]:
        """Return the first order number of each step of the block."""
        found = np.full(len(groups.steps), _FAR)
        np.minimum.at(found, groups.place, block["order"].astype(np.int64))
        for number, step in enumerate(groups.steps.tolist()):
            found[number] = min(int(found[number]), self._bases.get(step, int(found[number])))
        recent = zip(groups.steps[-_OPEN:].tolist(), found[-_OPEN:].tolist(), strict=True)
        self._bases.update(recent)
        for step in sorted(self._bases)[:-_OPEN]:
            del self._bases[step]
        return found

    def _take_histograms(
        self, block: Arrays, sites: NDArray[np.int64], records: NDArray[np.intp]
    ) -> None:
        """Put the histograms of these records in the place of the older ones, end to end."""
        sizes = block["hist_size"].astype(np.int64)
        begins = np.cumsum(sizes) - sizes
        fresh_bins, fresh_counts = block["hist_bins"], block["hist_counts"].astype(np.float32)
        if len(sites) == self.sites:  # none of the older ones stays
            self.hist_bins, self.hist_counts = fresh_bins[:0], fresh_counts[:0]
            if len(records) == len(sizes) and (np.diff(records) == 1).all():
                self.hist_start, self.hist_size = begins, sizes  # they lie there as they should
                self.hist_bins, self.hist_counts = fresh_bins, fresh_counts
                return
        self.hist_start[sites] = len(self.hist_bins) + begins[records]
        self.hist_size[sites] = sizes[records]
        bins = np.concatenate([self.hist_bins, fresh_bins])
        counts = np.concatenate([self.hist_counts, fresh_counts])
        index, begins = cut(self.hist_start, self.hist_size)
        self.hist_bins, self.hist_counts, self.hist_start = bins[index], counts[index], begins


def _pieces(block: Arrays) -> Iterator[Arrays]:
    """Yield a block in pieces of few steps, so that each step is judged beside those before it."""
    step = block["step"]
    if step.max() - step.min() < _AT_ONCE:
        yield block
        return
    newest = np.maximum.accumulate(step)
    steps = starts(newest)
    yield from parts(block, [*steps[::_AT_ONCE].tolist(), len(newest)])


def cut(
    start: NDArray[np.int64], size: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of ragged rows, one after the other, and where each then begins."""
    ends = np.cumsum(size)
    begins = ends - size
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(start - begins, size), begins


def _bad(latest: Arrays, site: NDArray[np.int64]) -> NDArray[np.int64]:
    total = latest["nan_count"][site] + latest["posinf_count"][site] + latest["neginf_count"][site]
    known: NDArray[np.int64] = np.maximum(total, -1)  # three counts that are absent make -3
    return known
