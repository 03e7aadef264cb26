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

from probe_nb.analysis.compare.calls import NONE, CallTree, Places
from probe_nb.analysis.compare.measures import MEASURES, Measured
from probe_nb.analysis.words import is_optimizer
from probe_nb.store.table import Arrays

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Rows = NDArray[np.intp]

GAIN: Final = 16.0
"""By how much a forward call may enlarge a relative difference that came in. A linear map enlarges
noise as it enlarges the signal, so by about 1; what cancels, and so enlarges, is accounted for by
the scale of what came in. Ours, from healthy pairs: none went beyond 8 (docs/compare.md)."""

GAIN_BACK: Final = 64.0
"""The same in the backward and at the optimizer, where signals cancel more: sums over a batch,
gradients of a loss near its minimum, the division by a root in Adam."""

_LEAST: Final = 1.0 / 256
"""The scale of what came in counts up to this many times the scale of what came out."""

_LAST: Final = 15
"""Results before a value that tell what is usual."""


@dataclass(eq=False)
class Flow:
    """What speaks for and against each pair.

    Attributes:
        came_in: Largest relative difference of the sources; NaN where there are none.
        share: By how much differences count less, because what came in was larger.
        own: What rounding explains, in units of the row's own tolerance: the coarsest format in
            the call.
        depth: Calls that ended before, since the process began.
    """

    came_in: Floats
    share: Floats
    own: Floats
    depth: Floats
    gain: Floats

    def beyond(self, found: Measured) -> Floats:
        """Return the largest difference in units of what is explained, of each pair."""
        with np.errstate(invalid="ignore"):
            explained = np.nan_to_num(self.gain * self.came_in, nan=0.0)
            allowed = found.allowed * self.own + explained
            ratio = found.apart * self.share / np.maximum(allowed, 1e-300)
        ratio = np.where(np.isinf(found.apart) & np.isinf(explained), 0.0, ratio)
        exact = MEASURES.index("exact")
        ratio[exact] = np.where(explained >= found.apart[exact], 0.0, ratio[exact])
        result: Floats = np.nan_to_num(np.fmax.reduce(ratio, axis=0), nan=0.0)
        return result

    def close(self, found: Measured) -> Flags:
        """Tell which pairs are as near as rounding keeps them after so many calls."""
        room = _ROOM * np.sqrt(1.0 + self.depth)
        with np.errstate(invalid="ignore"):
            ratio = found.apart * self.share / np.maximum(found.allowed * self.own * room, 1e-300)
        near: Flags = np.nan_to_num(np.fmax.reduce(ratio, axis=0), nan=0.0) <= 1.0
        return near


_ROOM: Final = 4.0


class _Sources:
    """The differences of all pairs, and what of them flowed where."""

    def __init__(
        self, places: Places, tree: CallTree, found: Measured, data: tuple[Arrays, Arrays]
    ) -> None:
        self.places, self.tree, self.found = places, tree, found
        self.e = np.nan_to_num(found.difference, nan=0.0, posinf=np.inf)
        self.scale = found.scale
        self.floats = found.unit > 0
        self.numel = np.maximum(data[0]["numel"], 1).astype(np.float64)
        self.came_in = np.full(len(self.e), np.nan)
        self.reference = np.zeros(len(self.e))
        self.gain = np.full(len(self.e), GAIN)
        self._modules = int(places.module.max(initial=0)) + 1

    # -- what is joined --------------------------------------------------------------------------

    def of_modules(self, rows: Flags, values: Floats) -> Floats:
        """Return the largest value of each module and step, for every pair of the same."""
        places = self.places
        key = places.moment * self._modules + places.module
        known, place = np.unique(key, return_inverse=True)
        found = np.zeros(len(known))
        np.maximum.at(found, place[rows], values[rows])
        return found[place]  # type: ignore[no-any-return]

    def calls(self, values: Floats, rows: Flags) -> Floats:
        """Give pairs the value of their call."""
        found = np.zeros(len(self.e))
        rows = rows & (self.tree.of >= 0)
        found[rows] = values[self.tree.of[rows]]
        return found

    # -- forward ---------------------------------------------------------------------------------

    def forward(self) -> None:
        """Find what came into outputs and inputs."""
        places, tree = self.places, self.tree
        inputs, outputs = places.are("input"), places.are("output")
        owned = places.are("param", "buffer", direction="forward")
        self.of_output = self.calls(tree.largest(outputs, self.scale), outputs)
        out_scale = self.of_modules(outputs, self.scale)
        vector = owned & (self.numel <= _first(self.numel, owned))
        weight = np.where(
            vector & (out_scale > 0),
            np.minimum(1.0, self.scale / np.maximum(out_scale, 1e-300)),
            1.0,
        )
        param = self.of_modules(owned, self.e * np.where(self._is_bias(), weight, 1.0))
        first = tree.first
        self.e_param = param[first]
        self.e_in, self.e_out = tree.largest(inputs, self.e), tree.largest(outputs, self.e)
        self.carried = np.maximum(self.e_out, self.e_in)
        self.e_inside = tree.inside(self.carried)
        into = np.fmax.reduce([self.e_in, self.e_param, self.e_inside])
        rows = outputs & (tree.of >= 0)
        self.came_in[rows] = into[tree.of[rows]]
        self._inputs(inputs)
        self._forward_scales(inputs, outputs)

    def _is_bias(self) -> Flags:
        named = np.array(
            [s.leaf.rsplit(".", 1)[-1].endswith("bias") for s in self.places.sites], np.bool_
        )
        return named[self.places.site]  # type: ignore[no-any-return]

    def _inputs(self, inputs: Flags) -> None:
        """An input is made of its parent's inputs, and of what came out of calls before it."""
        tree = self.tree
        rows = np.flatnonzero(inputs & (tree.of >= 0))
        parent = tree.parent[tree.of[rows]]
        group = np.where(
            parent >= 0, parent + self.places.process.max(initial=0) + 1, self.places.process[rows]
        )
        given, scales, seen = self._before(
            rows, group, tree.end, self.carried, tree.largest(self.places.are("output"), self.scale)
        )
        around = np.where(parent >= 0, np.maximum(self.e_in, self.e_param)[parent], np.nan)
        given = np.where(seen, given, np.nan)
        self.came_in[rows] = np.fmax(given, around)
        scale_in = tree.largest(self.places.are("input") & self.floats, self.scale)
        self.reference[rows] = np.maximum(scales, np.where(parent >= 0, scale_in[parent], 0.0))

    def _before(
        self, rows: Rows, group: Rows, ended: NDArray[np.int64], values: Floats, scales: Floats
    ) -> tuple[Floats, Floats, Flags]:
        """Return the largest value of the calls in the same parent that ended before each pair."""
        tree, places = self.tree, self.places
        offset = places.process.max(initial=0) + 1
        of_call = np.where(tree.parent >= 0, tree.parent + offset, tree.process)
        known = np.flatnonzero((ended >= 0) & (ended < 2**62))
        known = known[np.lexsort((ended[known], of_call[known]))]
        span = int(places.order.max(initial=0)) + 2
        if not len(known):
            return np.zeros(len(rows)), np.zeros(len(rows)), np.zeros(len(rows), np.bool_)
        stamps = of_call[known].astype(np.int64) * span + ended[known]
        running = [_running(each[known], of_call[known]) for each in (values, scales)]
        place = np.searchsorted(stamps, group.astype(np.int64) * span + places.order[rows]) - 1
        there = place >= 0
        place = np.maximum(place, 0)
        there &= of_call[known][place] == group
        return (
            np.where(there, running[0][place], 0.0),
            np.where(there, running[1][place], 0.0),
            there,
        )

    def _forward_scales(self, inputs: Flags, outputs: Flags) -> None:
        """Take the scale of what came in: of a linear map what it makes of independent values."""
        tree, places = self.tree, self.places
        rows = np.flatnonzero(outputs & (tree.of >= 0))
        scale_in = tree.largest(inputs & self.floats, self.scale)
        inside = tree.inside(tree.largest(outputs & self.floats, self.scale))
        plain = np.maximum(scale_in, inside)
        linear = self.of_modules(self._weights(), self.scale * np.sqrt(self.fan_in))[tree.first]
        of_call = np.where(linear > 0, linear * scale_in, plain)
        looked_up = np.array([s.type.startswith("Embedding") for s in places.sites], np.bool_)
        of_call[looked_up[places.site[tree.first]]] = 0.0
        self.reference[rows] = of_call[tree.of[rows]]

    def _weights(self) -> Flags:
        return self.places.are("param", direction="forward") & (self.fan_in > 1)

    # -- backward --------------------------------------------------------------------------------

    def backward(self) -> None:
        """Find what came into gradients."""
        places, tree = self.places, self.tree
        back = places.are("grad_output", "grad_input", "param_grad", direction="backward")
        self.gain[back] = GAIN_BACK
        outs, ins = places.are("grad_output"), places.are("grad_input")
        e_gout, e_gin = tree.largest(outs, self.e), tree.largest(ins, self.e)
        forward = np.fmax.reduce([self.e_in, self.e_param, self.e_out, self.e_inside])
        carried = np.maximum(e_gin, e_gout)
        inside = tree.inside(carried)
        into = np.fmax.reduce([e_gout, forward, inside])
        rows = ins & (tree.of >= 0)
        self.came_in[rows] = into[tree.of[rows]]
        self._grad_outputs(outs, carried, e_gout, forward)
        self._backward_scales(outs, ins)
        whole = np.fmax.reduce([into, e_gin])
        of_pair = np.zeros(len(self.e))
        of_pair[tree.first] = 0.0
        of_calls = np.zeros(len(self.e))
        mine = tree.of >= 0
        of_calls[mine] = whole[tree.of[mine]]
        grads = places.are("param_grad", direction="backward")
        joined = self.of_modules(mine, of_calls)
        self.came_in[grads] = joined[grads]

    def _grad_outputs(self, outs: Flags, carried: Floats, e_gout: Floats, forward: Floats) -> None:
        tree, places = self.tree, self.places
        rows = np.flatnonzero(outs & (tree.of >= 0))
        call = tree.of[rows]
        parent = tree.parent[call]
        ended = np.full(tree.count, NONE, np.int64)
        ins = places.are("grad_input") & (tree.of >= 0)
        np.maximum.at(ended, tree.of[ins], places.order[ins])
        offset = places.process.max(initial=0) + 1
        group = np.where(parent >= 0, parent + offset, places.process[rows])
        scale = tree.largest(places.are("grad_input"), self.scale)
        given, scales, _ = self._before(rows, group, ended, carried, scale)
        around = np.where(parent >= 0, np.maximum(e_gout, forward)[parent], 0.0)
        size = np.maximum(1.0, tree.largest(places.are("output"), self.found.peak))
        of_loss = np.where(parent < 0, self._everything(size * self.e_out, rows), 0.0)
        self.came_in[rows] = np.fmax.reduce([given, around, of_loss, forward[call]])
        scale_out = tree.largest(outs, self.scale)
        self.reference[rows] = np.maximum(scales, np.where(parent >= 0, scale_out[parent], 0.0))

    def _everything(self, values: Floats, rows: Rows) -> Floats:
        """Return the largest value of the outermost calls of a step, for pairs of that step."""
        tree, places = self.tree, self.places
        top = tree.parent < 0
        moment = np.zeros(int(places.moment.max(initial=0)) + 1)
        np.maximum.at(moment, tree.moment[top], values[top])
        return moment[places.moment[rows]]  # type: ignore[no-any-return]

    def _backward_scales(self, outs: Flags, ins: Flags) -> None:
        tree, places = self.tree, self.places
        scale_out = tree.largest(outs, self.scale)
        weights = self._weights()
        linear = self.of_modules(weights, self.scale * np.sqrt(self.fan_out))[tree.first]
        counts = [tree.largest(each, self.numel) for each in (outs, ins)]
        plain = np.where(counts[0] * 4 >= counts[1], scale_out, 0.0)
        of_call = np.where(linear > 0, linear * scale_out, plain)
        rows = ins & (tree.of >= 0)
        self.reference[rows] = of_call[tree.of[rows]]
        grads = np.flatnonzero(places.are("param_grad", direction="backward"))
        scale_in = self.of_modules(places.are("input") & self.floats, self.scale)
        gout = self.of_modules(outs, self.scale)
        uses = self.of_modules(outs, self.numel) / np.maximum(self.leading, 1.0)
        x = np.where(self.fan_in > 1, scale_in, 1.0)
        self.reference[grads] = (np.sqrt(uses) * gout * x)[grads]

    def usual(self) -> None:
        """What came in is seen by its statistics alone, which by luck may hardly differ.

        So where it is not the same, it counts at least as much as is usual of what came before.
        """
        places = self.places
        seen = places.are("output", "grad_input") & (self.e > 0) & np.isfinite(self.e)
        rows = np.flatnonzero(seen)
        rows = rows[np.lexsort((places.order[rows], places.process[rows]))]
        if not len(rows):
            return
        level = pd.Series(self.e[rows]).groupby(places.process[rows]).rolling(_LAST, 1).median()
        span = int(places.order.max(initial=0)) + 2
        stamps = places.process[rows] * span + places.order[rows]
        mine = np.flatnonzero(self.came_in > 0)
        place = np.searchsorted(stamps, places.process[mine] * span + places.order[mine]) - 1
        there = place >= 0
        there &= places.process[rows][np.maximum(place, 0)] == places.process[mine]
        usual = np.where(there, level.to_numpy()[np.maximum(place, 0)], 0.0)
        self.came_in[mine] = np.maximum(self.came_in[mine], usual)

    # -- parameters, buffers, the optimizer ------------------------------------------------------

    def state(self, first_step: NDArray[np.int64]) -> None:
        """Find what moved parameters, buffers and the optimizer's state."""
        places = self.places
        grads = places.are("param_grad", direction="backward")
        optimizer = places.direction == 2  # noqa: PLR2004 - the third direction
        params = places.are("param", direction="forward")
        buffers = places.are("buffer", direction="forward")
        later = places.step > first_step
        one = _upto(
            places.process, places.parameter, places.order, self.e, params | optimizer | grads
        )
        for rows in (optimizer, params & later):
            self.came_in[rows] = one[rows]
            self.gain[rows] = GAIN_BACK
        norm = self._norm_of_gradients(grads)
        seen = places.are("param_grad", direction="optimizer")
        self.came_in[seen] = np.fmax(self.came_in[seen], norm[seen])
        said = self._of_step(self._of_optimizers(), self.e)
        rows = optimizer & ~self._of_optimizers()
        self.came_in[rows] = np.fmax(self.came_in[rows], said[rows])
        self.came_in[self._of_optimizers()] = np.fmax(self.came_in, 0.0)[self._of_optimizers()]
        self._moved_scales(params | optimizer)
        moving = places.are("input", "output") | buffers
        other = _upto(places.process, places.module, places.order, self.e, moving)
        rows = buffers & later
        self.came_in[rows] = other[rows]

    def _of_optimizers(self) -> Flags:
        """Tell which pairs are of an optimizer itself: its learning rate and the like."""
        of = np.array([is_optimizer(site) for site in self.places.sites], np.bool_)
        return of[self.places.site]  # type: ignore[no-any-return]

    def _of_step(self, rows: Flags, values: Floats) -> Floats:
        """Return the largest value of some pairs of each step, for every pair of the step."""
        moment = self.places.moment
        found = np.zeros(int(moment.max(initial=0)) + 1)
        np.maximum.at(found, moment[rows], values[rows])
        return found[moment]  # type: ignore[no-any-return]

    def _moved_scales(self, moving: Flags) -> None:
        """An update is a difference of two parameters, and is rounded as they are."""
        places = self.places
        key = places.moment * (int(places.parameter.max(initial=0)) + 1) + places.parameter
        known, place = np.unique(key, return_inverse=True)
        scale = np.zeros(len(known))
        params = moving & places.are("param", direction="optimizer")
        np.maximum.at(scale, place[params], self.scale[params])
        updates = places.are("update", direction="optimizer")
        self.reference[updates] = scale[place][updates]
        times = np.ones(len(known))
        grads = places.are("param_grad", direction="backward") & (self.reference > 0)
        with np.errstate(divide="ignore"):
            larger = self.reference[grads] / self.scale[grads]
        np.maximum.at(times, place[grads], larger)
        rows = places.are("param_grad", "state", "update", direction="optimizer")
        by_grad = np.where(np.isfinite(times), times, 1.0)[place] * self.scale
        self.reference[rows] = np.maximum(self.reference, by_grad)[rows]

    def _norm_of_gradients(self, grads: Flags) -> Floats:
        """Return by how much the norm of all gradients of a step differs: clipping spreads it."""
        moment = self.places.moment
        size = int(moment.max(initial=0)) + 1
        square = np.bincount(moment[grads], (self.scale**2 * self.numel)[grads], size)
        part = np.where(np.isfinite(self.e), self.e, 0.0) * self.scale
        differs = np.bincount(moment[grads], (part**2 * self.numel)[grads], size)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.sqrt(np.nan_to_num(differs / square))
        return found[moment]  # type: ignore[no-any-return]


def _first(numel: Floats, rows: Flags) -> float:
    """Return the largest number of elements of some pairs."""
    return float(numel[rows].max(initial=0.0))


def _running(values: Floats, group: Rows) -> Floats:
    """Return the largest value so far within each group, of sorted groups."""
    return pd.Series(values).groupby(group).cummax().to_numpy()  # type: ignore[no-any-return]


def _upto(
    process: NDArray[np.int64],
    key: NDArray[np.int64],
    order: NDArray[np.int64],
    values: Floats,
    rows: Flags,
) -> Floats:
    """Return the largest value of the same key before each of some pairs; NaN before the first."""
    chosen = np.flatnonzero(rows)
    by = chosen[np.lexsort((order[chosen], key[chosen], process[chosen]))]
    found = np.full(len(values), np.nan)
    if not len(by):
        return found
    new = np.append(True, (key[by][1:] != key[by][:-1]) | (process[by][1:] != process[by][:-1]))
    group = np.cumsum(new)
    running = _running(values[by], group)
    found[by] = np.where(new, np.nan, np.append(np.nan, running[:-1]))
    return found


def flow(
    places: Places,
    tree: CallTree,
    found: Measured,
    data: tuple[Arrays, Arrays],
    shapes: list[tuple[int, ...]],
) -> Flow:
    """Find what came into each pair."""
    sources = _Sources(places, tree, found, data)
    fan_in = np.array([*(np.prod(s[1:]) if len(s) > 1 else 0 for s in shapes), 0], np.float64)
    leading = np.array([*(s[0] if s else 1 for s in shapes), 1], np.float64)
    second = np.array([*(s[1] if len(s) > 1 else 1 for s in shapes), 1], np.float64)
    code = data[0]["shape"]
    sources.fan_in, sources.leading = fan_in[code], leading[code]
    sources.fan_out = sources.numel / np.maximum(second[code], 1.0)
    sources.forward()
    sources.backward()
    begins = np.full(int(places.process.max(initial=0)) + 1, 2**62)
    np.minimum.at(begins, places.process, places.step)
    sources.state(begins[places.process])
    sources.usual()
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(sources.reference > 0, found.scale / sources.reference, 1.0)
    of_moved = (places.direction == 2) | places.are("param_grad")  # noqa: PLR2004
    least = np.where(of_moved, 0.0, _LEAST)
    share = np.clip(np.nan_to_num(share, nan=1.0), least, 1.0)
    return Flow(sources.came_in, share, _coarsest(tree, found), _depth(places, tree), sources.gain)


def _coarsest(tree: CallTree, found: Measured) -> Floats:
    """Return by how much the coarsest format in a call is coarser than each of its pairs'."""
    here = tree.largest(tree.of >= 0, found.unit)
    here = np.maximum(here, tree.inside(here))
    own = np.ones(len(found.unit))
    rows = np.flatnonzero((tree.of >= 0) & (found.unit > 0))
    own[rows] = here[tree.of[rows]] / found.unit[rows]
    return own


def _depth(places: Places, tree: CallTree) -> Floats:
    """Return how many calls had given something out before each pair, since its process began."""
    given = places.are("output") | places.are("grad_input")
    given &= tree.of >= 0
    by = np.lexsort((places.order, places.process))
    count = np.cumsum(given[by]) - given[by]
    begins = np.append(True, places.process[by][1:] != places.process[by][:-1])[: len(by)]
    start = np.maximum.accumulate(np.where(begins, count, 0))
    found = np.empty(len(by))
    found[by] = count - start
    return found
