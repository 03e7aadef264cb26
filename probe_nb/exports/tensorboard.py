"""TensorBoard's event files, by tensorboardX, which is loaded here and nowhere else."""

from __future__ import annotations

import importlib
import secrets
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from probe_nb.appending import appended
from probe_nb.exponents import Histogram
from probe_nb.exports.layout import FEATURES, Layout, Row
from probe_nb.exports.lines import Line, lines
from probe_nb.store.columns import Columns

_VERSION: Final = "brain.Event:2"
_CHUNK: Final = 2**20
_NO_NUMBERS: Final = ("shape", "dtype")
STATISTICS: Final = ("min", "max", "mean", "l2")
_COUNTS: Final = ("nan_count", "posinf_count", "neginf_count")


class BoardError(ImportError):
    """TensorBoard files were asked for, and the library that writes them is not there."""


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BoardError(
            "tensorboardX writes TensorBoard's files and is not installed: "
            "`pip install probe-nb[tensorboard]`."
        ) from error


class Events:
    """One event file, written without a thread: that of tensorboardX waits for ever on a full disk.

    tensorboardX would also change names that have a colon or a bracket.
    """

    def __init__(self, folder: Path) -> None:
        _library("tensorboardX")
        self._summary = _library("tensorboardX.proto.summary_pb2")
        self._event = _library("tensorboardX.proto.event_pb2").Event
        self._sum = _library("tensorboardX.record_writer").masked_crc32c
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() // 10**9}.{socket.gethostname()}"
        self._path = folder / f"{name}.{secrets.token_hex(4)}"
        self._head = self._record(self._event(wall_time=time.time(), file_version=_VERSION))
        self._waiting = bytearray()

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Write one number."""
        self._write(self._summary.Summary.Value(tag=tag, simple_value=value), step)

    def histogram(self, tag: str, line: Line, histogram: Histogram) -> None:
        """Write the histogram of the finite elements of a row."""
        limits, counts = buckets(histogram)
        total = sum(counts)
        if not total or line.mean is None or line.l2 is None:
            return
        made = self._summary.HistogramProto(
            min=line.min,
            max=line.max,
            num=total,
            sum=line.mean * total,
            sum_squares=line.l2 * line.l2,
            bucket_limit=limits,
            bucket=counts,
        )
        self._write(self._summary.Summary.Value(tag=tag, histo=made), line.step)

    def _write(self, value: Any, step: int) -> None:
        summary = self._summary.Summary(value=[value])
        event = self._event(wall_time=time.time(), step=step, summary=summary)
        self._waiting += self._record(event)
        if len(self._waiting) > _CHUNK:
            self.flush()

    def _record(self, event: Any) -> bytes:
        """Return an event as TensorBoard reads one: its length, itself, and a sum of each."""
        data = event.SerializeToString()
        size = struct.pack("<Q", len(data))
        sums = [struct.pack("<I", self._sum(each)) for each in (size, data)]
        return bytes(size + sums[0] + data + sums[1])

    def flush(self) -> None:
        """Have everything in the file; what finds no room there is lost.

        Raises:
            OSError: It cannot be written.
        """
        waiting, self._waiting = self._waiting, bytearray()
        if waiting or not self._path.exists():
            appended(self._path, bytes(waiting if self._path.exists() else self._head + waiting))


class Board:
    """One folder of event files for each table, as msProbe's converter lays them out.

    Raises:
        BoardError: tensorboardX is not installed.
    """

    def __init__(self, folder: Path) -> None:
        _library("tensorboardX")
        self._folder = folder
        self._events: dict[str, Events] = {}

    def write(self, tables: Mapping[str, Iterable[Row]], layout: Layout) -> None:
        """Write the numbers of tables, one line over steps each: `vp0:fc.output:micro0/min`."""
        for table, rows in tables.items():
            if table not in self._events:
                self._events[table] = Events(self._folder / table)
            events = self._events[table]
            ops = FEATURES.get(table, layout.ops)
            for row in rows:
                micro = "" if row.micro_step is None else f":micro{row.micro_step}"
                tag = f"vp{row.vpp_stage}:{row.name}{micro}"
                for op, value in zip(ops, row.values, strict=True):
                    if op not in _NO_NUMBERS and value is not None:
                        events.scalar(f"{tag}/{op}", value, row.step)
            events.flush()

    def close(self) -> None:
        """Have everything in the files."""
        for events in self._events.values():
            events.flush()
        self._events.clear()


def write_run(columns: Columns, folder: Path) -> int:
    """Write every row of a run: its statistics, counts that are not 0, and its histogram.

    Returns how many rows had numbers.
    """
    events = Events(folder)
    used: dict[tuple[str, int], int] = {}
    try:
        for line in lines(columns):
            if line.measured:
                _write_row(events, columns, line, used)
    finally:
        events.flush()
    return sum(used.values())


def _write_row(
    events: Events, columns: Columns, line: Line, used: dict[tuple[str, int], int]
) -> None:
    tag = _tag(line)
    again = used.get((tag, line.step), 0)
    used[tag, line.step] = again + 1
    tag += f"#{again}" if again else ""
    for name in STATISTICS:
        if (value := getattr(line, name)) is not None:
            events.scalar(f"{tag}/{name}", value, line.step)
    for name in _COUNTS:
        if count := getattr(line, name):
            events.scalar(f"{tag}/{name}", count, line.step)
    histogram = columns.histogram(line.label)
    if histogram is not None and line.numel != 1:
        events.histogram(f"{tag}/histogram", line, histogram)


def _tag(line: Line) -> str:
    """Return `layers.0.fc/forward.output.0`, with the model in front where it has a name."""
    module = line.module or "(root)"
    where = module if line.model in ("", "model") else f"{line.model}/{module}"
    api = f"/{line.api}" if line.api else ""
    return f"{where}{api}/{line.direction}.{line.role}.{line.leaf}"


def buckets(histogram: Histogram) -> tuple[list[float], list[int]]:
    """Return upper limits and counts of the finite elements, as TensorBoard takes them.

    A bucket reaches from the limit before it. The powers of two are limits; between those of the
    smallest numbers lie the zeros.
    """
    signed = histogram.signed()
    low = min((e for _, e, _ in signed), default=0)
    edges: dict[float, int] = {}
    for sign, exponent, count in signed:
        near, far = 2.0**exponent, 2.0 ** (exponent + 1)
        outer, inner = (-far, -near) if sign < 0 else (near, far)
        edges.setdefault(outer, 0)
        edges[inner] = edges.get(inner, 0) + count
    if histogram.zero:
        edges.setdefault(-(2.0**low), 0)
        edges[2.0**low] = edges.get(2.0**low, 0) + histogram.zero
    limits = sorted(edges)
    return limits, [edges[limit] for limit in limits]
