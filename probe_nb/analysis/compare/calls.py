"""The pairs as calls: what ran inside what and before what, for all steps at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.calls import paths_around
from probe_nb.analysis.compare.align import Side, _joined
from probe_nb.terms import DIRECTIONS, ROLES, Site

Rows = NDArray[np.intp]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

NONE: Final = -1
FAR: Final = 2**62
_OF_CALLS: Final = ("input", "output", "grad_output", "grad_input")


@dataclass(eq=False)
class Places:
    """Where each pair is: codes of what its site says.

    Attributes:
        role, direction: Places in `ROLES` and `DIRECTIONS`.
        module: A number for each module of each model.
        parameter: A number for each parameter (or buffer) of each module, by the first part of its
            leaf path.
    """

    sites: list[Site]
    site: Rows
    role: Ints
    direction: Ints
    module: Ints
    parameter: Ints
    order: Ints
    step: Ints
    moment: Ints
    """A number for each step of each rank."""
    process: Ints
    """A number for each rank."""
    recompute: Flags
    _known: dict[tuple[str | None, ...], Flags] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, side: Side, rows: Rows) -> Places:
        """Read the pairs on the side of the baseline."""
        data = {
            name: side.data[name][rows] for name in ("site", "order", "step", "rank", "recompute")
        }
        sites, site = side.sites, data["site"].astype(np.intp)
        modules: dict[tuple[str, str], int] = {}
        parameters: dict[tuple[str, str, str], int] = {}
        module = [modules.setdefault((s.model, s.module), len(modules)) for s in sites]
        parameter = [
            parameters.setdefault((s.model, s.module, s.leaf.split(".")[0]), len(parameters))
            for s in sites
        ]
        role = [ROLES.index(s.role) for s in sites]
        way = [DIRECTIONS.index(s.direction) for s in sites]
        codes = [np.array(each, np.int64)[site] for each in (role, way, module, parameter)]
        step = data["step"].astype(np.int64)
        process = data["rank"].astype(np.int64) + 1
        moment, _ = _joined(process, int(process.max(initial=0)) + 1, step)
        role_of, way_of, module_of, parameter_of = codes
        return cls(
            sites=sites,
            site=site,
            role=role_of,
            direction=way_of,
            module=module_of,
            parameter=parameter_of,
            order=data["order"],
            step=step,
            moment=moment,
            process=process,
            recompute=data["recompute"],
        )

    def are(self, *roles: str, direction: str | None = None) -> Flags:
        """Tell which pairs have one of these roles; not at the optimizer, unless it is asked for.

        It is asked for again and again: what is returned must not be changed.
        """
        key = (*roles, direction)
        if key not in self._known:
            ways = (direction,) if direction else DIRECTIONS[:2]
            found = [s.role in roles and s.direction in ways for s in self.sites]
            self._known[key] = np.array(found, np.bool_)[self.site]
        return self._known[key]


class CallTree:
    """The calls that the pairs are of.

    Attributes:
        of: The call of each pair, -1 for what belongs to none.
        module, begin, end, process, moment: Of each call.
        parent: The call around each, -1 for none.
    """

    def __init__(self, side: Side, rows: Rows, places: Places) -> None:
        """Sort the pairs into calls, and find what ran inside what."""
        self.places = places
        chosen = np.flatnonzero(places.are(*_OF_CALLS) & ~places.recompute)
        api = self._apis(places)
        key, limit = np.zeros(len(chosen), np.int64), 1
        for values in (
            places.moment[chosen],
            places.module[chosen],
            api[places.site[chosen]],
            side.data["micro_step"][rows][chosen].astype(np.int64),
            side.data["call"][rows][chosen].astype(np.int64),
        ):
            key, limit = _joined(key, limit, values)
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        self.of = np.full(len(rows), NONE, np.intp)
        self.of[chosen] = inverse
        self.first = chosen[first]
        self.count = len(first)
        self.module = places.module[self.first]
        self.api = api[places.site[self.first]]
        self.moment, self.process = places.moment[self.first], places.process[self.first]
        forward = places.are("input", "output") & (self.of >= 0)
        outputs = places.are("output") & (self.of >= 0)
        self.begin = self._least(forward, places.order)
        self.end = self.latest(outputs, places.order)
        self.end[self.end < 0] = FAR
        self.parent = self._parents()

    @staticmethod
    def _apis(places: Places) -> Ints:
        known: dict[str, int] = {"": 0}
        return np.array([known.setdefault(s.api, len(known)) for s in places.sites], np.int64)

    def _least(self, rows: Flags, values: Ints) -> Ints:
        found = np.full(self.count, FAR, np.int64)
        np.minimum.at(found, self.of[rows], values[rows])
        return found

    def latest(self, rows: Flags, values: Ints) -> Ints:
        """Return of each call the largest number of its pairs among these, -1 if it has none."""
        found = np.full(self.count, NONE, np.int64)
        np.maximum.at(found, self.of[rows], values[rows])
        return found

    def largest(self, rows: Flags, values: Floats) -> Floats:
        """Return of each call the largest value of its pairs among these; 0 where it has none."""
        found = np.zeros(self.count)
        rows = rows & (self.of >= 0)
        np.maximum.at(found, self.of[rows], values[rows])
        return found

    def inside(self, values: Floats) -> Floats:
        """Return of each call the largest value of the calls right inside it."""
        found = np.zeros(self.count)
        there = self.parent >= 0
        np.maximum.at(found, self.parent[there], values[there])
        return found

    def enters(self) -> Flags:
        """Tell which pairs are of a module with which a step begins, called inside no other."""
        top = np.flatnonzero((self.parent < 0) & (self.begin < FAR))
        top = top[np.lexsort((self.begin[top], self.moment[top]))]
        moments, places = np.unique(self.moment[top], return_index=True)
        begins = self.module[top[places]]
        calls = np.zeros(self.count + 1, np.bool_)  # the last is what belongs to no call
        calls[top] = self.module[top] == begins[np.searchsorted(moments, self.moment[top])]
        return calls[self.of]

    def _parents(self) -> Rows:
        """Return the innermost call of a module around each call that holds it in time."""
        parent = np.full(self.count, NONE, np.intp)
        whole = np.flatnonzero((self.api == 0) & (self.begin < FAR))
        whole = whole[np.lexsort((self.begin[whole], self.module[whole], self.moment[whole]))]
        if not len(whole):
            return parent
        of_whole = np.stack([self.moment[whole], self.module[whole]], axis=1)
        known = np.unique(of_whole, axis=0)
        keys = _numbered(known, *of_whole.T)
        span = int(self.places.order.max(initial=0)) + 2
        stamps = keys * span + self.begin[whole]
        begin = np.where(self.begin < FAR, self.begin, np.where(self.end < FAR, self.end, 0))
        last = np.where(self.end < FAR, self.end, begin)
        for around in self._around().T:
            rest = np.flatnonzero((parent < 0) & (around >= 0))
            wanted = _numbered(known, self.moment[rest], around[rest])
            place = np.searchsorted(stamps, wanted * span + begin[rest], "right") - 1
            there = (wanted >= 0) & (place >= 0)
            found, place = whole[np.maximum(place, 0)], np.maximum(place, 0)
            there &= (keys[place] == wanted) & (self.end[found] >= last[rest]) & (found != rest)
            parent[rest[there]] = found[there]
        return parent

    def _around(self) -> Ints:
        """Return the recorded modules around each call's, the innermost first; -1 ends them."""
        sites = self.places.sites
        known: dict[tuple[str, str], int] = {}
        for site in sites:
            known.setdefault((site.model, site.module), len(known))
        lists = [
            [
                known[s.model, path]
                for path in paths_around(s.module, s.api)
                if (s.model, path) in known
            ]
            for s in sites
        ]
        width = max(map(len, lists), default=0)
        table = np.array([each + [NONE] * (width - len(each)) for each in lists], np.int64)
        return table.reshape(len(sites), width)[self.places.site[self.first]]


def _numbered(known: Ints, moment: Ints, module: Ints) -> Ints:
    """Return the place of each pair of numbers in a sorted list of such pairs, -1 if none."""
    base = int(max(known[:, 1].max(), module.max(initial=0))) + 2
    flat = known[:, 0] * base + known[:, 1]
    wanted = moment * base + module
    place = np.minimum(np.searchsorted(flat, wanted), len(flat) - 1)
    return np.where(flat[place] == wanted, place, NONE)
