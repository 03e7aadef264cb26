"""What came into gradients."""

from __future__ import annotations

from typing import Final

import numpy as np

from probe_nb.analysis.compare.calls import NONE
from probe_nb.analysis.compare.forward import Forward
from probe_nb.analysis.compare.ground import GAIN_BACK, Flags, Floats, Ground, Rows
from probe_nb.terms import DIRECTIONS

_OPTIMIZER: Final = DIRECTIONS.index("optimizer")
_REDUCED: Final = 4
_BLIND: Final = 16.0
"""How much more is explained of a gradient where nothing is known of what it is a sum of."""

"""A call that takes in more than so many times what it gives out has averaged."""


def backward(on: Ground, forward: Forward) -> None:
    """Find the sources of gradients: what arrived, and what the forward had computed."""
    places, tree = on.places, on.tree
    on.gain[places.are("grad_output", "grad_input", "param_grad", direction="backward")] = GAIN_BACK
    outs, ins = places.are("grad_output"), places.are("grad_input")
    arrived, left = tree.largest(outs, on.e), tree.largest(ins, on.e)
    carried = np.maximum(left, arrived)
    into = np.fmax.reduce([arrived, forward.all, tree.inside(carried)])
    rows = np.flatnonzero(ins & (tree.of >= 0))
    on.came_in[rows] = into[tree.of[rows]]
    on.reference[rows] = _scales(on)[tree.of[rows]]
    _of_functions(on)
    known = tree.largest(outs, np.ones(len(on.e))) > 0
    _arriving(on, forward, np.maximum(arrived, forward.all), carried)
    _parameters(on, np.maximum(into, left))
    _unknown(on, known)


def _unknown(on: Ground, known: Flags) -> None:
    """What arrived at some calls was not recorded: it may be of anything that was before."""
    places, tree = on.places, on.tree
    here = np.zeros(len(on.e))
    rows = np.flatnonzero(tree.of >= 0)
    here[rows] = known[tree.of[rows]]
    at_home = on.of_homes(tree.of >= 0, here) > 0
    ins = places.are("grad_input")
    rows = (ins & (here == 0)) | (places.are("param_grad", direction="backward") & ~at_home)
    if rows.any():
        before = on.so_far(places.direction < _OPTIMIZER)
        on.came_in[rows] = np.fmax(on.came_in, before)[rows]
    unknown = places.are("param_grad", direction="backward") & ~at_home & (on.fan_in == 0)
    on.came_in[unknown] = np.inf  # a bias: nobody knows what cancelled in it
    on.gain[rows & ~at_home] *= _BLIND
    sums = rows & places.are("param_grad", direction="backward")
    on.came_in[sums] = np.maximum(
        on.came_in[sums], _BLIND * on.found.tolerance.extreme[sums] / GAIN_BACK
    )


def _scales(on: Ground) -> Floats:
    """Return the scale of what arrived: of a linear map what it makes of independent values."""
    places, tree = on.places, on.tree
    outs, ins = places.are("grad_output"), places.are("grad_input")
    scale = tree.largest(outs, on.scale)
    linear = on.of_modules(on.weights, on.scale * np.sqrt(on.fan_out))[tree.first]
    reduced = tree.largest(outs, on.numel) * _REDUCED < tree.largest(ins, on.numel)
    return np.where(linear > 0, linear * scale, np.where(reduced, 0.0, scale))


def _of_functions(on: Ground) -> None:
    """A function gives gradients of weights as well: sums over all places of its result."""
    places, tree = on.places, on.tree
    named = on.of_sites([bool(s.api) for s in places.sites])
    rows = np.flatnonzero(named & places.are("grad_input") & (tree.of >= 0))
    call = tree.of[rows]
    outs = places.are("grad_output")
    size = tree.largest(outs, on.scale)[call]
    uses = tree.largest(outs, on.numel)[call] / on.numel[rows]
    scale_in = tree.largest(places.are("input") & on.floats, on.scale)[call]
    sums = np.sqrt(uses) * size * np.maximum(scale_in, 1.0)
    on.reference[rows] = np.where(
        uses > 1, np.maximum(on.reference[rows], sums), on.reference[rows]
    )


def _arriving(on: Ground, forward: Forward, around: Floats, carried: Floats) -> None:
    """A gradient arrives from calls in the same parent, from the parent's own, or from the loss."""
    places, tree = on.places, on.tree
    rows = np.flatnonzero(places.are("grad_output") & (tree.of >= 0))
    call = tree.of[rows]
    parent = tree.parent[call]
    inside = parent >= 0
    ended = np.full(tree.count, NONE, np.int64)
    ins = np.flatnonzero(places.are("grad_input") & (tree.of >= 0))
    np.maximum.at(ended, tree.of[ins], places.order[ins])
    scale_in = tree.largest(places.are("grad_input"), on.scale)
    scale_out = tree.largest(places.are("grad_output"), on.scale)
    earlier, scale, seen = on.before(rows, ended, carried, scale_in)
    of_loss = np.where(inside, 0.0, _of_loss(on, forward, rows))
    of_parent = np.where(inside, around[parent], 0.0)
    on.came_in[rows] = np.fmax.reduce([earlier, of_parent, of_loss, forward.all[call]])
    on.reference[rows] = np.where(seen, scale, np.where(inside, scale_out[parent], 0.0))


def _of_loss(on: Ground, forward: Forward, rows: Rows) -> Floats:
    """Return what a loss makes of the outermost outputs: it may take their exponential."""
    tree = on.tree
    size = np.maximum(1.0, tree.largest(on.places.are("output"), on.found.peak))
    top = np.flatnonzero(tree.parent < 0)
    found = np.zeros(int(on.places.moment.max(initial=0)) + 1)
    np.maximum.at(found, tree.moment[top], (size * forward.out)[top])
    return found[on.places.moment[rows]]


def _parameters(on: Ground, of_call: Floats) -> None:
    """The gradient of a parameter is made of all that its module's calls saw in the step."""
    places, tree = on.places, on.tree
    rows = np.flatnonzero(places.are("param_grad", direction="backward"))
    of_pair = np.zeros(len(on.e))
    mine = tree.of >= 0
    of_pair[mine] = of_call[tree.of[mine]]
    on.came_in[rows] = on.of_homes(mine, of_pair)[rows]
    outs = places.are("grad_output")
    uses = on.of_homes(outs, on.numel) / on.leading
    scale_in = on.of_homes(places.are("input") & on.floats, on.scale)
    factor = np.where(on.fan_in > 1, scale_in, 1.0)  # normalised values, or the ones of a bias
    on.reference[rows] = (np.sqrt(uses) * on.of_homes(outs, on.scale) * factor)[rows]
