"""What moved parameters, buffers and the state of an optimizer."""

from __future__ import annotations

from typing import Final

import numpy as np

from probe_nb.analysis.compare.ground import (
    GAIN,
    GAIN_BACK,
    Flags,
    Floats,
    Ground,
    Ints,
    numbered,
    running,
)
from probe_nb.analysis.words import is_optimizer, is_setting
from probe_nb.terms import DIRECTIONS

_OPTIMIZER: Final = DIRECTIONS.index("optimizer")
_DRIFT: Final = 8.0
"""How much more what came in may grow once parameters were moved: differences are then in few
elements (a flipped sign of Adam, of a rectifier), of which statistics show little."""

_NOISE: Final = 1e3
"""A gradient so many times smaller than the terms of its sum is what rounding left of zero."""


def moved(on: Ground, small: Floats) -> None:
    """Find the sources of what an optimizer moved, and which pairs only noise has moved.

    `small` is the share of each gradient that is no larger than its rounding, NaN if unknown.
    """
    places = on.places
    grads = places.are("param_grad", direction="backward")
    steps = places.direction == _OPTIMIZER
    params = places.are("param", direction="forward")
    later = places.step > _first_steps(on)
    of_parameter = _upto(on, places.parameter, params | steps | grads)
    rows = steps | (params & later)
    on.came_in[rows] = of_parameter[rows]
    on.gain[rows] = GAIN_BACK
    _clipped(on, grads)
    _told(on, steps)
    _buffers(on, later)
    _signs(on, _told_apart(on, small), steps, params & later)
    on.noise = _scales(on, grads) & rows
    on.gain[later & _training(on, steps | grads)] *= _DRIFT
    _loose(on, small, grads)
    _hidden(on, later)


def _loose(on: Ground, small: Floats, grads: Flags) -> None:
    """Functions outside of any module may be an optimizer's: anything before is their source."""
    places, tree = on.places, on.tree
    free = on.of_sites([bool(s.api) and not s.module and not s.type for s in places.sites])
    rows = np.flatnonzero(free & places.are("input", "output") & (tree.of >= 0))
    if not len(rows):
        return
    noise = np.where(grads, 2.0 * np.sqrt(small) / GAIN, 0.0)
    before = on.so_far(places.role >= 0, np.maximum(on.e, noise))
    seen = rows[before[rows] > 0]
    on.came_in[seen] = np.fmax(on.came_in[seen], before[seen])


def _hidden(on: Ground, later: Flags) -> None:
    """Parameters that an unseen optimizer moved and nobody recorded explain all they go into.

    That is what comes out of modules that have some, and what the code of such a module makes of
    it. Of the rest the sources are there, though what differs may be in few elements.
    """
    places = on.places
    process = places.process
    told = np.zeros(int(process.max(initial=0)) + 1, np.bool_)
    told[process[places.are("param")]] = True
    named = on.of_sites([bool(s.api) for s in places.sites])
    rows = later & on.training & ~told[process] & ~named & (places.direction < _OPTIMIZER)
    moves = on.of_sites([on.owns(s.model, s.module) for s in places.sites])
    if not moves.any():
        return
    within = _within(on, moves)
    on.came_in[rows & within] = np.inf
    on.gain[rows & ~within] *= _DRIFT


def _within(on: Ground, moves: Flags) -> Flags:
    """Tell which pairs the code of such a module made: an input is made by that around it."""
    places, tree = on.places, on.tree
    found = moves.copy()
    made_around = places.are("input", "grad_output")
    found[made_around] = True  # of what is around a call that was not recorded nothing is known
    rows = np.flatnonzero(made_around & (tree.of >= 0))
    parent = tree.parent[tree.of[rows]]
    found[rows[parent >= 0]] = moves[tree.first[parent[parent >= 0]]]
    return found


def _training(on: Ground, moving: Flags) -> Flags:
    """Tell which pairs are of a process that trains: what differs comes back through parameters."""
    process = on.places.process
    found = np.zeros(int(process.max(initial=0)) + 1, np.bool_)
    found[process[moving]] = True
    return found[process]


def _told_apart(on: Ground, small: Floats) -> Floats:
    """Return the same with what is unknown filled in: all of it, where anything differed before.

    Statistics do not show what differs in the small elements of a gradient.
    """
    if not np.isnan(small).any():
        return small
    differs = (on.e > 0) | (on.so_far(np.ones(len(on.e), np.bool_)) > 0)
    return np.where(np.isnan(small), differs, small)


def _signs(on: Ground, small: Floats, steps: Flags, params: Flags) -> None:
    """Adam moves every element as far: those whose gradient is noise go one way or the other.

    A `small` share of them makes a difference of twice its root, relative to the update. What
    the update of a parameter has is a source of the parameter that comes of it.
    """
    places = on.places
    grads = places.are("param_grad", direction="backward") | places.are(
        "param_grad", direction="optimizer"
    )
    rows = (steps & places.are("update", "param", "state", direction="optimizer")) | params
    known = _upto(on, places.parameter, grads | rows, 2.0 * np.sqrt(small) / GAIN_BACK)
    on.came_in[rows] = np.fmax(on.came_in, known)[rows]
    width = int(places.parameter.max(initial=0)) + 1
    count, place = numbered(places.moment * width + places.parameter)
    update = np.zeros(count)
    updates = places.are("update", direction="optimizer")
    np.maximum.at(update, place[updates], on.e[updates])
    rows = places.are("param", direction="optimizer")
    on.came_in[rows] = np.fmax(on.came_in, update[place])[rows]


def _first_steps(on: Ground) -> Ints:
    """Return the first step of each pair's process."""
    process = on.places.process
    found = np.full(int(process.max(initial=0)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(found, process, on.places.step)
    return found[process]


def _clipped(on: Ground, grads: Flags) -> None:
    """Clipping spreads a difference of the norm of all gradients to each."""
    seen = on.places.are("param_grad", direction="optimizer")
    moment = on.places.moment
    size = int(moment.max(initial=0)) + 1
    square = np.bincount(moment[grads], (on.scale**2 * on.numel)[grads], size)
    part = np.where(np.isfinite(on.e), on.e, 0.0) * on.scale
    differs = np.bincount(moment[grads], (part**2 * on.numel)[grads], size)
    with np.errstate(divide="ignore", invalid="ignore"):
        norm = np.sqrt(np.nan_to_num(differs / square))[moment]
    on.came_in[seen] = np.fmax(on.came_in[seen], norm[seen])


def _told(on: Ground, steps: Flags) -> None:
    """A learning rate, or another number of the optimizer, is a source of all that it moves.

    Of what it is given it is none.
    """
    own = on.of_sites([is_optimizer(site) for site in on.places.sites])
    numbers = on.of_steps(own, np.fmax(on.e, _of_the_rest(on)))
    numbers[on.places.are("param_grad", direction="optimizer")] = 0.0
    rows = steps & ~own
    on.came_in[rows] = np.fmax(on.came_in[rows], numbers[rows])
    on.came_in[own] = 0.0


def _of_the_rest(on: Ground) -> Floats:
    """Return how far settings below 1 part in what they leave of 1, NaN for all else.

    Running means take 1 - beta of what is new: 0.99 against 0.999 is ten times as much.
    """
    settings = on.of_sites([is_setting(site) for site in on.places.sites])
    one, other = (side["max"] for side in on.data)
    with np.errstate(invalid="ignore"):
        settings &= (one >= 0) & (one < 1) & (other >= 0) & (other < 1)
    found = np.full(len(on.e), np.nan)
    one, other = one[settings], other[settings]
    found[settings] = np.abs(one - other) / (1 - np.fmin(one, other))
    return found


def _buffers(on: Ground, later: Flags) -> None:
    """A buffer is moved by what its module was fed before."""
    places = on.places
    buffers = places.are("buffer", direction="forward")
    seen = _upto(on, places.module, places.are("input", "output") | buffers)
    rows = buffers & later
    on.came_in[rows] = seen[rows]


def _scales(on: Ground, grads: Flags) -> Flags:
    """Take the scale of what was added up; tell where it says that a gradient is only noise.

    An update is a difference of two values of a parameter, and is rounded as they are.
    """
    places = on.places
    width = int(places.parameter.max(initial=0)) + 1
    count, place = numbered(places.moment * width + places.parameter)
    scale, times = np.zeros(count), np.ones(count)
    params = places.are("param", direction="optimizer")
    np.maximum.at(scale, place[params], on.scale[params])
    with np.errstate(divide="ignore", invalid="ignore"):
        larger = np.nan_to_num(on.reference[grads] / on.scale[grads], nan=1.0, posinf=1.0)
    np.maximum.at(times, place[grads], larger)
    updates = places.are("update", direction="optimizer")
    on.reference[updates] = scale[place][updates]
    rows = places.are("param_grad", "state", "update", direction="optimizer")
    on.reference[rows] = np.maximum(on.reference, times[place] * on.scale)[rows]
    noise = np.zeros(width, np.bool_)
    noise[places.parameter[grads][larger > _NOISE]] = True
    return noise[places.parameter]


def _made_last(on: Ground) -> Ints:
    """Tell what an optimizer makes last: an update of all else, and a parameter of that.

    They may be recorded before what they are made of, and are no source of each other.
    """
    places = on.places
    found = places.are("update", direction="optimizer").astype(np.int64)
    return found + 2 * places.are("param", direction="optimizer")


def _upto(on: Ground, key: Ints, rows: Flags, values: Floats | None = None) -> Floats:
    """Return the largest difference of the same key before each pair; NaN before the first.

    Or, of other values, the largest of those.
    """
    places = on.places
    chosen = np.flatnonzero(rows)
    late = _made_last(on)[chosen]
    by = np.lexsort(
        (places.order[chosen], late, places.moment[chosen], key[chosen], places.process[chosen])
    )
    by = chosen[by]
    found = np.full(len(on.e), np.nan)
    if not len(by):
        return found
    of, process = key[by], places.process[by]
    new = np.append([True], (of[1:] != of[:-1]) | (process[1:] != process[:-1]))
    before = np.append(
        [np.nan], running((on.e if values is None else values)[by], np.cumsum(new))[:-1]
    )
    found[by] = np.where(new, np.nan, before)
    return found
