"""`random_save`: every random call of a script in a CSV file, as msProbe writes it."""

from __future__ import annotations

import atexit
import csv
import io
import os
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, Final

from probe_nb.appending import appended
from probe_nb.errors import ConfigError
from probe_nb.reproduce import frames
from probe_nb.reproduce.finding import Call, RandomCalls

_HEAD: Final = ("api_name", "stack")
_open: list[RandomCalls] = []
"""The one that `random_save` began and nobody stopped, if there is one."""


class Writing(RandomCalls):
    """The random calls since `random_save`, which are written as they are made."""

    def __enter__(self) -> Writing:  # noqa: PYI034 - `Self` is of Python 3.11
        """Return this; it began when it was made."""
        return self


def random_save(output_path: str = "./output") -> Writing:
    """Write every random call to a CSV file from now on, until `.stop()` or the process ends.

    The file is `random_rank{id}_{timestamp}.csv`, or `random_proc{pid}_{timestamp}.csv` in a
    process that has no rank, with the columns `api_name` and `stack`. A call is written when it
    is made. Called again, the file before is closed and another one begun.

    Args:
        output_path: The folder; it is made if it is not there.

    Returns:
        A handle: `.stop()` ends it, `.df` is the table of `find_random`. Also a context manager.

    Raises:
        ConfigError: `output_path` is not a text.
        OSError: The folder or the file cannot be made.

    >>> import tempfile, torch, probe_nb as probe
    >>> with probe.random_save(tempfile.mkdtemp()) as calls:
    ...     _ = torch.rand(2)
    >>> calls.df["api_name"].tolist()
    ['torch.rand']
    """
    if not isinstance(output_path, str):
        raise ConfigError(f"`output_path` is {output_path!r}; give the name of a folder.")
    _stop()
    calls = Writing(_File(Path(output_path).expanduser()))
    calls.start()
    _open.append(calls)
    atexit.unregister(_stop)
    atexit.register(_stop)
    return calls


def _stop() -> None:
    while _open:
        _open.pop().stop()


class _File:
    """One file in each process: a forked one begins its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder.absolute()  # the user may change directories
        self._counts: Counter[str] = Counter()
        self._begin()

    def __call__(self, call: Call, frame: FrameType | None) -> None:
        """Write a call that was just made."""
        if self._pid != os.getpid():
            self._counts.clear()
            self._begin()
        self._rename()
        name = call.api_name.rpartition(".")[2]
        full = f"{_library(call)}.{name}"
        self._write((f"{full}.{self._counts[full]}", _stack(frame)))
        self._counts[full] += 1

    def _begin(self) -> None:
        self._pid, self._rank = os.getpid(), _rank()
        self._time = time.strftime("%Y%m%d%H%M%S")
        self._path = self._named()
        with self._path.open("w", encoding="utf-8-sig", newline="") as file:
            csv.writer(file).writerow(_HEAD)

    def _named(self) -> Path:
        whose = f"proc{self._pid}" if self._rank is None else f"rank{self._rank}"
        return self._folder / f"random_{whose}_{self._time}.csv"

    def _rename(self) -> None:
        """Give the file the name of the rank, once there is one."""
        if self._rank is None and (rank := _rank()) is not None:
            self._rank = rank
            self._path = self._path.rename(self._named())

    def _write(self, row: tuple[str, str]) -> None:
        text = io.StringIO(newline="")
        csv.writer(text).writerow(row)
        appended(self._path, text.getvalue().encode())


def _library(call: Call) -> str:
    """Return msProbe's word for where a function is from."""
    is_method = call.api_name.startswith("torch.Tensor.")
    return "tensor_random" if is_method else f"{call.library}_random"


def _stack(frame: FrameType | None) -> str:
    """Return the frames as msProbe writes them: innermost first, those of torch among them."""
    lines = []
    for each in frames.outward(frame):
        module = str(each.f_globals.get("__name__"))
        if module.partition(".")[0] in {"probe_nb", "IPython", "ipykernel"}:
            continue
        line = frames.line_of(each)
        if line.code:
            place = f"File {line.file}, line {line.line}, in {line.function}"
            lines.append(f"{place}, \n {line.code} \n")
    return "".join(lines)


def _rank() -> int | None:
    """Return the rank of this process, None where it has none."""
    distributed: Any = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank())
