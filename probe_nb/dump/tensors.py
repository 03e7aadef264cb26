"""The tensors of a dump: `.pt` files under msProbe's names, written as they come or at the end."""

from __future__ import annotations

import os
import re
import shutil
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final

from probe_nb import torchless
from probe_nb.dump.folders import TENSORS, folder_of
from probe_nb.dump.keys import MODULE, Key, Part, Way, tensor_name
from probe_nb.dump.tensor_files import TensorFile
from probe_nb.dump.writer_rows import Row
from probe_nb.errors import ConfigError, RunFormatError
from probe_nb.store import tensors
from probe_nb.store.blocks import whole
from probe_nb.store.kept import Kept
from probe_nb.store.stream import Stream
from probe_nb.terms import inside

SUFFIX: Final = ".pt"
_LONGEST: Final = 240
"""Bytes of a file's name, with the suffix; most systems take 255."""
_UNFIT: Final = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]|^\.')
_ACCUMULATED: Final = ".grad"
_PARTS: Final[dict[str, Part]] = {
    "input": "input",
    "output": "output",
    "param": "parameters",
    "grad_output": "input",
    "grad_input": "output",
}


def file_name(name: str) -> str:
    """Return the name of a file for a tensor's name.

    What no file can be called, or what would lead out of its folder, is replaced; a checksum of
    the whole then tells such names apart.

    >>> file_name("Module.fc.Linear.forward.0.input.0")
    'Module.fc.Linear.forward.0.input.0.pt'
    >>> file_name("../x.0.debug")
    '_._x.0.debug~ed4a3a28.pt'
    """
    fit = _UNFIT.sub("_", name)
    room = _LONGEST - len(SUFFIX)
    if fit == name and len(name.encode()) <= room:
        return name + SUFFIX
    mark = f"~{zlib.crc32(name.encode()):08x}"
    short = fit.encode()[: room - len(mark)].decode(errors="ignore")
    return short + mark + SUFFIX


def write(folder: Path, name: str, kept: Kept, data: tensors.Bytes) -> TensorFile:
    """Write one tensor into a file, whole or not at all."""
    with torchless.needed():
        import torch

    folder.mkdir(parents=True, exist_ok=True)
    file = TensorFile(folder / name, folder, kept.dtype, kept.shape)
    with whole(file.path, lasting=False) as opened:
        into = _Unfailing(opened)
        torch.save(tensors.as_tensor(kept, data), into)  # type: ignore[arg-type]
        if into.failed is not None:
            raise into.failed
    return file


class _Unfailing:
    """What torch writes into: what fails is kept, to be raised when torch is done.

    The destructor of its writer writes the end of the archive, also after Ctrl-C and into a file
    that is closed by then. An error there would not reach Python: it ends the process.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.failed: BaseException | None = None

    def write(self, data: bytes) -> int:
        """Write, as long as nothing has failed."""
        if self.failed is None and not self._file.closed:
            try:
                self._file.write(data)
            except BaseException as error:  # Ctrl-C as well
                self.failed = error
        return len(data)

    def flush(self) -> None:
        """Leave it to who opened the file."""


class PtStream(Stream):
    """Writes each tensor, as it comes, where `write_dump` looks for it."""

    lists = False
    pause = 0.0

    def open(self) -> None:
        """Make the folder; what is in it stays.

        Raises:
            ConfigError: It cannot be made.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"`folder` is `{self.folder}`, which cannot be made: {error}"
            ) from error
        self._added: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
        self._newest: dict[tuple[Any, ...], Kept] = {}

    def withdraw(self) -> None:
        """Leave the folder alone: nobody claimed it."""

    def _ended(self) -> None:
        """Leave nothing in the folder that msProbe has not."""

    def place(self, step: int) -> Path:
        """Return the folder of the tensors of a step."""
        rank = -1 if self._info.rank is None else self._info.rank
        return self.folder / folder_of(step, rank) / TENSORS

    # -- in the thread ----------------------------------------------------------------------------

    def _write(self, batch: list[Kept]) -> None:
        for kept in batch:
            stored: Any = None
            failed: Exception | None = None
            data = None
            try:
                data = tensors.bytes_of(kept) if self._has_name(kept) else None
                if data is not None:
                    stored = write(self.place(kept.step), self._name(kept), kept, data)
            except Exception as error:
                failed = error
            self.written(self.folder, [kept], [stored], failed)
            if stored is not None:
                self._replaces(kept)

    def _has_name(self, kept: Kept) -> bool:
        return bool(kept.module or kept.api or self._info.wrapped.get(kept.model))

    def _name(self, kept: Kept) -> str:
        names = [*self._info.models]
        listed = len(names) > 1 and kept.model in names
        within = self._info.wrapped.get(kept.model, "")
        key = _key(kept, names.index(kept.model) if listed else None, within)
        if kept.role == "param_grad":
            name = kept.leaf.partition(".")[0]
            return file_name(tensor_name(replace(key, call=self._times(kept)), "", name))
        leaf, part = kept.leaf, _PARTS.get(kept.role, "")
        if part == "input" and leaf.startswith("kwargs.") and kept.direction == "forward":
            leaf, part = leaf.removeprefix("kwargs."), "kwargs"
        elif kept.role == "output" and not leaf.partition(".")[0].isdigit():
            leaf = f"0.{leaf}"
        return file_name(tensor_name(key, part, leaf))

    def _times(self, kept: Kept) -> int:
        """Return how often a gradient was added to this parameter before, in this step."""
        times = self._added.setdefault(_parameter(kept), [])
        when = (kept.micro_step, kept.call, kept.backward)
        if when not in times:
            times.append(when)
        return times.index(when)

    def _replaces(self, kept: Kept) -> None:
        """Let what `.grad` held stand for what was added to it: msProbe has one file for both."""
        if kept.role != "param_grad":
            return
        which = (*_parameter(kept), kept.micro_step, kept.call, kept.backward)
        before, self._newest[which] = self._newest.get(which), kept
        if before is not None:
            before.drop("a dump has what `.grad` held after it")


def _parameter(kept: Kept) -> tuple[Any, ...]:
    return kept.model, kept.module, kept.step, kept.leaf.partition(".")[0]


def _key(kept: Kept, model: int | None, within: str) -> Key:
    way: Way = "backward" if kept.direction == "backward" else "forward"
    if kept.role == "value":
        return Key("debug", kept.api, direction=way, call=kept.call)
    if kept.api:
        prefix, _, name = kept.api.partition(".")
        return Key("api", name or prefix, prefix, direction=way, call=kept.call)
    kind: Any = "parameters_grad" if kept.role == "param_grad" else "module"
    path = inside(within, kept.module)
    return Key(kind, path, MODULE, kept.type, way, kept.call, model)


class Saved:
    """Gives the rows of one step and process their files in the folder of a dump.

    Attributes:
        lost: What could not be read where it was: the records are written without it.
    """

    def __init__(self, folder: Path, kept: Iterable[Kept], step: int, rank: int) -> None:
        """Know which tensors there are; nothing is written before it is asked for."""
        self._folder = folder
        self._kept = {
            _place(each): each
            for each in kept
            if (each.step, each.rank) == (step, rank) and each.data is not None
        }
        self._given: set[str] = set()
        self.lost: list[str] = []

    def save(self, row: Row, name: str) -> str | None:
        """Put the tensor of a row into a file; return its name, None if it is not kept."""
        kept = self._kept.get(_of(row))
        if kept is None:
            return None
        file = file_name(name)
        data = kept.data
        there = self._folder / data.path.name if isinstance(data, TensorFile) else None
        if there is not None and there.is_file():
            kept.data = self._moved(data, there, self._folder / file)
        elif (found := self._read(kept, name)) is not None:
            write(self._folder, file, kept, found)
        else:
            return None
        self._given.add(file)
        return file

    def _read(self, kept: Kept, name: str) -> tensors.Bytes | None:
        """Return a tensor; one of a file that is damaged or gone is not there."""
        try:
            return tensors.bytes_of(kept)
        except (RunFormatError, FileNotFoundError) as error:
            self.lost.append(f"The tensor {name} was not written: {error}")
            return None

    def _moved(self, data: TensorFile, there: Path, target: Path) -> TensorFile:
        """Let a file that was written as it came have its name, and keep one it has already."""
        if there == target:
            pass
        elif there.name not in self._given:
            there.replace(target)
        else:
            target.unlink(missing_ok=True)
            try:
                os.link(there, target)
            except OSError:  # not every disk knows of links
                shutil.copyfile(there, target)
        return data._replace(path=target, root=self._folder)


def _place(kept: Kept) -> tuple[Any, ...]:
    about = (kept.model, kept.module, kept.api, kept.direction, kept.role, kept.leaf)
    return (*about, kept.micro_step, kept.call, kept.backward)


def _of(row: Row) -> tuple[Any, ...]:
    site = row.site
    about = (site.model, site.module, site.api, site.direction, site.role, site.leaf)
    return (*about, row.micro_step, row.call, row.backward)
