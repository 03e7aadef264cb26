"""A seal on a Parquet file: checksums of all of it, looked at before any of it is read.

Parquet has checksums for its pages alone. A flipped bit in its footer changes what is read, or
ends the process: the library that reads it does not expect that. Readers find the footer from the
end of the file and its pages by their places, so what lies between both is seen by nobody else.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import IO, Final

_MARK: Final = b"probe_nb"
_SEAL: Final = struct.Struct("<8sII")
_END: Final = 8
"""Bytes behind a footer: its length, and a word."""

_CHUNK: Final = 2**20


def seal(path: Path) -> None:
    """Put a seal in front of the footer of a file that was just written."""
    with path.open("r+b") as file:
        at = _footer(file)
        before = _crc(file, at)
        behind = file.read()
        file.seek(at)
        file.write(_SEAL.pack(_MARK, before, zlib.crc32(behind)))
        file.write(behind)


def check(path: Path) -> None:
    """Hold that nothing of a sealed file was changed; one without a seal is another's.

    Raises:
        ValueError: Something was.
    """
    with path.open("rb") as file:
        at = _footer(file) - _SEAL.size
        if at < 0:
            return
        file.seek(at)
        mark, before, behind = _SEAL.unpack(file.read(_SEAL.size))
        if mark != _MARK:
            return
        if zlib.crc32(file.read()) != behind or _crc(file, at) != before:
            raise ValueError("its checksum differs: bytes of it were changed")


def _footer(file: IO[bytes]) -> int:
    """Return where the footer begins, below 0 if there is none."""
    size = file.seek(0, os.SEEK_END)
    if size < _END:
        return -1
    file.seek(-_END, os.SEEK_END)
    return size - _END - int.from_bytes(file.read(4), "little")


def _crc(file: IO[bytes], end: int) -> int:
    """Return the checksum of a file up to a place, and stay there."""
    crc, left = 0, end
    file.seek(0)
    while left and (data := file.read(min(_CHUNK, left))):
        crc, left = zlib.crc32(data, crc), left - len(data)
    return crc
