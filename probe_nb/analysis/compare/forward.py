"""What came into inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.compare.ground import Floats, Ground

_LOOKED_UP = "Embedding"


@dataclass(eq=False)
class Forward:
    """Of each call the largest differences of its forward.

    Attributes:
        given: Of its inputs, parameters and buffers.
        out: Of its outputs.
        inside: Of what calls inside it gave out.
    """

    given: Floats
    out: Floats
    inside: Floats

    @property
    def all(self) -> Floats:
        """The largest of all."""
        found: Floats = np.fmax.reduce([self.given, self.out, self.inside])
        return found


def forward(on: Ground) -> Forward:
    """Find the sources of inputs and outputs."""
    places, tree = on.places, on.tree
    inputs, outputs = places.are("input"), places.are("output")
    into, out = tree.largest(inputs, on.e), tree.largest(outputs, on.e)
    given = np.maximum(into, _parameters(on, outputs)[tree.first])
    carried, ended = _carried(on, np.maximum(out, into))
    found = Forward(given, out, tree.inside(carried))
    rows = np.flatnonzero(outputs & (tree.of >= 0))
    on.came_in[rows] = np.maximum(given, found.inside)[tree.of[rows]]
    on.reference[rows] = _scales(on)[tree.of[rows]]
    unknown = rows[tree.largest(inputs, np.ones(len(on.e)))[tree.of[rows]] == 0]
    if len(unknown):  # nobody knows what these were given: anything from before
        on.came_in[unknown] = np.maximum(on.came_in, on.so_far(outputs))[unknown]
    _inputs(on, given, carried, ended)
    return found


def _carried(on: Ground, largest: Floats) -> tuple[Floats, Floats]:
    """Return what came out of each call, and when it had ended.

    Where no output was recorded, that is what came out of calls inside it, and when these ended.
    """
    tree, places = on.tree, on.places
    silent = tree.largest(places.are("output"), np.ones(len(on.e))) == 0
    ended = np.where(
        silent, tree.largest(places.are("input"), places.order.astype(np.float64)), tree.end
    )
    while silent.any():
        both = [np.where(silent, np.maximum(v, tree.inside(v)), v) for v in (largest, ended)]
        if (both[0] == largest).all() and (both[1] == ended).all():
            break
        largest, ended = both
    return largest, ended


def _parameters(on: Ground, outputs: NDArray[np.bool_]) -> Floats:
    """Return the difference of parameters and buffers; a bias counts as what it adds."""
    places = on.places
    owned = places.are("param", "buffer", direction="forward")
    bias = on.of_sites([s.leaf.rsplit(".", 1)[-1].endswith("bias") for s in places.sites])
    out = on.of_modules(outputs, on.scale)
    known = bias & (out > 0)
    counts = np.where(known, np.minimum(1.0, on.scale / np.where(known, out, 1.0)), 1.0)
    return on.of_modules(owned, on.e * counts)


def _scales(on: Ground) -> Floats:
    """Return the scale of what came in: of a linear map what it makes of independent values."""
    places, tree = on.places, on.tree
    scale_in = tree.largest(places.are("input") & on.floats, on.scale)
    inside = tree.inside(tree.largest(places.are("output") & on.floats, on.scale))
    linear = on.of_modules(on.weights, on.scale * np.sqrt(on.fan_in))[tree.first]
    found = np.where(linear > 0, linear * scale_in, np.maximum(scale_in, inside))
    looked_up = on.of_sites([s.type.startswith(_LOOKED_UP) for s in places.sites])
    found[looked_up[tree.first]] = 0.0
    return found


def _inputs(on: Ground, given: Floats, carried: Floats, ended: Floats) -> None:
    """An input is made of its parent's inputs, and of what came out of calls before it."""
    places, tree = on.places, on.tree
    rows = np.flatnonzero(places.are("input") & (tree.of >= 0))
    parent = tree.parent[tree.of[rows]]
    inside = parent >= 0
    scale_out = tree.largest(places.are("output"), on.scale)
    scale_in = tree.largest(places.are("input") & on.floats, on.scale)
    earlier, scale, seen = on.before(rows, ended.astype(np.int64), carried, scale_out)
    of_parent = np.where(inside, given[parent], np.nan)
    on.came_in[rows] = np.fmax(np.where(seen, earlier, np.nan), of_parent)
    of_parent = np.where(inside, scale_in[parent], 0.0)
    on.reference[rows] = np.where(seen, scale, of_parent)
