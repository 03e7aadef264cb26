"""Observation -> row: the only place where `observe`, `stats` and `store` meet.

A row waits here, with the number of its result, until the drain brings the results to the host.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from probe_nb import devices
from probe_nb.block import FIELDS, REQUIRES_GRAD, REUSED, Rows, joined
from probe_nb.errors import notify
from probe_nb.observe.calls import Call, Clock
from probe_nb.observe.select import Watched
from probe_nb.observe.shards import held
from probe_nb.observe.sink import Facts, Where
from probe_nb.stats.summary import NONE, Reducer
from probe_nb.stats.waiting import Flight
from probe_nb.store.columns import Columns
from probe_nb.store.table import ABSENT
from probe_nb.terms import (
    STATUS_CODE,
    Direction,
    Role,
    Site,
    Status,
    printable,
    shown,
)

_DIRECTION: Final[dict[Role, Direction]] = {
    "input": "forward",
    "output": "forward",
    "param": "forward",
    "buffer": "forward",
    "grad_output": "backward",
    "grad_input": "backward",
    "param_grad": "backward",
}
_GRADIENTS: Final = frozenset(role for role, way in _DIRECTION.items() if way == "backward")
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
_PATIENCE: Final = 8
"""Steps whose results may be under way; a device that is further behind is waited for."""


class Recorder:
    """Takes observations (it is the `Sink` of `observe`) and writes rows."""

    def __init__(
        self,
        columns: Columns,
        clock: Clock,
        reducer: Reducer,
        loss_scale: Callable[[], Tensor | None] = lambda: None,
        rank: int | None = None,
    ) -> None:
        """Write into `columns`; `loss_scale` gives the scale gradients are multiplied by."""
        self._columns = columns
        self._clock = clock
        self._reducer = reducer
        self._loss_scale = loss_scale
        self._rank = ABSENT if rank is None else rank
        self._rows: Rows = []
        self._under_way: deque[tuple[Rows, Flight]] = deque()
        self._scale_result = NONE
        self._scale_at: tuple[int, int] | None = None
        self._faults: set[tuple[str, str]] = set()
        self._lock = threading.RLock()

    # -- the Sink ---------------------------------------------------------------------------

    def tensor(self, call: Call, where: Where, t: Tensor, backward: int = -1) -> None:
        """Reduce a tensor and write its row."""
        with self._lock:  # a drain in between would leave the row with a number of the next
            try:
                once = where[0] not in ("param", "buffer") and ".grad" not in where[1]
                if type(t) not in _PLAIN:
                    whole = t
                    t, part = held(whole)
                    where = (where[0], where[1] + part) if part else where
                    once &= t is whole  # a part has a version of its own, which nobody counts up
                result, status, reused = self._reducer.see(t, once=once)
            except Exception as error:
                self.fault(call.watched, where[0], error)
                result, status, reused = NONE, "failed", False
            if type(t) in _PLAIN and not t.is_nested:  # as `Facts.of`, without the name of each
                facts = (t.dtype, tuple(t.shape), t.device, t.numel(), t.requires_grad)
            else:
                facts = Facts.of(t)
            self._write(call, where, facts, (result, status, reused), backward)

    def absent(
        self, call: Call, where: Where, facts: Facts, status: Status, backward: int = -1
    ) -> None:
        """Write a row without numbers, with the reason."""
        with self._lock:
            self._write(call, where, facts, (NONE, status, False), backward)

    def fault(self, watched: Watched | None, where: str, error: Exception) -> None:
        """Warn about an error of our own, once per module and place."""
        name = "a module" if watched is None else f"`{shown(watched.path)}`"
        site = (name, where)
        if site in self._faults:
            return
        self._faults.add(site)
        message = (
            f"probe_nb could not record {name} ({where}): "
            f"{type(error).__name__}: {error}. The model is unaffected; rows may be missing."
        )
        notify(message)

    def _write(
        self,
        call: Call,
        where: Where,
        facts: tuple[torch.dtype, tuple[int, ...], torch.device, int, bool],
        seen: tuple[int, Status, bool],
        backward: int,
    ) -> None:
        site = call.watched.sites.get(where)
        if site is None:
            site = self._site(call.watched, where)
        dtype, shape, device, numel, requires_grad = facts
        result, status, reused = seen
        flags, scale = REUSED * reused, NONE
        if where[0] not in _GRADIENTS:
            flags += REQUIRES_GRAD * requires_grad
        elif result != NONE:
            scale = self._scale(call)
        shape_code = self._columns.tables.shapes.code(shape)
        order, code = next(self._clock.order), STATUS_CODE[status]
        about = (call, order, backward, site, dtype, shape_code, device, numel)
        self._rows += (*about, flags, code, result, scale)

    def _site(self, watched: Watched, where: Where) -> int:
        role, leaf = where[0], printable(where[1])
        site = Site(watched.model, watched.path, watched.type, "", _DIRECTION[role], role, leaf)
        code = watched.sites[where] = self._columns.tables.sites.code(site)
        return code

    def _scale(self, call: Call) -> int:
        """Return the result that holds the loss scale in force, read once per micro step."""
        now = (call.step, call.micro_step)
        if self._scale_at != now:
            scale = self._loss_scale()
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
                rows, self._rows = self._rows, []
                self._under_way.append((rows, self._reducer.depart()))
            else:
                self._reducer.forget()
            wait |= len(self._under_way) > _PATIENCE
            while self._under_way and (wait or self._under_way[0][1].is_here()):
                rows, flight = self._under_way.popleft()
                try:
                    self._land(rows, flight)
                except Exception as error:
                    lost.append(f"rows of step {rows[0].step} were lost: {error!r}")
        return lost

    def _land(self, rows: Rows, flight: Flight) -> None:
        drained, errors = flight.land()
        for error in errors:
            notify(f"probe_nb lost results of {error}")
        self._columns.append(joined(rows, drained, self._rank, self._columns.tables))

    @property
    def waiting(self) -> int:
        """Number of rows that wait for the drain."""
        return len(self._rows) // FIELDS

    def forget(self) -> None:
        """Drop what waits, after a drain failed; nothing of a device is kept."""
        self._rows = []
        self._under_way.clear()
