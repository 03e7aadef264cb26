"""A run -> an msProbe folder: `step0/rank0/dump.json` and what stands beside it.

What has no place there is left out: the passed model itself (of DDP: the wrapper), buffers, what
the optimizer saw, forwards that were repeated. docs/msprobe-folders.md says how each number is
derived.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from probe_nb.dump import tensors, writer_calls
from probe_nb.dump.folders import CONSTRUCT, DEBUG, DUMP, STACK, TENSORS, folder_of
from probe_nb.dump.keys import Key, spell
from probe_nb.dump.tensor_files import TensorFile
from probe_nb.dump.writer_bodies import Bodies
from probe_nb.dump.writer_entries import Entries
from probe_nb.dump.writer_rows import Row, places, rows_of
from probe_nb.dump.writer_tree import text_of
from probe_nb.errors import ConfigError, notify
from probe_nb.progress import Told, progress, silent
from probe_nb.store.blocks import surely, whole
from probe_nb.terms import MODULE_ROLES, shown

if TYPE_CHECKING:
    from probe_nb.records import Records

ERRORS: Final = "dump_error_info.log"
TASKS: Final = ("statistics", "tensor", "structure")
_LEVELS: Final = {"module": "L0", "api": "L1", "mix": "mix", "debug": "debug"}


@dataclass(frozen=True)
class Wanted:
    """How a dump is written.

    Attributes:
        task: What its header says.
        listed: Whether names of modules begin with the index of their model.
        models: The names of the models in their order.
        ours: Write also, under the key `probe_nb`, what msProbe has no word for.
        extra_info: Write `stack.json` and `construct.json` too.
        files: Write the tensors that are kept.
    """

    task: str
    listed: bool
    models: tuple[str, ...]
    ours: bool = True
    extra_info: bool = True
    files: bool = False


def wanted(
    run: Records,
    *,
    task: str | None = None,
    listed: bool | None = None,
    models: Iterable[str] | None = None,
    ours: bool = True,
    extra_info: bool = True,
    files: bool | None = None,
) -> Wanted:
    """Check how a dump is to be written; what is not said follows from the run.

    Raises:
        ConfigError: There is no such task.
    """
    names = tuple(run.info.models if models is None else models)
    read = _read(run)
    if task is None:
        kept = any(each.data is not None for each in run.tensors.known())
        task = "tensor" if kept else "statistics"
        plain = run.info.config.get("structure") or read.get("task") == "structure"
        task = "structure" if plain else task
    if task not in TASKS:
        raise ConfigError(f"`task` is {task!r}; give one of {', '.join(TASKS)}.")
    listed = (len(names) > 1 or bool(read.get("listed"))) if listed is None else listed
    files = task == "tensor" if files is None else files
    return Wanted(task, listed, names, ours, extra_info, files)


def write(
    run: Records,
    path: str | os.PathLike[str],
    how: Wanted,
    *,
    steps: Collection[int] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the folder of every step and rank, all of them or none.

    Raises:
        FileExistsError: Something is there, and is not to be overwritten.
        OSError: The folder cannot be written.
    """
    target = Path(path).expanduser().absolute()
    run.flush()
    found = [at for at in _places(run) if steps is None or at[0] in steps]
    if not found and steps is None:
        found = [_nowhere(run)]
    folders = {at: target / folder_of(*at) for at in found}
    there = target if target.exists() and not target.is_dir() else None
    if there is None and _streamed_to(run, target):
        if not overwrite:
            _refuse(folder / name for folder in folders.values() for name in (DUMP, DEBUG))
        with _told(run) as told:
            for at, folder in folders.items():
                folder.mkdir(parents=True, exist_ok=True)
                write_into(run, folder, how, step=at[0], rank=at[1], told=told)
        return target
    _refuse([] if there is None else [there])
    if not overwrite:
        _refuse(folders.values())
    if how.files and all(each.data is None for each in run.tensors.known()):
        notify("probe_nb: This run keeps no tensors: the dump has statistics, and no file of one.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with _aside(target) as aside, _told(run) as told:
        for at, folder in folders.items():
            made = aside / "new" / folder_of(*at)
            made.mkdir(parents=True)
            write_into(run, made, how, step=at[0], rank=at[1], final=folder, told=told)
        target.mkdir(exist_ok=True)
        _put(aside, folders.values(), target)
    return target


def _told(run: Records) -> AbstractContextManager[Told]:
    """Tell how far the writing is: each row is taken in, and written down."""
    return progress("Writing", 2 * len(run.columns), " rows")


def write_into(
    run: Records,
    folder: Path,
    how: Wanted,
    *,
    step: int,
    rank: int,
    final: Path | None = None,
    told: Told = silent,
) -> None:
    """Write the files of one step and rank, each whole or not at all.

    Tensors that are in the folder already keep their files.

    Args:
        run: What is written.
        folder: Where the files go; it is there.
        how: What `wanted` gave.
        step: The step.
        rank: The rank, -1 where there is none.
        final: Where the folder will be, if it is moved.
        told: Hears of each row that was taken in, then that they were written.
    """
    read = _read(run)
    names = read.get("wrapped"), run.info.wrapped
    entries = Entries(_numbered(how, read), run.info.shared, *names)
    rows = rows_of(run.columns, step, rank)
    for row in rows:
        entries.add(row)
        told(1)
    for value in run.value_table:
        if (value.step, value.rank) == (step, rank):
            entries.add_value(value)
    files = _tensors(run, folder, step, rank) if how.files else None
    save = (lambda *_: None) if files is None else files.save
    roles = run.info.config.get("roles") or MODULE_ROLES
    foreign = read.get("ours") is False
    bodies = Bodies(entries, task=how.task, ours=how.ours, save=save, roles=roles, placed=foreign)
    data, debug = bodies.data(), bodies.debug()
    level = _LEVELS.get(str(run.info.config.get("level")), "") or _level(data)
    place = None if files is None else str((final or folder) / TENSORS)
    header = {"task": how.task, "level": level, "framework": "pytorch", "dump_data_dir": place}
    found: dict[str, Any] = {}
    if data or level != "debug":
        found[DUMP] = _content(header, data)
    if debug or level == "debug":
        found[DEBUG] = _content(header, debug)
    if how.extra_info and level != "debug":
        parents, stacks = writer_calls.of_table(run.call_table, step, rank, entries.named)
        parents = parents or writer_calls.of_paths(entries.calls())
        known = {} if level == "L1" else writer_calls.construct(parents, [key for key, _ in data])
        found[CONSTRUCT] = known
        dumped = {key for key, _ in data}
        found[STACK] = writer_calls.stack_file(e for e in stacks if e[0] in dumped)
    lost = [] if files is None else files.lost
    _tell(run, lost)
    errors = [*map(_failed, entries.failed), *(f"{each}\n" for each in lost)]
    _files(folder, found, errors)
    told(len(rows))


def _files(folder: Path, found: dict[str, Any], errors: list[str]) -> None:
    """Write all files of a folder, or none of them."""
    with contextlib.ExitStack() as all_of_them:
        for name, content in found.items():
            file = all_of_them.enter_context(whole(folder / name))
            file.writelines(each.encode() for each in text_of(content))
        if errors:
            all_of_them.enter_context(whole(folder / ERRORS)).write("".join(errors).encode())


def _read(run: Records) -> dict[str, Any]:
    """Return what is known of the dump that a run was read from, if from one."""
    found = run.info.config.get("dump")
    return found if isinstance(found, dict) else {}


def _numbered(how: Wanted, read: dict[str, Any]) -> dict[str, int | None]:
    """Return the index of each model; a dump that was read has it for a name."""
    if not how.listed:
        return dict.fromkeys(how.models)
    if read.get("listed") and all(map(str.isdecimal, how.models)):
        return {name: int(name) for name in how.models}
    return {name: place for place, name in enumerate(how.models)}


def _tensors(run: Records, folder: Path, step: int, rank: int) -> tensors.Saved:
    """Return what has the tensors of a step, when all that come as they are seen have come."""
    _tell(run, run.tensors.finish())
    return tensors.Saved(folder / TENSORS, run.tensors.known(), step, rank)


def _tell(run: Records, lost: list[str]) -> None:
    new = [text for text in lost if text not in run.info.notices]
    run.info.notices += new
    for each in new:
        notify(f"probe_nb: {each}")


def _streamed_to(run: Records, target: Path) -> bool:
    """Tell whether the tensors of a run were written into this folder as they came."""
    run.tensors.finish()
    found = (each.data for each in run.tensors.known())
    return any(isinstance(data, TensorFile) and target in data.path.parents for data in found)


def _places(run: Records) -> list[tuple[int, int]]:
    found = {*places(run.columns), *((each.step, each.rank) for each in run.value_table)}
    return sorted(found)


def _nowhere(run: Records) -> tuple[int, int]:
    """Return the step and rank of the dump of a run without records, and say that it has none."""
    notify("probe_nb: This run has no records: there is no entry in the dump.")
    first: int = run.info.config.get("first_step") or 0
    return first, -1 if run.info.rank is None else run.info.rank


def _level(data: list[tuple[Key, Any]]) -> str:
    kinds = {key.kind for key, _ in data}
    if "api" not in kinds:
        return "L0"
    return "mix" if "module" in kinds else "L1"


def _content(header: dict[str, Any], data: list[tuple[Key, Any]]) -> dict[str, Any]:
    return header | {"data": {spell(key): body for key, body in data}}


def _refuse(paths: Iterable[Path]) -> None:
    """Raise if something is where it would be written over.

    Raises:
        FileExistsError: It is.
    """
    there = next((each for each in paths if os.path.lexists(each)), None)
    if there is not None:
        raise FileExistsError(
            f"`{there}` is there already. Give another folder, or `overwrite=True`."
        )


def _failed(row: Row) -> str:
    site = row.site
    where = " of ".join(each for each in (site.api, shown(site.module)) if each)
    return (
        f"{where}, call {row.call}: {site.direction} {site.role} `{site.leaf}` could not be "
        f"measured ({row.numbers.dtype} {list(row.numbers.shape)})\n"
    )


# -- all or nothing -----------------------------------------------------------------------------


@contextlib.contextmanager
def _aside(target: Path) -> Iterator[Path]:
    """Give a folder beside another one, on the same disk, that is gone afterwards."""
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        aside.mkdir()
        yield aside
    finally:
        surely(lambda: _removed(aside))


def _removed(folder: Path) -> None:
    """Remove a folder; where an interrupt made it lose count of its files, it begins again."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)


def _put(aside: Path, folders: Iterable[Path], target: Path) -> None:
    """Put finished folders where they belong; if one cannot be, all is as it was."""
    done: list[tuple[Path, Path]] = []
    try:
        for number, folder in enumerate(folders):
            folder.parent.mkdir(exist_ok=True)
            if os.path.lexists(folder):
                old = aside / f"old{number}"
                done.append((old, folder))
                folder.rename(old)
            new = aside / "new" / folder.relative_to(target)
            done.append((folder, new))
            new.rename(folder)
    except BaseException:
        surely(lambda: _put_back(done))
        raise


def _put_back(done: list[tuple[Path, Path]]) -> None:
    while done:
        now, before = done[-1]
        if os.path.lexists(now) and not os.path.lexists(before):  # else it was not moved yet
            now.rename(before)
        done.pop()
