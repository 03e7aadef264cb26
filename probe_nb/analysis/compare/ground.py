"""What the search for sources stands on: the pairs, their calls, and how values are joined."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe_nb.analysis.calls import paths_around
from probe_nb.analysis.compare.calls import FAR, NONE, CallTree, Places
from probe_nb.analysis.compare.measures import Measured
from probe_nb.store.table import Arrays

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Rows = NDArray[np.intp]
Owns = Callable[[str, str], bool]
"""Tells of a model and the path of a module whether it has parameters, or may have some."""

GAIN: Final = 16.0
"""By how much a forward call may enlarge a relative difference that came in. A linear map enlarges
noise as it enlarges the signal, so by about 1; what cancels, and so enlarges, is accounted for by
the scale of what came in. Ours, from healthy pairs (docs/compare.md)."""

GAIN_BACK: Final = 64.0
"""The same in the backward and at the optimizer, where signals cancel more: sums over a batch,
gradients of a loss near its minimum, the division by a root in Adam."""


class Ground:
    """All pairs, and what is found out about each.

    Attributes:
        e: Largest relative difference of each pair, 0 where it is not known.
        data: The columns of both runs, pair by pair.
        training: Which are of modules in training mode.
        scale: Root mean square of each.
        floats: Which are no whole numbers.
        numel: Elements of each.
        fan_in, fan_out, leading: Of a weight: terms in a sum of the forward, in one of the
            backward, and the size of its first dimension.
        came_in: Largest relative difference of the sources; NaN where there are none.
        reference: Scale of what came in, 0 where that says nothing.
        gain: By how much a difference that came in may grow.
        noise: What only noise has moved.
        owns: Whether a module has parameters.
    """

    def __init__(  # noqa: PLR0917
        self,
        places: Places,
        tree: CallTree,
        found: Measured,
        data: tuple[Arrays, Arrays],
        shapes: list[tuple[int, ...]],
        counts: Floats,
        owns: Owns,
    ) -> None:
        """Begin with what was measured; each difference `counts` so many times."""
        self.places, self.tree, self.found, self.owns = places, tree, found, owns
        self.data = data
        self.e = np.nan_to_num(found.difference, nan=0.0, posinf=np.inf) * counts
        self.scale: Floats = found.scale
        self.training: Flags = data[0]["training"] == 1
        self.floats: Flags = found.unit > 0
        self.numel = np.maximum(data[0]["numel"], 1).astype(np.float64)
        fans = [[_fan_in(s), s[0] if s else 1, s[1] if len(s) > 1 else 1] for s in shapes]
        table = np.array([*fans, [0, 1, 1]], np.float64)[data[0]["shape"]]
        self.fan_in: Floats = table[:, 0]
        self.leading: Floats = np.maximum(table[:, 1], 1.0)
        self.fan_out: Floats = self.numel / np.maximum(table[:, 2], 1.0)
        self.came_in: Floats = np.full(len(self.e), np.nan)
        self.reference: Floats = np.zeros(len(self.e))
        self.gain: Floats = np.full(len(self.e), GAIN)
        self.noise: Flags = np.zeros(len(self.e), np.bool_)

    @cached_property
    def _modules(self) -> tuple[int, Ints]:
        """The modules of each step, numbered, and the number of each pair's."""
        width = int(self.places.module.max(initial=0)) + 1
        return numbered(self.places.moment * width + self.places.module)

    @cached_property
    def home(self) -> Ints:
        """The module of each pair, or the next one around it that is called."""
        places = self.places
        called = set(self.tree.module.tolist())
        known: dict[tuple[str, str], int] = {}
        for site in places.sites:
            known.setdefault((site.model, site.module), len(known))
        homes = []
        for site in places.sites:
            paths = (site.module, *paths_around(site.module, ""))
            around = (known.get((site.model, path), NONE) for path in paths)
            homes.append(next((m for m in around if m in called), known[site.model, site.module]))
        return np.array(homes, np.int64)[places.site]

    def of_homes(self, rows: Flags, values: Floats) -> Floats:
        """Return the largest value of the calls of each pair's module, or of that around it."""
        count, place = self._modules
        found = np.zeros(count)
        np.maximum.at(found, place[rows], values[rows])
        at, there = self._at_home
        return np.where(there, found[at], 0.0)

    @cached_property
    def _at_home(self) -> tuple[Ints, Flags]:
        """Where among the modules of each step the home of each pair is, and whether it is."""
        width = int(self.places.module.max(initial=0)) + 1
        known = np.unique(self.places.moment * width + self.places.module)
        wanted = self.places.moment * width + self.home
        at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        return at, known[at] == wanted

    def of_modules(self, rows: Flags, values: Floats) -> Floats:
        """Return the largest value of each module and step, for every pair of the same."""
        count, place = self._modules
        found = np.zeros(count)
        np.maximum.at(found, place[rows], values[rows])
        return found[place]

    def of_steps(self, rows: Flags, values: Floats) -> Floats:
        """Return the largest value of some pairs of each step, for every pair of the step."""
        moment = self.places.moment
        found = np.zeros(int(moment.max(initial=0)) + 1)
        np.maximum.at(found, moment[rows], values[rows])
        return found[moment]

    def of_sites(self, flags: list[bool]) -> Flags:
        """Give each pair what is said of its site."""
        found: Flags = np.array(flags, np.bool_)[self.places.site]
        return found

    def so_far(self, rows: Flags, values: Floats | None = None) -> Floats:
        """Return the largest difference of some pairs before each pair, in its process."""
        places = self.places
        by = np.lexsort((places.order, places.process))
        process = places.process[by]
        largest = running(np.where(rows, self.e if values is None else values, 0.0)[by], process)
        new = np.append([True], process[1:] != process[:-1])[: len(by)]
        found = np.empty(len(by))
        found[by] = np.where(new, 0.0, np.append([0.0], largest[:-1])[: len(by)])
        return found

    @cached_property
    def weights(self) -> Flags:
        """The pairs of parameters that make sums of several terms."""
        return self.places.are("param", direction="forward") & (self.fan_in > 1)

    @cached_property
    def around(self) -> Ints:
        """Of each call a number of what is around it: its parent, or its process."""
        first = int(self.places.process.max(initial=0)) + 1
        parent = self.tree.parent
        return np.where(parent >= 0, parent + first, self.tree.process)

    def before(
        self, rows: Rows, ended: Ints, largest: Floats, last: Floats
    ) -> tuple[Floats, Floats, Flags]:
        """Return what is known of the calls with the same parent that ended before each pair.

        Args:
            rows: Pairs of calls.
            ended: Of each call when it ended, -1 or `FAR` if it did not.
            largest: Of each call; the largest of these calls is returned.
            last: Of each call; that of the last of these calls is returned.

        Returns:
            Both, and where there is such a call.
        """
        order, of_call = self.places.order, self.around
        group = of_call[self.tree.of[rows]]
        known = np.flatnonzero((ended >= 0) & (ended < FAR))
        known = known[np.lexsort((ended[known], of_call[known]))]
        if not len(known):
            return np.zeros(len(rows)), np.zeros(len(rows)), np.zeros(len(rows), np.bool_)
        span = int(order.max(initial=0)) + 2
        stamps = of_call[known] * span + ended[known]
        place = np.searchsorted(stamps, group * span + order[rows]) - 1
        there = place >= 0
        place = np.maximum(place, 0)
        there &= of_call[known][place] == group
        so_far = running(largest[known], of_call[known])[place]
        return np.where(there, so_far, 0.0), np.where(there, last[known][place], 0.0), there


def _fan_in(shape: tuple[int, ...]) -> float:
    found = 1.0 if len(shape) > 1 else 0.0
    for size in shape[1:]:
        found *= size
    return found


def numbered(key: Ints) -> tuple[int, Ints]:
    """Return how many different numbers there are, and the place of each among them."""
    known, place = np.unique(key, return_inverse=True)
    return len(known), place.astype(np.int64)


def running(values: Floats, group: Ints) -> Floats:
    """Return the largest value so far within each group, of sorted groups."""
    so_far = pd.Series(values).groupby(group, sort=False).cummax()
    return np.asarray(so_far, np.float64)
