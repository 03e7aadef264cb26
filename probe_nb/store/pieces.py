"""The rows of a saved run, piece by piece, and no more of them than its bytes can hold.

Repeated values take almost no room in Parquet: a few kilobytes can stand for gigabytes. What was
saved by a run is far from that; what is not is refused before any of it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from probe_nb.exponents import BINS
from probe_nb.store.blocks import GROUP, RAGGED

_DENSE: Final = 16
"""Rows that one byte can hold: `order` alone, a number of its own in each, takes more."""

_SMALL: Final = 2**26
_SHRUNK: Final = 1000
"""A column takes at most so many times the bytes of its file, or so many bytes."""

_MAGIC: Final = (0xFD2FB528, 0x184D2204)
"""What begins a buffer that was compressed: with zstd, and with LZ4."""

_UNSOUND: Final = 2**40
"""Bytes that no buffer has: nothing compressed, or nothing that is given memory."""

_TABLE: Final = 2**29
"""Bytes that a table beside the records takes at most; both have budgets below that."""


def pieces(source: Path) -> Iterator[tuple[pa.Table, float]]:
    """Yield some rows at a time, and which share of the file they are.

    Raises:
        ValueError: The file says that it holds more than it can; pyarrow raises its own.
    """
    with pq.ParquetFile(source, page_checksum_verification=True) as file:
        rows = file.metadata.num_rows
        _check(file.metadata, source.stat().st_size)
        if not rows:
            yield file.read(), 1.0
        for batch in file.iter_batches(GROUP):
            yield pa.Table.from_batches([batch]), batch.num_rows / max(rows, 1)


def _check(about: Any, size: int) -> None:
    if about.num_rows > _DENSE * size:
        raise ValueError(f"{size:,} bytes cannot hold {about.num_rows:,} rows")
    for number in range(about.num_row_groups):
        group = about.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            name = column.path_in_schema
            ragged = name.partition(".")[0] in RAGGED
            many = column.num_values > group.num_rows * (BINS if ragged else 1)
            if many or column.total_uncompressed_size > max(_SMALL, _SHRUNK * size):
                raise ValueError(f"{size:,} bytes cannot hold what `{name}` is said to have")


def check_stream(data: bytes) -> None:
    """Hold that an Arrow stream is not far larger than any table of a run.

    The bytes that a buffer has when it is no longer compressed stand right before it.

    Raises:
        ValueError: It is.
    """
    words = np.frombuffer(data[: len(data) // 8 * 8], np.uint64)
    begins = np.flatnonzero(np.isin(words[1:] & np.uint64(0xFFFFFFFF), np.array(_MAGIC, np.uint64)))
    sizes = words[begins]
    if sizes[sizes < _UNSOUND].sum() > _TABLE:
        raise ValueError(f"{len(data):,} bytes cannot hold what it is said to have")
