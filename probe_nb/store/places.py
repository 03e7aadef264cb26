"""Where the run of one process among several is saved: a file of its own in a common folder."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from probe_nb.errors import ConfigError
from probe_nb.terms import RunInfo

RANK: Final = "{rank}"
NAME: Final = "rank{rank}.parquet"
ENDING: Final = ".parquet"


def place_of(path: str | os.PathLike[str], info: RunInfo) -> Path:
    """Return the file that a run is written to.

    `{rank}` in a name is the rank. Of a process among several a path that does not end in
    `.parquet` is a folder; a path that ends in a slash always is, and one where a folder is.

    Raises:
        IsADirectoryError: It is a folder, and the run has no rank that could be its name there.
        ConfigError: The name asks for a rank, and the run has none.
        FileExistsError: The run of another process is there.
    """
    rank, text = _rank(info), os.fspath(path)
    target = Path(text).expanduser()
    separators = tuple(each for each in (os.sep, os.altsep) if each)
    folder = target.is_dir() or text.endswith(separators)
    if RANK in text:
        if rank is None:
            raise ConfigError(f"`{text}` asks for a rank, and this run has none.")
        target = Path(text.replace(RANK, str(rank))).expanduser()
        folder = target.is_dir()
    elif info.rank is not None and target.suffix != ENDING and not target.is_file():
        folder = True
    if folder:
        if rank is None:
            raise IsADirectoryError(
                f"`{target}` is a folder, and this run has no rank: give the path of a file to "
                "write."
            )
        target /= NAME.format(rank=rank)
    if rank is not None:
        _check(target, rank)
    return target


def _rank(info: RunInfo) -> int | None:
    """Return the rank; who launches processes tells them theirs before they join."""
    if info.rank is not None or info.processes:
        return info.rank
    told = os.environ.get("RANK", "")
    return int(told) if told.isdecimal() else None


def _check(target: Path, rank: int) -> None:
    """Hold that no process writes over the run of another."""
    if not target.is_file():
        return
    there = None
    with contextlib.suppress(pa.ArrowException, OSError, ValueError, LookupError, TypeError):
        there = json.loads((pq.read_schema(target).metadata or {})[b"probe_nb"])["info"]["rank"]
    if type(there) is int and there != rank:
        raise FileExistsError(
            f"`{target}` is the run of rank {there}, and this one is of rank {rank}. Give all of "
            f"them a folder, as `run.save({str(target.with_suffix(''))!r})`, or a name with "
            f"`{RANK}` in it."
        )
