"""A folder of msProbe's -> the parts of a run.

Nothing is written and nothing is executed; what is outside of the folder is not opened. What cannot
be read is skipped, and the notices of the run say so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from probe_nb.dump import arrays, folders
from probe_nb.dump.calls import CallReader
from probe_nb.dump.folders import Folder
from probe_nb.dump.records import StepRecords, Tables
from probe_nb.dump.reports import Reports
from probe_nb.dump.source import DumpSource
from probe_nb.dump.walk import Walk
from probe_nb.errors import RunFormatError, SelectionError
from probe_nb.grammar import Steps, steps_in
from probe_nb.progress import Told, progress
from probe_nb.store.calls import Calls
from probe_nb.store.columns import Columns
from probe_nb.store.keeping import Tensors
from probe_nb.store.parts import Parts
from probe_nb.store.values import Values
from probe_nb.terms import READ_FROM, RunInfo, printable

LEVELS: Final = {"L0": "module", "L1": "api", "mix": "mix", "debug": "debug"}
_LOOKED_AT: Final = 50
"""Folders inside one that is no dump."""
_NAMED: Final = 10
"""So many of them are named."""

_ROLES: Final = ("input", "output", "param", "grad_output", "grad_input", "param_grad", "value")


def read(path: Path, *, step: Steps = None, rank: Steps = None, budget: int | None = None) -> Parts:
    """Read a dump.

    Raises:
        FileNotFoundError: Nothing is at `path`.
        RunFormatError: It is no dump, or nothing of it can be read.
        SelectionError: It has no such step or rank.
    """
    if not path.exists():
        raise FileNotFoundError(f"There is nothing at `{path}`.")
    notices: list[str] = []
    reports = Reports(notices)
    found = _chosen(folders.find(path, reports), path, step, rank)
    reader = Reader(budget, notices, reports)
    if step is not None or rank is not None:
        reader.chosen = [[each.step, each.number] for each in found]
    with progress("Reading", sum(map(_size, found)), "B") as told:
        for each in found:
            reader.read(each, told)
    reports.end()
    if not reader.files:
        said = "".join(f" {text}." for text in notices[:3])
        raise RunFormatError(f"Nothing in `{path}` is a dump of msProbe's.{said}{_inside(path)}")
    return reader.parts(path, found)


def _inside(path: Path) -> str:
    """Name the folders inside that are dumps, if there are any."""
    try:
        within = sorted(each for each in path.iterdir() if each.is_dir() and not each.is_symlink())
    except OSError:
        return ""
    there = [each.name for each in within[:_LOOKED_AT] if folders.find(each, lambda _: None)]
    if not there:
        return ""
    first, left = [f"`{each}`" for each in there[:_NAMED]], len(there) - _NAMED
    others = f", and so are {', '.join(first[1:])}" if first[1:] else ""
    more = f" and {left} more" if left > 0 else ""
    return f" `{path / there[0]}` is one{others}{more}: give the folder of one dump."


def _chosen(found: list[Folder], path: Path, step: Steps, rank: Steps) -> list[Folder]:
    """Return the folders of the steps and ranks that are asked for."""
    _, of_step = steps_in(step, "step")
    _, of_rank = steps_in(rank, "rank")
    chosen = [
        each
        for each in found
        if of_step(each.step) and (rank is None or (each.rank is not None and of_rank(each.rank)))
    ]
    if found and not chosen:
        steps, ranks = ({getattr(e, name) for e in found} for name in ("step", "rank"))
        listed = ", ".join(map(str, sorted(steps)[:20]))
        of = ", ".join(str(each) for each in sorted(ranks - {None})[:20]) or "none"
        raise SelectionError(f"`{path}` has no such step or rank. Steps: {listed}. Ranks: {of}.")
    return chosen


def _size(folder: Folder) -> int:
    names = (*folder.dumps, folders.CONSTRUCT, folders.STACK)
    size = 0
    for name in names:
        with contextlib.suppress(OSError):
            size += folder.file(name).stat().st_size
    return size


class Reader:
    """Reads folders, one after the other, into the tables of one run.

    Attributes:
        files: How many files of records, and arrays, were read.
        chosen: The steps and ranks that were asked for, None for all.
    """

    def __init__(self, budget: int | None, notices: list[str], reports: Reports) -> None:
        """Hold at most `budget` bytes of records in memory."""
        self.files = 0
        self._notices, self._reports = notices, reports
        self._calls = Calls(notices=notices)
        self._tables = Tables(Columns(budget=budget, notices=notices), Values(notices=notices))
        self._header: dict[str, Any] = {}
        self._wrapped: dict[str, str] = {}
        self._listed = False
        self.chosen: list[list[int]] | None = None

    def read(self, folder: Folder, told: Told) -> None:
        """Read what one process wrote in one step."""
        if why := folders.without_records(folder):
            self._reports(why)
        for name in folder.dumps:
            self._file(folder, name, told)
        for name in folder.arrays:
            self._array(folder, name)

    def _file(self, folder: Folder, name: str, told: Told) -> None:
        walk = Walk(folder, name, self._reports, told)
        calls = CallReader(self._calls, folder)
        records = StepRecords(self._tables, folder, self._reports)
        for entry in walk.entries():
            records.take(entry)
            calls.add(entry)
        self.files += walk.is_dump
        records.write()
        calls.write(walk, self._reports, told)
        self._header |= walk.header
        self._wrapped |= walk.names.wrapped
        self._listed |= walk.names.listed

    def _array(self, folder: Folder, name: str) -> None:
        try:
            saved = arrays.read(folder.file(name), folder.root)
        except ValueError as error:
            self._reports(f"`{folder.file(name)}` was skipped: {error}")
            return
        records = StepRecords(self._tables, folder, self._reports)
        records.saved(saved)
        records.write()
        self.files += 1
        self._header.setdefault("framework", "mindspore")

    # -- the run ----------------------------------------------------------------------------------

    def parts(self, path: Path, found: Sequence[Folder]) -> Parts:
        """Return what the run is made of."""
        sites = self._tables.columns.tables.sites.values
        modules = {(each.model, each.module): each.type for each in sites if each.module}
        kind = f"msProbe {_said(self._header.get('level'))}".rstrip()
        models = dict.fromkeys((each.model for each in sites if each.model), kind)
        info = RunInfo(
            name=path.resolve().name,
            created="",
            models=models or {"model": kind},
            modules=len(modules),
            config=self._config(path),
            versions={},
            devices=[],
            rank=None,
            ended="read from a dump",
            steps=len({each.step for each in found}),
            notices=self._notices,
        )
        ranks = {each.rank for each in found}
        info.rank = ranks.pop() if len(ranks) == 1 else None
        self._introduce(path, info)
        source = DumpSource(path.absolute(), found) if self._has_tensors() else None
        tables = self._tables
        return Parts(info, tables.columns, Tensors(source=source), self._calls, tables.values)

    def _has_tensors(self) -> bool:
        return self._header.get("task") == "tensor" or bool(self._header.get("dump_data_dir"))

    def _config(self, path: Path) -> dict[str, Any]:
        said = {name: _said(self._header.get(name)) for name in ("task", "level", "framework")}
        dump: dict[str, Any] = {"path": str(path.absolute()), **said}
        dump |= {} if self.chosen is None else {"chosen": self.chosen}
        return {
            "level": LEVELS.get(said["level"], said["level"]),
            "roles": list(_ROLES),
            "dump": dump
            | {"ours": self._tables.ours, "listed": self._listed, "wrapped": self._wrapped},
        }

    def _introduce(self, path: Path, info: RunInfo) -> None:
        about = info.config["dump"]
        said = [f"{name} {about[name]}" for name in ("level", "task", "framework") if about[name]]
        text = f"{READ_FROM}, `{path}`: {', '.join(said) or 'of unknown kind'}."
        if self._listed:
            text += " The first number in the names of its modules was read as that of a model."
        info.notices.insert(0, text)


def _said(value: Any) -> str:
    return printable(value[:100]) if isinstance(value, str) else ""
