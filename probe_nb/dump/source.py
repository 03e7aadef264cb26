"""The tensors of a dump: listed when somebody asks for them, and read one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from probe_nb.dump import arrays, folders
from probe_nb.dump.entries import Seen, is_tensor, ours_of, seen_in
from probe_nb.dump.facts import Facts, facts_of
from probe_nb.dump.folders import Folder
from probe_nb.dump.records import At, at_of, site_of, site_of_saved
from probe_nb.dump.tensor_files import TensorFile, bytes_in, refusal
from probe_nb.dump.walk import Entry, Walk
from probe_nb.store.keeping import Tensors
from probe_nb.store.kept import KEPT, Kept
from probe_nb.store.table import ABSENT
from probe_nb.terms import RunInfo, Site

MARK: Final = "msProbe"


class DumpSource:
    """Where the tensors of a dump are: they stay there when the run is saved."""

    folder: Final = True
    mark: Final = MARK

    def __init__(self, path: Path, parts: Sequence[Folder]) -> None:
        """Look into these folders of the dump at `path`."""
        self.path = path
        self._parts = tuple(parts)

    def read(self) -> list[Kept]:
        """Return what is known of them; files are opened when one is asked for.

        Raises:
            FileNotFoundError: The dump is gone.
        """
        if not self.path.exists():
            raise FileNotFoundError(f"There is no dump at `{self.path}`, in which tensors are.")
        return [kept for each in self._parts for kept in _in_folder(each)]


def parts_of(info: RunInfo) -> list[Folder] | None:
    """Return the folders that a run was read from, None if from none, or where they are gone."""
    dump = info.config.get("dump")
    if not isinstance(dump, dict) or not isinstance(dump.get("path"), str):
        return None
    path = Path(dump["path"])
    if not path.exists():
        return None
    found, chosen = folders.find(path, lambda _: None), dump.get("chosen")
    if not isinstance(chosen, list):
        return found
    return [each for each in found if [each.step, each.number] in chosen]


def reopened(tensors: Tensors, info: RunInfo) -> Tensors:
    """Return the tensors of a run that was saved: those of a dump are still in its folder."""
    place = tensors.place
    if place is None or place.mark != MARK:
        return tensors
    return Tensors(source=DumpSource(place.path, parts_of(info) or ()))


def _in_folder(folder: Folder) -> Iterator[Kept]:
    def ignored(_: str) -> None:
        """What was skipped was said when the records were read."""

    for name in folder.dumps:
        for entry in Walk(folder, name, ignored).entries():
            for seen in seen_in(entry.key, entry.body, ignored):
                if is_tensor(seen.node) and seen.node.get("data_name") is not None:
                    yield from _of_entry(folder, entry, seen)
    for name in folder.arrays:
        yield from _of_array(folder, name)


def _of_entry(folder: Folder, entry: Entry, seen: Seen) -> Iterator[Kept]:
    try:
        facts = facts_of(seen.node)
    except ValueError:
        return
    ours = ours_of(seen.node)
    kept = _kept(folder, site_of(entry.spot, seen, facts.part, ours), facts, at_of(entry, ours))
    name = seen.node["data_name"]
    if why := refusal(name):
        kept.drop(why)
    else:
        _find(kept, folder.file(folders.TENSORS) / name, folder)
    yield kept


def _of_array(folder: Folder, name: str) -> Iterator[Kept]:
    try:
        saved = arrays.read(folder.file(name), folder.root)
    except ValueError:
        return
    facts = Facts(saved.dtype, saved.shape, saved.numel, False, None, "")
    at = At(0, saved.call, 0 if saved.backward else ABSENT)
    kept = _kept(folder, site_of_saved(saved), facts, at)
    _find(kept, folder.file(name), folder)
    yield kept


def _kept(folder: Folder, site: Site, facts: Facts, at: At) -> Kept:
    return Kept(
        model=site.model,
        module=site.module,
        api=site.api,
        direction=site.direction,
        role=site.role,
        leaf=site.leaf,
        step=folder.step,
        micro_step=at.micro_step,
        call=at.call,
        backward=at.backward,
        dtype=facts.dtype,
        shape=facts.shape,
        bytes=bytes_in(facts.dtype, facts.numel),
        status=KEPT,
        rank=ABSENT if folder.rank is None else folder.rank,
    )


def _find(kept: Kept, path: Path, folder: Folder) -> None:
    """Say where the tensor is, or why it is not there."""
    if why := folders.trouble(path, folder.root):
        kept.drop(why)
    else:
        kept.data = TensorFile(path, folder.root, kept.dtype, kept.shape)
