"""The tensors of a dump: `.pt` files under msProbe's names."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from probe_nb.dump.writer_rows import Row
from probe_nb.store import tensors
from probe_nb.store.blocks import whole
from probe_nb.store.kept import Kept

SUFFIX: Final = ".pt"
_LONGEST: Final = 240
"""Bytes of a file's name, with the suffix; most systems take 255."""
_UNFIT: Final = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]|^\.')


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


def write(path: Path, t: Any) -> None:
    """Write one tensor, whole or not at all."""
    import torch

    with whole(path, lasting=False) as file:
        torch.save(t, file)


class Saved:
    """Writes the kept tensors of one step into the folder of a dump."""

    def __init__(self, folder: Path, kept: Iterable[Kept], step: int) -> None:
        """Know which there are; nothing is written before it is asked for."""
        self._folder = folder
        self._kept = {
            _place(each): each for each in kept if each.step == step and each.data is not None
        }

    def save(self, row: Row, name: str) -> str | None:
        """Write the tensor of a row into a file; return its name, None if it is not kept."""
        kept = self._kept.get(_of(row))
        data = None if kept is None else tensors.bytes_of(kept)
        if kept is None or data is None:
            return None
        self._folder.mkdir(exist_ok=True)
        file = file_name(name)
        write(self._folder / file, tensors.as_tensor(kept, data))
        return file


def _place(kept: Kept) -> tuple[Any, ...]:
    about = (
        kept.model,
        kept.module,
        getattr(kept, "api", ""),
        kept.direction,
        kept.role,
        kept.leaf,
    )
    return (*about, kept.micro_step, kept.call, kept.backward)


def _of(row: Row) -> tuple[Any, ...]:
    site = row.site
    about = (site.model, site.module, site.api, site.direction, site.role, site.leaf)
    return (*about, row.micro_step, row.call, row.backward)
