"""Observation -> row: the only place where `observe`, `stats` and `store` meet.

A row waits here, with the number of its result, until the drain brings the results to the host.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from torch import Tensor

from probe_nb import devices
from probe_nb.errors import notify
from probe_nb.exponents import BINS
from probe_nb.observe.calls import Call, Clock
from probe_nb.observe.select import Watched
from probe_nb.observe.shards import held
from probe_nb.observe.sink import Facts, Where
from probe_nb.stats.results import Drained
from probe_nb.stats.summary import NONE, Reducer, Seen
from probe_nb.store.columns import Columns
from probe_nb.store.table import ABSENT, DTYPES, Arrays, Interned, Tables
from probe_nb.terms import (
    COUNTS,
    STATISTICS,
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
_OK: Final = STATUS_CODE["ok"]
_NO_FINITE: Final = STATUS_CODE["no_finite"]
_OF_CALLS: Final = ("step", "micro_step", "call", "training", "recompute")


class _Row(NamedTuple):
    """A record before its numbers are known. What can be worked out later is worked out later."""

    call: Call
    order: int
    backward: int
    site: int
    facts: Facts
    seen: Seen
    gradient: bool
    scale: int


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
        self._rows: list[_Row] = []
        self._scale_result = NONE
        self._scale_at: tuple[int, int] | None = None
        self._faults: set[tuple[str, str]] = set()
        self._lock = threading.RLock()

    # -- the Sink ---------------------------------------------------------------------------

    def tensor(self, call: Call, where: Where, t: Tensor, backward: int = -1) -> None:
        """Reduce a tensor and write its row."""
        with self._lock:  # a drain in between would leave the row with a number of the next
            self._reduce(call, where, t, backward)

    def _reduce(self, call: Call, where: Where, t: Tensor, backward: int) -> None:
        try:
            t, part = held(t)
            where = (where[0], where[1] + part) if part else where
            once = where[0] not in ("param", "buffer") and ".grad" not in where[1]
            result, status, reused = self._reducer.see(t, once=once)
        except Exception as error:
            self.fault(call.watched, where[0], error)
            result, status, reused = NONE, "failed", False
        seen = Seen(result, status, reused)
        self._write(call, where, Facts.of(t), seen, backward)

    def absent(
        self, call: Call, where: Where, facts: Facts, status: Status, backward: int = -1
    ) -> None:
        """Write a row without numbers, with the reason."""
        with self._lock:
            self._write(call, where, facts, Seen(NONE, status, reused=False), backward)

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

    def _write(self, call: Call, where: Where, facts: Facts, seen: Seen, backward: int) -> None:
        site = call.watched.sites.get(where)
        if site is None:
            site = self._site(call.watched, where)
        gradient = where[0] in _GRADIENTS
        scale = self._scale(call) if gradient and seen.result != NONE else NONE
        order = next(self._clock.order)
        self._rows.append(_Row(call, order, backward, site, facts, seen, gradient, scale))

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

    def drain(self) -> None:
        """Bring all results to the host and append the rows that wait for them."""
        if devices.capturing():  # a copy to the host would break the user's capture
            return
        with self._lock:
            rows, self._rows = self._rows, []
            self._scale_at = None
            drained, errors = self._reducer.drain()
        if not rows:
            return
        for error in errors:
            notify(f"probe_nb lost results of {error}")
        block = _block(rows, drained, self._rank, self._columns.tables)
        _unscale(block, np.array([row.scale for row in rows]), drained)
        self._columns.append(block)

    @property
    def waiting(self) -> int:
        """Number of rows that wait for the drain."""
        return len(self._rows)

    def forget(self) -> None:
        """Drop what waits, after a drain failed; nothing of a device is kept."""
        self._rows = []


def _facts(rows: list[_Row], tables: Tables) -> Arrays:
    """Return the columns that are known without the numbers, and `result`."""
    calls, order, backward, site, facts, seen, gradient, _ = zip(*rows, strict=True)
    dtypes, shapes, at, numel, requires_grad = zip(*facts, strict=True)
    results, statuses, reused = zip(*seen, strict=True)
    when = [(c.step, c.micro_step, c.number, c.training, c.recompute) for c in calls]
    found = dict(zip(_OF_CALLS, zip(*when, strict=True), strict=True)) | {
        "order": order,
        "backward": backward,
        "site": site,
        "dtype": _codes(dtypes, lambda dtype: str(dtype).removeprefix("torch."), tables.dtypes),
        "shape": _codes(shapes, tuple, tables.shapes),
        "device": _codes(at, str, tables.devices),
        "numel": numel,
        "reused": reused,
        "requires_grad": np.array(requires_grad) & ~np.array(gradient),
        "status": [STATUS_CODE[status] for status in statuses],
    }
    block: Arrays = {name: np.array(values, DTYPES[name]) for name, values in found.items()}
    block["result"] = np.array(results)
    return block


def _codes(values: tuple[Any, ...], named: Callable[[Any], Any], table: Interned[Any]) -> list[int]:
    """Return the code of each value under its name; there are few distinct ones."""
    code = {value: table.code(named(value)) for value in set(values)}
    return [code[value] for value in values]


def _block(rows: list[_Row], drained: Drained, rank: int, tables: Tables) -> Arrays:
    """Join rows with the results they point at; several rows may share one result."""
    n = len(rows)
    block = _facts(rows, tables)
    result = block.pop("result")
    block["rank"] = np.full(n, rank, DTYPES["rank"])
    block["loss_scale"] = np.full(n, np.nan)
    block["checksum"] = np.full(n, ABSENT, DTYPES["checksum"])
    there = result >= 0
    statistics = np.full((n, len(STATISTICS)), np.nan)
    counts = np.full((n, len(COUNTS)), ABSENT, np.int64)
    statistics[there] = drained.statistics[result[there]]
    counts[there] = drained.counts[result[there]]
    counts[block["numel"] == 0] = 0
    for i, name in enumerate(STATISTICS):
        block[name] = np.ascontiguousarray(statistics[:, i])
    for i, name in enumerate(COUNTS):
        block[name] = np.ascontiguousarray(counts[:, i])
    lost = there & (counts[:, 0] == ABSENT)
    block["status"][lost] = STATUS_CODE["failed"]
    nothing = there & ~lost & np.isnan(statistics[:, 0])
    block["status"][nothing & (block["status"] == _OK)] = _NO_FINITE
    _add_histograms(block, drained, result)
    return block


def _add_histograms(block: Arrays, drained: Drained, result: np.ndarray) -> None:
    sizes, begin = np.append(drained.sizes, 0), np.append(drained.starts, 0)  # -1 has no bins
    mine, first = sizes[result], begin[result]
    total = int(mine.sum())
    starts = np.cumsum(mine) - mine
    index = np.arange(total) - np.repeat(starts - first, mine)
    block["hist_size"] = mine.astype(np.uint16)
    block["hist_bins"] = drained.bins[index]
    values = drained.values[index]
    small = not total or values.max() < 2**32
    block["hist_counts"] = values.astype(np.uint32 if small else np.int64)


def _unscale(block: Arrays, scale: np.ndarray, drained: Drained) -> None:
    """Divide gradient statistics by the loss scale and move the histograms with them.

    `scale` numbers the result that holds each row's scale: it came to the host with the others.
    """
    for number in np.unique(scale[scale != NONE]):
        value = float(drained.statistics[number, STATISTICS.index("max")])
        if not math.isfinite(value) or value <= 0:
            continue
        rows = scale == number
        block["loss_scale"][rows] = value
        for name in STATISTICS:
            block[name][rows] /= value
        _shift_bins(block, rows, value)


def _shift_bins(block: Arrays, rows: np.ndarray, value: float) -> None:
    """Move the bins of some rows by a power of two, which is exact.

    A row keeps no histogram where it is not: under any other scale, and where a bin that is open
    at its end (float32 subnormals, values from 2**128 on) would be moved away from that end.
    """
    mantissa, exponent = math.frexp(value)
    down = exponent - 1
    if mantissa == 0.5 and down == 0:  # noqa: PLR2004 - a scale of 1
        return
    owner = np.repeat(np.arange(len(rows)), block["hist_size"])
    bins = block["hist_bins"].astype(np.int64)
    open_end = bins % 256 == (0 if down < 0 else 255)
    lost = rows.copy()
    if mantissa == 0.5:  # noqa: PLR2004 - a power of two
        lost &= np.bincount(owner[open_end], minlength=len(rows)) > 0
    shifted = np.clip(bins % 256 - down, 0, 255) + bins // 256 * 256
    bins = np.where(rows[owner], shifted, bins)
    kept = ~lost[owner]
    _merge_bins(block, owner[kept], bins[kept], block["hist_counts"][kept])


def _merge_bins(block: Arrays, owner: np.ndarray, bins: np.ndarray, counts: np.ndarray) -> None:
    """Write histograms back, adding up bins that were moved onto each other."""
    keys, place = np.unique(owner * BINS + bins, return_inverse=True)
    merged = np.zeros(len(keys), np.int64)
    np.add.at(merged, place, counts)
    block["hist_bins"] = (keys % BINS).astype(np.uint16)
    block["hist_counts"] = merged.astype(block["hist_counts"].dtype)
    sizes = np.bincount(keys // BINS, minlength=len(block["hist_size"]))
    block["hist_size"] = sizes.astype(np.uint16)
