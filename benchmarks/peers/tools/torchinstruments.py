"""torchinstruments, every step of it: by default it looks once a minute."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.watching import Watching

DISTRIBUTION = "torchinstruments"
HOW = "`inject_observer(model, sampler=AlwaysSampler())`; by default it looks once a minute"
NOTEBOOK = ""


@contextlib.contextmanager
def watch(model: Any, optimizer: Any, folder: Path) -> Iterator[Watching]:
    """Sample every forward and its backward."""
    del optimizer
    from torchinstruments import AlwaysSampler, inject_observer, remove_observer

    inject_observer(model, sampler=AlwaysSampler(), output_dir=folder / "stats")
    yield Watching(model)
    remove_observer(model)


def numbers(folder: Path) -> Iterator[tuple[str, float]]:
    """Read its history."""
    import polars as pl

    frame = pl.read_parquet(folder / "stats" / "history.parquet")
    for row in frame.iter_rows(named=True):
        if row["value"] is not None:
            words = ("layer", "signal", "tensor_path", "metric")
            yield " ".join(str(row[each]) for each in words), float(row["value"])


def birth(folder: Path, phase: str) -> str:
    """There is no such question."""
    del folder, phase
    return ""
