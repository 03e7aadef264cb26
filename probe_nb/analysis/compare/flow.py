"""What came into each value: the differences of what it was made of, and what they explain.

A difference is a fault of the call in which it arose. So each value is held against the largest
difference of its sources: a call's outputs against its inputs, parameters, buffers and what calls
inside it gave out; an input against what its parent was given and what earlier calls in it gave
out; gradients likewise, against the flow; a parameter or buffer against what moved it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe_nb.analysis.compare.backward import backward
from probe_nb.analysis.compare.calls import CallTree, Places
from probe_nb.analysis.compare.forward import forward
from probe_nb.analysis.compare.ground import Flags, Floats, Ground, Owns, running
from probe_nb.analysis.compare.measures import MEASURES, Measured
from probe_nb.analysis.compare.moved import moved
from probe_nb.store.table import Arrays
from probe_nb.terms import DIRECTIONS

_LEAST: Final = 1.0 / 256
"""The scale of what came in counts up to this many times the scale of what came out."""

_SINGLE: Final = 2.0**-24
_PARTIAL: Final = 4.0
"""Gradients of parameters of 16 bits may be summed by parts, each of which is rounded."""

_LAST: Final = 15
"""Results before a value that tell what is usual."""

WHOLE: Final = [MEASURES.index("tensor"), MEASURES.index("element")]
"""What kept tensors tell: it sees all that came in, of which statistics see a part."""

_UNSEEN: Final = 32.0
"""How many times larger a difference may be than its statistics show."""

_ROOM: Final = 4.0
"""How many times the root of the number of calls before it a value may be off by rounding."""


@dataclass(eq=False)
class Flow:
    """What speaks for and against each pair.

    Attributes:
        came_in: Largest relative difference of the sources; NaN where there are none.
        came_in_whole: The same where differences of whole tensors are held against it: one that
            was seen by statistics alone may be larger than it looks.
        share: By how much differences count less, because what came in was larger.
        own: What rounding explains, in units of the row's own tolerance: the coarsest format in
            the call.
        upstream: The same with the coarsest format of all calls before.
        depth: Calls that ended before, since the process began.
        gain: By how much what came in may have grown.
        noise: What is only moved by what rounding left of a gradient that is zero.
    """

    came_in: Floats
    came_in_whole: Floats
    share: Floats
    own: Floats
    upstream: Floats
    depth: Floats
    gain: Floats
    noise: Flags

    def beyond(self, found: Measured) -> Floats:
        """Return the largest difference in units of what is explained, of each pair."""
        result = np.zeros(len(self.share))
        rows = np.flatnonzero(~found.equal)
        ratio = np.fmax.reduce(self.times(found, rows), axis=0)
        result[rows] = np.nan_to_num(ratio, nan=0.0, posinf=np.inf)
        return result

    def times(self, found: Measured, rows: NDArray[np.intp]) -> Floats:
        """Return each difference of some pairs in units of what is explained: measures x pairs."""
        apart = found.apart[:, rows]
        with np.errstate(invalid="ignore"):
            explained, whole = (
                np.nan_to_num(self.gain[rows] * came[rows], nan=0.0, posinf=np.inf)
                for came in (self.came_in, self.came_in_whole)
            )
            allowed = found.allowed[:, rows] * self.own[rows] + explained
            allowed[WHOLE] += whole - explained if len(rows) else 0.0
            ratio: Floats = apart * self.share[rows] / np.maximum(allowed, 1e-300)
        exact = MEASURES.index("exact")
        ratio[exact] = np.where(explained >= apart[exact], 0.0, ratio[exact])
        return ratio

    def close(self, found: Measured, beyond: Floats) -> Flags:
        """Tell which pairs are as near as rounding keeps them after so many calls."""
        near = np.ones(len(self.share), np.bool_)
        rows = np.flatnonzero(~found.equal)
        room = _ROOM * np.sqrt(1.0 + self.depth[rows]) * self.upstream[rows]
        with np.errstate(invalid="ignore"):
            allowed = np.maximum(found.allowed[:, rows] * room, 1e-300)
            ratio = found.apart[:, rows] * self.share[rows] / allowed
        near[rows] = np.nan_to_num(np.fmax.reduce(ratio, axis=0), nan=0.0, posinf=np.inf) <= 1.0
        return near | (self.noise & (beyond <= 1.0))


def flow(  # noqa: PLR0917
    places: Places,
    tree: CallTree,
    found: Measured,
    data: tuple[Arrays, Arrays],
    shapes: list[tuple[int, ...]],
    small: Floats,
    owns: Owns,
) -> Flow:
    """Find what came into each pair.

    Args:
        places: Where the pairs are.
        tree: Their calls.
        found: Their differences.
        data: Their columns.
        shapes: What the codes of the baseline's shapes stand for.
        small: Share of the elements of each gradient that are no larger than its rounding.
        owns: Whether a module of the baseline has parameters.
    """
    on = _on(places, tree, found, data, shapes, np.ones(len(found.scale)), small, owns)
    noise = on.noise
    came_in_whole = on.came_in
    if np.isfinite(found.apart[WHOLE]).any():
        seen = np.isfinite(found.apart[WHOLE]).any(axis=0)
        counts = np.where(seen, 1.0, _UNSEEN)
        came_in_whole = _on(places, tree, found, data, shapes, counts, small, owns).came_in
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(on.reference > 0, found.scale / on.reference, 1.0)
    sums = places.are("param_grad", direction="backward") | places.are(
        "param_grad", "update", "state", direction="optimizer"
    )
    sums |= places.are("grad_input") & on.of_sites([bool(s.api) for s in places.sites])
    share = np.clip(np.nan_to_num(share, nan=1.0), np.where(sums, 0.0, _LEAST), 1.0)
    own = _coarsest(on)
    return Flow(
        on.came_in, came_in_whole, share, own, np.maximum(own, _so_far(places, found)),
        _depth(places, tree), on.gain, noise,
    )  # fmt: skip


def _on(  # noqa: PLR0917
    places: Places,
    tree: CallTree,
    found: Measured,
    data: tuple[Arrays, Arrays],
    shapes: list[tuple[int, ...]],
    counts: Floats,
    small: Floats,
    owns: Owns,
) -> Ground:
    """Find all sources, where each difference counts so many times."""
    on = Ground(places, tree, found, data, shapes, counts, owns)
    backward(on, forward(on))
    moved(on, small)
    _usual(on)
    return on


def _usual(on: Ground) -> None:
    """Take what is usual for what came in, where it is not the same.

    A difference is seen by its statistics alone, which by luck may hardly differ. So it counts at
    least as much as is usual of the results before.
    """
    places = on.places
    rows = np.flatnonzero(places.are("output", "grad_input") & (on.e > 0) & np.isfinite(on.e))
    if not len(rows):
        return
    rows = rows[np.lexsort((places.order[rows], places.process[rows]))]
    process = places.process[rows]
    level = pd.Series(on.e[rows]).groupby(process).rolling(_LAST, 1).median().to_numpy()
    span = int(places.order.max(initial=0)) + 2
    mine = np.flatnonzero(on.came_in > 0)
    wanted = places.process[mine] * span + places.order[mine]
    place = np.searchsorted(process * span + places.order[rows], wanted) - 1
    there = (place >= 0) & (process[np.maximum(place, 0)] == places.process[mine])
    usual = np.where(there, level[np.maximum(place, 0)], 0.0)
    on.came_in[mine] = np.maximum(on.came_in[mine], usual)


def _so_far(places: Places, found: Measured) -> Floats:
    """Return by how much the coarsest format of the results before is coarser than each pair's."""
    by = np.lexsort((places.order, places.process))
    given = np.where(places.are("output", "grad_input"), found.unit, 0.0)
    so_far = np.empty(len(by))
    so_far[by] = running(given[by], places.process[by])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(found.unit > 0, so_far / found.unit, 1.0)


def _coarsest(on: Ground) -> Floats:
    """Return by how much the coarsest format around each pair is coarser than its own.

    Around are the other tensors of its call, and of what an optimizer moves its parameter.
    """
    places, tree, found = on.places, on.tree, on.found
    here = tree.largest(tree.of >= 0, found.unit)
    here = np.maximum(here, tree.inside(here))
    own = np.ones(len(found.unit))
    rows = np.flatnonzero((tree.of >= 0) & (found.unit > 0))
    own[rows] = here[tree.of[rows]] / found.unit[rows]
    grads = np.flatnonzero(places.are("param_grad", direction="backward") & (found.unit > 0))
    coarser = np.maximum(found.unit, on.of_homes(tree.of >= 0, found.unit))[grads]
    partial = np.where(coarser > _SINGLE, _PARTIAL, 1.0)
    own[grads] = partial * coarser / found.unit[grads]
    moving = places.direction == DIRECTIONS.index("optimizer")
    coarsest = np.zeros(int(places.parameter.max(initial=0)) + 1)
    of = places.are("param", "param_grad") | moving
    np.maximum.at(coarsest, places.parameter[of], found.unit[of])
    rows = np.flatnonzero(moving & (found.unit > 0))
    own[rows] = coarsest[places.parameter[rows]] / found.unit[rows]
    return own


def _depth(places: Places, tree: CallTree) -> Floats:
    """Return how many calls had given something out before each pair, since its process began."""
    given = places.are("output", "grad_input") & (tree.of >= 0)
    by = np.lexsort((places.order, places.process))
    process = places.process[by]
    count = np.cumsum(given[by].astype(np.int64)) - given[by]
    begins = np.append([True], process[1:] != process[:-1])[: len(by)]
    found = np.empty(len(by))
    found[by] = count - np.maximum.accumulate(np.where(begins, count, 0))
    return found
