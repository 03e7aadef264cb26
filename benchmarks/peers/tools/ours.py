"""probe_nb."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.watching import Watching

DISTRIBUTION = "probe-nb"
HOW = '`watch(model, optimizer=optimizer, level="mix")` (msProbe beside it: mix, too), saved'
LEVEL = "mix"
NOTEBOOK = "%load_ext probe_nb\n%probe_start model"


@contextlib.contextmanager
def watch(model: Any, optimizer: Any, folder: Path) -> Iterator[Watching]:
    """Watch every module at every step."""
    import probe_nb

    with probe_nb.watch(model, optimizer=optimizer, level=LEVEL, live=False) as run:
        yield Watching(model, after=run.step if optimizer is None else lambda: None)
    run.save(folder / "run.parquet")


def numbers(folder: Path) -> Iterator[tuple[str, float]]:
    """Read every column of numbers; a row's words are its module, role and leaf."""
    import probe_nb

    frame = probe_nb.load(folder / "run.parquet").df
    words = frame[["module", "role", "leaf"]].astype(str).agg(" ".join, axis=1)
    for name, column in frame.select_dtypes("number").items():
        there = column.notna()
        for word, value in zip(words[there], column[there], strict=True):
            yield f"{word} {name}", float(value)


def birth(folder: Path, phase: str) -> str:
    """Ask the saved run."""
    del phase
    import probe_nb

    return str(probe_nb.load(folder / "run.parquet").first_nonfinite())
