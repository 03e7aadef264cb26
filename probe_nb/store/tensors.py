"""Kept tensors in a safetensors file: their bytes, and in its metadata what is known of each.

Nothing is pickled. torch is imported where a tensor is made, and nowhere else.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probe_nb import torchless
from probe_nb.errors import RunFormatError
from probe_nb.progress import Told, silent
from probe_nb.store.blocks import whole
from probe_nb.store.kept import KEPT, Kept, described

if TYPE_CHECKING:
    from torch import Tensor

FORMAT: Final = "probe_nb tensors"
VERSION: Final = 1
_KEY: Final = "probe_nb"
_SUM: Final = "probe_nb crc32"
_HEADER: Final = 100_000_000
"""Bytes of a header that the library reads."""

_NATIVE: Final = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""Types that every reader of such files knows; of others the bytes are written as they are."""

Bytes = NDArray[np.uint8]


def bytes_of(kept: Kept) -> Bytes | None:
    """Return the bytes of a tensor wherever they are, None if it is not kept."""
    data = kept.data
    return data if data is None or isinstance(data, np.ndarray) else data.result()


def as_tensor(kept: Kept, data: Bytes) -> Tensor:
    """Make a tensor of bytes, with memory of its own."""
    with torchless.needed():
        import torch

    with torch._C.DisableTorchFunction():  # noqa: SLF001 - no default device of the user's
        dtype: Any = vars(torch).get(kept.dtype)  # `getattr` would import modules
        known = isinstance(dtype, torch.dtype)
        if not known or math.prod(kept.shape) * dtype.itemsize != data.nbytes:
            where = getattr(kept.data, "path", "the tensors of this run")
            raise RunFormatError(f"Cannot read `{where}`: {kept} does not fit its bytes.")
        if not data.size:
            return torch.empty(kept.shape, dtype=dtype, device="cpu")
        return torch.from_numpy(np.array(data)).view(dtype).view(kept.shape)


def write(
    path: Path, kept: Sequence[Kept], mark: str, *, lasting: bool, told: Told = silent
) -> list[Stored | None]:
    """Write tensors, and what is known of those that are not kept, whole or not at all.

    `told` hears how many bytes were written.

    Returns where each is then, None for one that is not kept.

    Raises:
        ValueError: They are more than one file can describe.
        OSError: The file cannot be written.
    """
    found = [bytes_of(each) for each in kept]
    sums = [None if data is None else zlib.crc32(data.data) for data in found]
    about = [[*each.about(), crc] for each, crc in zip(kept, sums, strict=True)]
    metadata = json.dumps({"format": FORMAT, "version": VERSION, "id": mark, "tensors": about})
    header: dict[str, Any] = {"__metadata__": {_KEY: metadata, _SUM: _sum(metadata)}}
    stored: list[Stored | None] = []
    end = 0
    for number, (each, data, crc) in enumerate(zip(kept, found, sums, strict=True)):
        if data is None or crc is None:
            stored.append(None)
            continue
        start, end = end, end + data.nbytes
        native = _NATIVE.get(each.dtype)
        shape = [data.nbytes] if native is None else each.shape
        entry = {"dtype": native or "U8", "shape": shape, "data_offsets": [start, end]}
        header[str(number)] = entry
        stored.append(Stored(path, str(number), data.nbytes, crc))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _HEADER:
        raise ValueError(f"{len(kept):,} tensors are too many for one file; keep fewer of them")
    with whole(path, lasting=lasting) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for data in found:
            if data is not None:
                file.write(data.data)
                told(data.nbytes)
    return stored


class Stored(NamedTuple):
    """The bytes of a tensor in a file."""

    path: Path
    key: str
    bytes: int
    crc: int

    def result(self) -> Bytes:
        """Read them.

        Raises:
            FileNotFoundError: Somebody removed the file.
            RunFormatError: It is damaged.
        """
        with _damage(self.path), self.path.open("rb") as file:
            about = os.fstat(file.fileno())
            start, size = _places(self.path, about.st_mtime_ns).get(self.key, (0, -1))
            file.seek(start)
            data: Bytes = np.empty(size if size == self.bytes <= about.st_size else 0, np.uint8)
            read = file.readinto(data.data)  # `np.fromfile` makes another error of a Ctrl-C
        if read != self.bytes or zlib.crc32(data.data) != self.crc:
            raise RunFormatError(f"Cannot read `{self.path}`: tensor {self.key} is damaged.")
        return data


@functools.lru_cache(maxsize=8)
def _places(path: Path, changed: int) -> dict[str, tuple[int, int]]:
    """Return where each tensor of a file begins, and its bytes; the library gives no bytes."""
    del changed  # a file that was written anew is read anew
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        if size > _HEADER:
            raise ValueError("its header is too long")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    spans = {key: each["data_offsets"] for key, each in header.items()}
    return {key: (8 + size + start, end - start) for key, (start, end) in spans.items()}


def read(path: Path) -> tuple[str, list[Kept]]:
    """Return the mark of a file and what is known of its tensors; they are read when asked for.

    Raises:
        FileNotFoundError: Nothing is there.
        RunFormatError: It is none of ours, is damaged, or is of a newer version.
    """
    with _opened(path) as file:
        texts = file.metadata() or {}
        keys = set(file.keys())
    metadata = texts.get(_KEY)
    if metadata is None:
        raise RunFormatError(f"`{path}` holds no tensors that a run kept.")
    try:
        if texts.get(_SUM) != _sum(metadata):
            raise ValueError("what it says of its tensors was changed")  # noqa: TRY301
        about = json.loads(metadata)
        if about["format"] != FORMAT or about["version"] > VERSION:
            raise RunFormatError(
                f"`{path}` is of format {about['version']}, this probe_nb reads up to {VERSION}. "
                "Update with: pip install -U probe-nb"
            )
        found = []
        for number, (*facts, crc) in enumerate(about["tensors"]):
            kept = described(facts)
            if kept.status == KEPT:
                if str(number) not in keys:
                    raise LookupError(f"tensor {number} is missing")  # noqa: TRY301
                kept.data = Stored(path, str(number), kept.bytes, crc)
            found.append(kept)
        return str(about["id"]), found
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, RunFormatError):
            raise
        raise RunFormatError(f"Cannot read `{path}`: it is damaged ({error}).") from error


def _sum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def is_ours(path: Path) -> bool:
    """Tell whether a file holds tensors that a run kept."""
    try:
        with _opened(path) as file:
            return _KEY in (file.metadata() or {})
    except (OSError, RunFormatError):
        return False


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import safetensors

    with _damage(path), safetensors.safe_open(path, framework="numpy") as file:
        yield file


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Say of an error in reading a file that the file is gone or damaged."""
    import safetensors

    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(
            f"There is no file `{path}`, in which kept tensors should be."
        ) from None
    except (OSError, LookupError, TypeError, ValueError, struct.error) as error:
        raise RunFormatError(f"Cannot read `{path}`: it is damaged ({error}).") from error
    except safetensors.SafetensorError as error:
        raise RunFormatError(f"Cannot read `{path}`: it is damaged ({error}).") from error
