"""Tables that lie beside the records in a run's file: calls, values.

Each is an Arrow table in the metadata of the Parquet file, under a key of its own, so that a run
stays one file that anything which knows Parquet can read. It is written as text, since some readers
take metadata for nothing else, and with a checksum, which Parquet has for pages alone.
"""

from __future__ import annotations

import base64
import zlib
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from probe_nb.errors import RunFormatError
from probe_nb.store.pieces import check_stream

CALLS: Final = "probe_nb.calls"
VALUES: Final = "probe_nb.values"
DAMAGE: Final = (
    pa.ArrowException,
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What reading something else than what was written ends in."""

_SUM: Final = 9
"""Characters of the checksum: eight digits and a colon."""


def encode(table: pa.Table) -> bytes:
    """Return a table as text of ASCII."""
    out = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(out, table.schema, options=options) as stream:
        stream.write_table(table)
    text = base64.b64encode(out.getvalue())
    return b"%08x:" % zlib.crc32(text) + text


def decode(text: bytes) -> pa.Table:
    """Return the table that `encode` was given.

    Raises:
        RunFormatError: It is damaged.
    """
    try:
        if text[:_SUM] != b"%08x:" % zlib.crc32(text[_SUM:]):
            raise ValueError("its checksum differs")
        data = base64.b64decode(text[_SUM:])
        check_stream(data)
        with pa.ipc.open_stream(data) as stream:
            table = stream.read_all()
        table.validate(full=True)  # else an offset or a code may lead anywhere
    except DAMAGE as error:
        raise RunFormatError(f"A table of the run is damaged ({error}).") from error
    return table


def read(source: Path, key: str) -> pa.Table | None:
    """Return the table of a key; None if the file has none.

    Raises:
        RunFormatError: It is damaged.
    """
    text = (pq.read_metadata(source).metadata or {}).get(key.encode())
    return None if text is None else decode(text)
