"""Earlier moments of a run: what a live view showed at the end of steps before.

A run is read once more from its beginning, and no further than to the end of each chosen step: what
is known by then (badges, the first bad step) is what a live view had to show then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probe_nb.view import wire
from probe_nb.view.frame import FrameBuilder
from probe_nb.view.rows import worst_first
from probe_nb.view.wire import Numbers

Rows = NDArray[np.intp]

BUDGET: Final = 24_000_000
"""Bytes that a widget is sent."""

MOST: Final = 200
"""Moments that a widget is sent."""

FEW: Final = 16
"""Moments of a report, and of a widget for which it must have fewer rows instead."""

_BEFORE: Final = int(np.iinfo(np.int32).min)


class Ends(NamedTuple):
    """Where steps end: their numbers, and the row after the last one that was read in each."""

    steps: NDArray[np.int64]
    rows: NDArray[np.int64]


Made = dict[int, tuple[str, str]]
"""Dtype and device of some rows, by their places."""


class Moments(NamedTuple):
    """What was shown of some rows, rising, at the end of some steps.

    Attributes:
        steps: The steps.
        rows: The rows.
        numbers: Of each step the numbers.
        made: Of each step the rows that had another dtype or device than they have now.
    """

    steps: NDArray[np.int64]
    rows: Rows
    numbers: list[Numbers]
    made: list[Made]

    def packed(self, places: Rows | None = None, names: Rows | None = None) -> bytes:
        """Write them down; of the rows at some places only, under other numbers if need be."""
        chosen = np.arange(len(self.rows)) if places is None else places
        frames = [
            wire.frame(found.columns, np.empty((len(chosen), 0)), *found[1:])
            for found in (each.pick(chosen) for each in self.numbers)
        ]
        at = {int(place): number for number, place in enumerate(chosen)}
        made = [{at[p]: what for p, what in each.items() if p in at} for each in self.made]
        rows = (self.rows if names is None else names)[chosen]
        return wire.moments(self.steps, rows, frames, made)


def whole(builder: FrameBuilder, budget: int = BUDGET) -> bytes:
    """Return as many moments of all rows as the budget allows, and of fewer rows before of few."""
    numbers, steps = builder.numbers(), len(ends(builder).steps)
    size = numbers.bytes_of_rows()
    room = min(MOST, budget // max(1, int(size.sum())))
    rows = np.arange(len(size))
    if room < min(FEW, steps):
        room, worst = FEW, worst_first(builder)
        rows = np.sort(worst[np.cumsum(size[worst]) <= budget // FEW])
    while len(data := moments(builder, rows, room).packed()) > budget and room > 1:
        room -= 1 + room // 8  # histograms were larger before
    return data


def moments(builder: FrameBuilder, rows: Rows, most: int) -> Moments:
    """Return at most so many moments, evenly spread over the steps.

    The last step is always there, and so are the first one in which something was not finite and
    the one before it, if there is room.
    """
    found, first = ends(builder), builder.tally.firsts["bad"].overall
    kept: set[int] = set()
    if first is not None and most > len((0, -1)) + 1:
        bad = int(np.searchsorted(found.rows, first.row, side="right"))
        kept = {max(bad - 1, 0), bad}
    places = spread(len(found.steps), most, kept)
    chosen = Ends(found.steps[places], found.rows[places])
    then = list(_replayed(builder, chosen, rows))
    return Moments(chosen.steps, rows, [each for each, _ in then], [made for _, made in then])


def ends(builder: FrameBuilder) -> Ends:
    """Return where each step of what was read ended: where a later one began."""
    steps, rows, newest = [], [], _BEFORE
    for first, block in builder.tally.columns.chunks(names=("step",)):
        reached = np.maximum.accumulate(np.append(newest, block["step"].astype(np.int64)))
        begins = np.flatnonzero(np.diff(reached))
        steps.append(reached[begins + 1])
        rows.append(first + begins)
        newest = int(reached[-1])
    begun = np.concatenate([*rows, np.empty(0, np.int64)])
    known = begun < builder.tally.rows
    after = np.append(begun[known], builder.tally.rows)[1:]
    return Ends(np.concatenate([*steps, np.empty(0, np.int64)])[known], after)


def spread(number: int, most: int, kept: set[int]) -> Rows:
    """Return at most `most` of `number` places: the last one, `kept`, and evenly spread ones."""
    if number <= most:
        return np.arange(number)
    even = np.linspace(number - 1, 0, max(1, most - len(kept))).round()
    return np.unique([*even.astype(np.intp), *kept])


def _replayed(builder: FrameBuilder, chosen: Ends, rows: Rows) -> Iterator[tuple[Numbers, Made]]:
    again, now = FrameBuilder(builder.tally.columns, builder.info), _made(builder, rows)
    tables = builder.tally.columns.tables
    for _ in again.tally.stops(chosen.rows.tolist()):
        known = rows < again.tally.sites
        then, places = _made(again, rows[known]), np.flatnonzero(known)
        other = np.flatnonzero(((then != now[:, known]) & (then >= 0)).any(axis=0))
        made = {
            int(places[at]): (tables.dtypes.values[dtype], tables.devices.values[device])
            for at, (dtype, device) in zip(other, then[:, other].T.tolist(), strict=True)
        }
        yield again.numbers(rows[known]).spread(known), made


def _made(builder: FrameBuilder, rows: Rows) -> NDArray[np.int64]:
    """Return the codes of dtype and device of the latest record of each row."""
    return np.stack([builder.tally.latest[name][rows] for name in ("dtype", "device")])
