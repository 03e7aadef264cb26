"""Observation -> row: the only place where `observe`, `stats` and `store` meet.

A row waits here, with the number of its result, until the drain brings the results to the host.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from probe_nb import devices
from probe_nb.block import ROW, joined, of_call, of_kind, of_row, of_site
from probe_nb.errors import FAULT, notify
from probe_nb.observe.calls import Call, Clock
from probe_nb.observe.select import Watched
from probe_nb.observe.shards import held
from probe_nb.observe.sink import Facts, Where
from probe_nb.stats.results import Drained
from probe_nb.stats.summary import NONE, Reducer
from probe_nb.stats.waiting import Flight
from probe_nb.store.columns import Columns
from probe_nb.store.table import ABSENT, Arrays
from probe_nb.terms import (
    STATUS_CODE,
    Direction,
    Role,
    Site,
    Status,
    printable,
    shown,
)

DIRECTION: Final[dict[Role, Direction]] = {
    "input": "forward",
    "output": "forward",
    "param": "forward",
    "buffer": "forward",
    "grad_output": "backward",
    "grad_input": "backward",
    "param_grad": "backward",
    "update": "optimizer",
    "state": "optimizer",
    "value": "forward",
}
"""The direction of a role, where nothing else is said."""

_ANEW: Final = ("param", "buffer", "value")
"""Roles of tensors that are reduced each time: some write to them past what counts versions."""

_OWNED: Final = ("param", "buffer", "param_grad", "update", "state")
"""Roles of what a module has, called or not."""

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)

Spot = tuple[bytes, bool, bool]
"""The code of a site, whether a tensor there may be known already, and whether it is a gradient."""

Kind = tuple[Any, ...]
"""The dtype, shape and device of a tensor, and its number of elements where no shape tells it."""

_PATIENCE: Final = 8
"""Steps whose results may be under way; a device that is further behind is waited for."""


class Recorder:
    """Takes observations (it is the `Sink` of `observe`) and writes rows."""

    def __init__(
        self,
        columns: Columns,
        clock: Clock,
        reducer: Reducer,
        loss_scale: Callable[[], Tensor | None] | None = None,
        rank: int | None = None,
    ) -> None:
        """Write into `columns`; `loss_scale` gives the scale gradients are multiplied by."""
        self._columns = columns
        self._clock = clock
        self._reducer = reducer
        self._loss_scale = loss_scale
        self._rank = ABSENT if rank is None else rank
        self._rows = bytearray()
        self._under_way: deque[tuple[bytearray, Flight]] = deque()
        self._written = len(columns)
        self._kinds: dict[Kind, bytes] = {}
        self._scale_result = NONE
        self._scale_at: tuple[int, int] | None = None
        self._faults: set[tuple[str, str]] = set()
        self._lock = threading.RLock()

    # -- the Sink ---------------------------------------------------------------------------

    def tensor(
        self,
        call: Call,
        where: Where,
        t: Tensor,
        backward: int = -1,
        scale: Tensor | None = None,
    ) -> None:
        """Reduce a tensor and write its row."""
        with self._lock:  # a drain in between would leave the row with a number of the next
            whole, times = t, NONE
            try:
                if type(t) not in _PLAIN:
                    t, part = held(whole)
                    where = (where[0], where[1] + part, *where[2:]) if part else where
                spot = call.watched.sites.get(where) or self._spot(call.watched, where)
                once = spot[1] and t is whole  # nobody counts up the version of a part
                result, status, reused = self._reducer.see(t, once=once)
                if scale is not None:
                    times = self._reducer.see(scale, once=True).result
                elif self._loss_scale is not None and spot[2] and result != NONE:
                    times = self._scale(call)
            except Exception as error:
                self.fault(call.watched, where[0], error)
                spot = self._spot(call.watched, where)
                result, status, reused = NONE, "failed", False
            plain = type(t) in _PLAIN and not t.is_nested
            about: Kind = (t.dtype, t.shape, t.device) if plain else Facts.of(t)[:4]
            kind = self._kinds.get(about) or self._kind(about)
            grad = not spot[2] and t.requires_grad
            row = of_row(backward, result, times, reused, grad, STATUS_CODE[status])
            self._rows += b"".join((call.head or _head(call), spot[0], kind, row))

    def absent(
        self, call: Call, where: Where, facts: Facts, status: Status, backward: int = -1
    ) -> None:
        """Write a row without numbers, with the reason."""
        with self._lock:
            spot = call.watched.sites.get(where) or self._spot(call.watched, where)
            kind = self._kinds.get(facts[:4]) or self._kind(facts[:4])
            grad = not spot[2] and facts.requires_grad
            row = of_row(backward, NONE, NONE, False, grad, STATUS_CODE[status])
            self._rows += b"".join((call.head or _head(call), spot[0], kind, row))

    def fault(self, watched: Watched | None, where: str, error: Exception) -> None:
        """Warn about an error of our own, once per module and place; the run keeps the words."""
        if watched is not None and where not in _OWNED:
            watched.faulty = True
        name = "a module" if watched is None else f"`{shown(watched.path)}`"
        site = (name, where)
        if site in self._faults:
            return
        self._faults.add(site)
        message = (
            f"{FAULT} {name} ({where}): "
            f"{type(error).__name__}: {error}. The model is unaffected; rows may be missing."
        )
        if message not in self._columns.notices:
            self._columns.notices.append(message)
        notify(message)

    def rewrote(self) -> None:
        """Take no tensor as seen: something was written that no version tells of."""
        with self._lock:
            self._reducer.forget()

    def _spot(self, watched: Watched, where: Where) -> Spot:
        """Return what the rows of a site have in common."""
        role, leaf = where[0], printable(where[1])
        way = DIRECTION[role] if len(where) == 2 else where[2]  # noqa: PLR2004 - role and leaf
        site = Site(watched.model, watched.path, watched.type, watched.api, way, role, leaf)
        once = role not in _ANEW and ".grad" not in leaf and way != "optimizer"
        code = of_site(self._columns.tables.sites.code(site))
        spot = watched.sites[where] = (code, once, way == "backward")
        return spot

    def _kind(self, about: Kind) -> bytes:
        """Return what the rows of such tensors have in common."""
        tables, (dtype, shape, device, *numel) = self._columns.tables, about
        kind = self._kinds[about] = of_kind(
            numel[0] if numel else math.prod(shape),
            tables.dtypes.code(str(dtype).removeprefix("torch.")),
            tables.shapes.code(tuple(shape)),
            tables.devices.code(str(device)),
        )
        return kind

    def _scale(self, call: Call) -> int:
        """Return the result that holds the loss scale in force, read once per micro step."""
        now = (call.step, call.micro_step)
        if self._scale_at != now:
            scale = None if self._loss_scale is None else self._loss_scale()
            if scale is None:
                return NONE
            self._scale_result = self._reducer.see(scale, once=False).result
            self._scale_at = now
        return self._scale_result

    # -- the drain ----------------------------------------------------------------------------

    def drain(self, *, wait: bool = True) -> list[str]:
        """Append the rows whose results are on the host; with `wait`, all rows.

        Without, results that a device has not sent yet are left to the next drain. Returns what
        was lost, in words: where the results of one step cannot be had, others still can.
        """
        lost: list[str] = []
        if devices.capturing():  # a copy to the host would break the user's capture
            return lost
        with self._lock:
            self._scale_at = None
            if self._rows:
                rows, self._rows = self._rows, bytearray()
                self._under_way.append((rows, self._reducer.depart()))
            else:
                self._reducer.forget()
            wait |= len(self._under_way) > _PATIENCE
            while self._under_way and (wait or self._under_way[0][1].is_here()):
                rows, flight = self._under_way.popleft()
                try:
                    self._land(rows, flight)
                except Exception as error:
                    step = np.frombuffer(rows, ROW)["step"][0]
                    lost.append(f"rows of step {step} were lost: {error!r}")
        return lost

    def _land(self, rows: bytearray, flight: Flight) -> None:
        drained, errors = flight.land()
        for error in errors:
            notify(f"probe_nb lost results of {error}")
        first, self._written = self._written, self._written + len(rows) // ROW.itemsize
        self._columns.append(self._joined(rows, drained, first))

    def _joined(self, rows: bytearray, drained: Drained, first: int) -> Arrays:
        return joined(rows, drained, self._rank, first)

    @property
    def order(self) -> int:
        """Number of the row that comes next, in the order of execution."""
        with self._lock:
            under_way = sum(len(rows) for rows, _ in self._under_way)
            return self._written + (under_way + len(self._rows)) // ROW.itemsize

    @property
    def waiting(self) -> int:
        """Number of rows that wait for the drain."""
        return len(self._rows) // ROW.itemsize

    def forget(self) -> None:
        """Drop what waits, after a drain failed; nothing of a device is kept."""
        self._rows = bytearray()
        self._under_way.clear()


def _head(call: Call) -> bytes:
    """Return what the rows of a call have in common."""
    call.head = of_call(call.step, call.micro_step, call.number, call.training, call.recompute)
    return call.head
