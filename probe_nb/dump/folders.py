"""Where in a folder of msProbe's what is: steps, ranks, files. Nothing outside of it is touched."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from probe_nb.dump.reports import Report

DUMP: Final = "dump.json"
DEBUG: Final = "debug.json"
CONSTRUCT: Final = "construct.json"
STACK: Final = "stack.json"
TENSORS: Final = "dump_tensor_data"

_STEP: Final = re.compile(r"step(0|[1-9][0-9]{0,8})")
_RANK: Final = re.compile(r"rank(0|[1-9][0-9]{0,8})?")
_PROCESS: Final = re.compile(r"proc([0-9]{1,10})")
_LARGEST_RANK: Final = 32_767


@dataclass(frozen=True)
class Folder:
    """What one process wrote in one step.

    Attributes:
        path: The folder.
        root: What must hold every file that is opened.
        step: The step, 0 where no folder says so.
        rank: The rank, None where there is none.
        dumps: Its files of records.
        arrays: Arrays that MindSpore's `save` wrote straight into it.
    """

    path: Path
    root: Path
    step: int
    rank: int | None
    dumps: tuple[str, ...] = (DUMP, DEBUG)
    arrays: tuple[str, ...] = field(default=())

    @property
    def number(self) -> int:
        """The rank as records have it, -1 where there is none."""
        return -1 if self.rank is None else self.rank

    def file(self, name: str) -> Path:
        """Return the path of one of its files."""
        return self.path / name


def folder_of(step: int, rank: int) -> str:
    """Return the name of the folder of a step and rank; without a rank (-1) it is the process's."""
    return f"step{step}/rank{rank}" if rank >= 0 else f"step{step}/proc{os.getpid()}"


def is_inside(path: Path, root: Path) -> bool:
    """Tell whether a path is in a folder, wherever links lead."""
    real = os.path.realpath(path)
    return os.path.commonpath([real, os.path.realpath(root)]) == os.path.realpath(root)


def trouble(path: Path, root: Path) -> str:
    """Say why a file is not opened, "" if it is fit to be."""
    try:
        if not is_inside(path, root):
            return "it leads out of the folder"
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "it is not there"
    except (OSError, ValueError) as error:
        return f"it cannot be read ({error})"
    return "" if stat.S_ISREG(mode) else "it is no file"


def without_records(folder: Folder) -> str:
    """Say that a process left nothing that tells of calls, "" if it did.

    Records are written at the end of a step, tensors when they are seen.
    """
    if folder.dumps or folder.arrays:
        return ""
    tensors, count = folder.file(TENSORS), 0
    if is_inside(tensors, folder.root):
        with contextlib.suppress(OSError):
            count = sum(1 for each in tensors.iterdir() if each.suffix in (".pt", ".npy"))
    left = f" beside its {count:,} tensors, whose names alone say what they are" if count else ""
    return (
        f"`{folder.path}` was skipped: there is no {DUMP} in it{left}. Its process ended before "
        "the step did, or is not done with it"
    )


def find(path: Path, report: Report) -> list[Folder]:
    """Return what is in a folder, by steps and ranks; `path` may be any level of it, or a file."""
    if not path.is_dir():
        found = _alone(path.parent, path.parent, (path.name,))
        return [found]
    if any(_is_there(path / name) for name in (DUMP, DEBUG)):
        return [_alone(path, path, _dumps(path))]
    if _STEP.fullmatch(path.name) and (ranks := _ranks(path, path, _number(path.name), report)):
        return ranks
    steps = [each for each in _folders(path, path, report) if _STEP.fullmatch(each.name)]
    if steps:
        steps.sort(key=lambda each: _number(each.name))
        return [one for each in steps for one in _ranks(each, path, _number(each.name), report)]
    ranks = _ranks(path, path, 0, report)
    arrays = _arrays(path)
    if not ranks and arrays:
        return [_alone(path, path, (), arrays)]
    return ranks


def _alone(path: Path, root: Path, dumps: tuple[str, ...], arrays: tuple[str, ...] = ()) -> Folder:
    """Return one folder; its name and its parent's say which step and rank it is."""
    full = path.absolute()
    rank = _RANK.fullmatch(full.name)
    number = int(rank[1]) if rank and rank[1] else None
    step = _STEP.fullmatch(full.parent.name)
    fits = number is None or number <= _LARGEST_RANK
    return Folder(path, root, int(step[1]) if step else 0, number if fits else None, dumps, arrays)


def _ranks(step: Path, root: Path, number: int, report: Report) -> list[Folder]:
    """Return the folders of the processes in a step, by rank."""
    if any(_is_there(step / name) for name in (DUMP, DEBUG)):
        return [Folder(step, root, number, None, _dumps(step))]
    found, processes = [], []
    for each in _folders(step, root, report):
        if rank := _RANK.fullmatch(each.name):
            value = int(rank[1]) if rank[1] else None
            if value is not None and value > _LARGEST_RANK:
                report(f"`{each}` was skipped: its rank is too large")
                continue
            found.append((value, each))
        elif _PROCESS.fullmatch(each.name):
            processes.append(each)
    found += _numbered(processes, step, report)
    found.sort(key=lambda pair: (pair[0] is None, pair[0] or 0))
    return [
        Folder(path, root, number, rank, _dumps(path), () if _dumps(path) else _arrays(path))
        for rank, path in found
    ]


def _numbered(processes: list[Path], step: Path, report: Report) -> list[tuple[int | None, Path]]:
    """Return processes of which nobody knows the rank; of several each has a number."""
    if len(processes) < 2:  # noqa: PLR2004 - one needs no number
        return [(None, each) for each in processes]
    processes.sort(key=lambda each: int(each.name.removeprefix("proc")))
    said = ", ".join(f"{place} is {each.name}" for place, each in enumerate(processes))
    report(f"`{step}` holds several processes without a rank. They are told apart as: {said}")
    return list(enumerate(processes))


def _folders(path: Path, root: Path, report: Report) -> list[Path]:
    found = []
    try:
        entries = sorted(path.iterdir())
    except OSError as error:
        report(f"`{path}` was skipped: it cannot be read ({error})")
        return []
    for each in entries:
        if not any(kind.fullmatch(each.name) for kind in (_STEP, _RANK, _PROCESS)):
            continue
        if not is_inside(each, root):
            report(f"`{each}` was skipped: it leads out of the folder")
        elif each.is_dir():
            found.append(each)
    return found


def _number(name: str) -> int:
    return int(name.removeprefix("step"))


def _is_there(path: Path) -> bool:
    return os.path.lexists(path)


def _dumps(path: Path) -> tuple[str, ...]:
    return tuple(name for name in (DUMP, DEBUG) if _is_there(path / name))


def _arrays(path: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(each.name for each in path.iterdir() if each.suffix == ".npy"))
    except OSError:
        return ()
