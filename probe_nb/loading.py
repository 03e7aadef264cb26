"""Saved runs: the file of one, or a folder with a file of each process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from probe_nb.dump import folders, source
from probe_nb.errors import RunFormatError, notify
from probe_nb.progress import Told, progress, silent
from probe_nb.store import beside, files
from probe_nb.store.calls import Calls
from probe_nb.store.columns import Columns
from probe_nb.store.keeping import streamed
from probe_nb.store.merging import Member, merge
from probe_nb.store.parts import Parts
from probe_nb.store.places import ENDING
from probe_nb.store.values import Values

_NUMBER: Final = re.compile(r"(\d+)$")


def read(path: Path, budget: int | None = None) -> Parts:
    """Read a saved run, or those of several processes in a folder as one.

    Raises:
        FileNotFoundError: Nothing is at `path`.
        RunFormatError: It is no run, or no folder of runs that belong together.
        OSError: The records exceed the budget, and the disk has no room for the rest.
    """
    if not path.is_dir():
        with progress("Loading", files.size_of(path), "B") as told:
            return read_file(path, budget, told)
    found = sorted((each for each in path.glob(f"*{ENDING}") if each.is_file()), key=_by_number)
    if found:
        return read_folder(path, found, budget)
    try:
        info, _, kept = streamed(path.absolute())
    except RunFormatError as error:
        if not folders.find(path, lambda _: None):
            raise
        raise RunFormatError(
            f"`{path}` is laid out as a dump of msProbe's. Open it with `probe.read_dump`."
        ) from error
    return whole(info, kept)


def whole(info: Any, kept: Any) -> Parts:
    """Return the parts of a run that has tensors and no records."""
    return Parts(
        info,
        Columns(),
        kept,
        Calls(notices=info.notices),
        Values(notices=info.notices),
    )


def read_file(path: Path, budget: int | None = None, told: Told = silent) -> Parts:
    """Read what `Run.save` wrote into one file; `told` hears how many bytes of it.

    Raises:
        FileNotFoundError: Nothing is at `path`.
        RunFormatError: The file is not a run, is damaged, or is of a newer version.
        OSError: The records exceed the budget, and the disk has no room for the rest.
    """
    columns, info = files.load(path, budget, told)
    tensors = source.reopened(files.kept(path), info)
    calls = files.table(path, beside.CALLS, Calls.from_table)
    values = files.table(path, beside.VALUES, Values.from_table)
    return Parts(
        info,
        columns,
        tensors,
        Calls(notices=info.notices) if calls is None else calls,
        Values(notices=info.notices) if values is None else values,
    )


def read_folder(folder: Path, found: list[Path], budget: int | None) -> Parts:
    """Read the runs of several processes as one; what cannot be read is said.

    Raises:
        RunFormatError: None can be read, or they do not belong together.
    """
    members: list[Member] = []
    refused: list[str] = []
    share = None if budget is None else budget // len(found)
    with progress("Loading ranks", sum(map(files.size_of, found)), "B") as told:
        for path in found:
            parts = _tried(path, share, refused, told)
            if parts is not None:
                members.append(Member(parts, _number(path), f"`{path}`"))
    if not members:
        raise RunFormatError(f"Nothing in `{folder}` can be read. {' '.join(refused[:3])}")
    merged = merge(members, budget)
    left_out = [f"`{folder}`: one file was left out. {text}" for text in refused]
    merged.info.notices[:0] = left_out
    for text in left_out:
        notify(f"probe_nb: {text}")
    return merged


def _tried(path: Path, budget: int | None, refused: list[str], told: Told) -> Parts | None:
    try:
        return read_file(path, budget, told)
    except RunFormatError as error:
        refused.append(str(error))
        return None


def _number(path: Path) -> int | None:
    """Return the number that a file is named after."""
    found = _NUMBER.search(path.stem)
    return None if found is None else int(found[1])


def _by_number(path: Path) -> tuple[int, str]:
    number = _number(path)
    return (-1 if number is None else number), path.name
