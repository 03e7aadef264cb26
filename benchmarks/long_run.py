"""A long run: ten million records within a memory budget, and what reading them costs.

    python -m benchmarks.long_run                   # 10 million records, memory=256MiB
    python -m benchmarks.long_run 1000000 none      # one million, all in memory

Records are made up: twenty histogram bins each, 200 sites, one step after the other. Times are
ratios against plain numpy and pandas on as many numbers; peak memory is what this process had at
most, above what it had before the first record.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import probe_nb as probe
from probe_nb.grammar import as_bytes, spelled
from probe_nb.run import Run
from probe_nb.store.columns import Columns
from probe_nb.store.table import ABSENT, DTYPES, Arrays
from probe_nb.terms import STATISTICS, RunInfo, Site
from probe_nb.view.frame import FrameBuilder

SITES, CALLS, BINS = 200, 10, 20
"""Rows of a drain are `SITES * CALLS`; each has so many histogram bins."""

SMALL = 10**6
"""Up to so many records all of them are put into one frame."""


def rows_of(drain: int, rng: np.random.Generator) -> Arrays:
    """Return the records of one drain."""
    n = SITES * CALLS
    block: Arrays = {name: np.zeros(n, dtype) for name, dtype in DTYPES.items()}
    block["step"][:] = np.repeat(np.arange(CALLS), SITES) + drain * CALLS
    block["order"] = np.arange(n) + drain * n
    block["site"] = np.tile(np.arange(SITES, dtype=np.int32), CALLS)
    block["numel"][:] = 4096
    for name in STATISTICS:
        block[name] = rng.standard_normal(n, np.float32).astype(np.float64)
    for name in ("rank", "backward", "checksum"):
        block[name][:] = ABSENT
    block["loss_scale"][:] = np.nan
    block["hist_size"] = np.full(n, BINS, np.uint16)
    block["hist_bins"] = np.tile(np.arange(110, 110 + BINS, dtype=np.uint16), n)
    block["hist_counts"] = rng.integers(1, 400, n * BINS, np.uint32)
    return block


def with_sites(budget: int | None) -> Columns:
    """Return columns that know their sites."""
    columns = Columns(budget=budget)
    for number in range(SITES):
        site = Site("model", f"layers.{number}", "Linear", "", "forward", "output", "0")
        columns.tables.sites.code(site)
    columns.tables.dtypes.code("float32")
    columns.tables.devices.code("cpu")
    columns.tables.shapes.code((64, 64))
    return columns


def peak() -> int:
    """Return the most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Return how long it took, and what it gave."""
    begin = time.perf_counter()
    found = action()
    return time.perf_counter() - begin, found


class Table:
    """What was measured, printed as soon as it is known."""

    def __init__(self) -> None:
        self.base = peak()
        self.seconds: dict[str, float] = {}

    def add(self, what: str, seconds: float) -> None:
        """Add a time, with the peak memory up to here."""
        self.seconds[what] = seconds
        above = spelled(max(peak() - self.base, 0))
        print(f"{what:<26}{seconds:9.2f} s   peak memory {above:>9} above the start")

    def ratios(self, unit: float) -> None:
        """Print every time as a multiple of a plain frame's."""
        print(f"a plain frame of as many records: {unit:.2f} s; in multiples of it:")
        for what, seconds in self.seconds.items():
            print(f"{what:<26}{seconds / unit:9.2f} x")


def record(columns: Columns, drains: int, live: FrameBuilder) -> tuple[float, float, float]:
    """Append; return the seconds of all drains, of the slowest one, and of the live view."""
    rng, total, slowest, viewed = np.random.default_rng(0), 0.0, 0.0, 0.0
    for drain in range(drains):
        block = rows_of(drain, rng)
        seconds, _ = timed(lambda block=block: columns.append(block))
        total, slowest = total + seconds, max(slowest, seconds)
        if drain % 10 == 0:
            viewed += timed(live.update)[0]
    return total, slowest, viewed


def baseline(records: int) -> float:
    """Return the seconds in which numpy and pandas make a frame of as many plain numbers."""
    plain = {name: np.ones(records, dtype) for name, dtype in DTYPES.items()}
    make = lambda: pd.DataFrame({name: each.copy() for name, each in plain.items()})  # noqa: E731
    return min(timed(make)[0] for _ in range(5))


def main(records: int, memory: str) -> None:
    """Record, read and save a long run, and print what that took."""
    drains = records // (SITES * CALLS)
    records = drains * SITES * CALLS
    rows_of(0, np.random.default_rng(0))
    print(f"{records:,} records, memory={memory}")
    table = Table()
    columns = with_sites(as_bytes(memory))
    info = RunInfo("long", "", {"model": "Net"}, SITES, {}, {}, ["cpu"])
    run = Run(info, columns)
    total, slowest, viewed = record(columns, drains, FrameBuilder(columns, info))
    table.add("recording", total)
    table.add("slowest drain", slowest)
    table.add("a live view beside it", viewed)
    files = sorted(columns._folder.path.iterdir()) if columns._folder else []  # noqa: SLF001
    disk = sum(each.stat().st_size for each in files)
    print(f"on disk: {columns.spilled:,} records, {len(files)} files, {spelled(disk)}")
    middle = drains * CALLS // 2
    asked: dict[str, Callable[[], Any]] = {
        "frame of one step": lambda: run.frame(step=middle),
        "history of one site": lambda: run.history("layers.7"),
        "histogram": lambda: run.histogram("layers.7", step=middle),
        "report, read from nothing": lambda: repr(run),
    }
    for what, action in asked.items():
        table.add(what, timed(action)[0])
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:  # noqa: S108
        path = Path(folder) / "run.parquet"
        table.add("save", timed(lambda: run.save(path))[0])
        print(f"saved: {spelled(path.stat().st_size)}")
        seconds, loaded = timed(lambda: probe.load(path, memory=memory))
        table.add("load", seconds)
        if len(loaded) != records:
            raise RuntimeError(f"{records:,} records were saved, {len(loaded):,} loaded")
        del loaded
    if records <= SMALL:
        table.add("frame of all", min(timed(run.frame)[0] for _ in range(5)))
    part = min(records, SMALL)
    table.ratios(baseline(part) * records / part)


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 10**7,
        sys.argv[2] if len(sys.argv) > 2 else "256MiB",  # noqa: PLR2004
    )
