"""Rows that were added one after the other: in memory, or in a file that took their place."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from probe_nb.store.left_behind import PREFIX, held, sweep
from probe_nb.store.missing import gone
from probe_nb.store.table import DTYPES, Arrays

HISTOGRAM: Final = ("hist_size", "hist_bins", "hist_counts")
"""A histogram column is ragged: `hist_size` bins per row, laid end to end in the other two."""

RAGGED: Final = HISTOGRAM[1:]
ALL: Final = (*DTYPES, *HISTOGRAM)
GROUP: Final = 65_536
"""Rows of a row group: as many are read where one is asked for."""

Rows = NDArray[np.intp]


def empty_block() -> Arrays:
    """Return a block of no rows, with every column in its dtype."""
    block: Arrays = {name: np.empty(0, dtype) for name, dtype in DTYPES.items()}
    block["hist_size"] = np.empty(0, np.uint16)
    block["hist_bins"] = np.empty(0, np.uint16)
    block["hist_counts"] = np.empty(0, np.uint32)
    return block


def join(blocks: Sequence[Arrays]) -> Arrays:
    """Lay blocks of the same columns one after the other."""
    if len(blocks) == 1:
        return blocks[0]
    return {name: np.concatenate([each[name] for each in blocks]) for name in blocks[0]}


def pick(columns: Arrays, rows: Rows) -> Arrays:
    """Return some rows of columns."""
    found = {name: column[rows] for name, column in columns.items() if name not in RAGGED}
    if RAGGED[0] in columns:
        size = columns["hist_size"].astype(np.int64)
        start, size = (np.cumsum(size) - size)[rows], size[rows]
        ends = np.cumsum(size)
        place = np.arange(size.sum()) + np.repeat(start - ends + size, size)
        found |= {name: columns[name][place] for name in RAGGED}
    return found


def parts(columns: Arrays, cuts: Iterable[int]) -> Iterator[Arrays]:
    """Yield the rows between each two of these places, as views; all columns must be there."""
    ends = np.append(0, np.cumsum(columns["hist_size"].astype(np.int64)))
    for begin, end in itertools.pairwise(cuts):
        inside = {True: slice(ends[begin], ends[end]), False: slice(begin, end)}
        yield {name: column[inside[name in RAGGED]] for name, column in columns.items()}


class Block:
    """Rows in memory: from `first` up to `end`, joined `level` times; they take `bytes`."""

    def __init__(self, first: int, columns: Arrays, level: int = 0) -> None:
        """Hold rows, the first one of this number."""
        self.first = first
        self.end = first + len(columns["step"])
        self.level = level
        self.columns = columns
        self.bytes = sum(column.nbytes for column in columns.values())

    def may_pass(self, _name: str, _test: Any) -> bool:
        """Tell whether a test has to be tried on these rows."""
        return True

    def read(self, names: Sequence[str]) -> Arrays:
        """Return these columns."""
        return {name: self.columns[name] for name in names}

    def pick(self, rows: Rows, names: Sequence[str]) -> Arrays:
        """Return these columns of some rows, counted from the first one of the block."""
        columns = self.read(names)
        return columns if len(rows) == self.end - self.first else pick(columns, rows)

    def since(self, row: int) -> Rows:
        """Return the rows from this number of the run on, counted from the first of the block."""
        return np.arange(max(row - self.first, 0), self.end - self.first)


class Part(NamedTuple):
    """Rows in a file, which stays as long as somebody holds `folder`."""

    first: int
    end: int
    path: Path
    folder: Folder
    steps: tuple[int, int]

    def __reduce__(self) -> tuple[Any, ...]:
        """Carry the file as bytes: where a pickle is read, they become a file of its own."""
        with self._explained():
            data = self.path.read_bytes()
        return _unpacked, (self.folder, data, self.first, self.end, self.steps)

    def __deepcopy__(self, _: object) -> Part:
        """Return the same: nobody changes a file, and it stays as long as one of both is held."""
        return self

    def may_pass(self, name: str, test: Any) -> bool:
        """Tell whether a test could hold for a row: some need no look into the file."""
        low, high = self.steps
        if name != "step" or high - low > 16 * GROUP:
            return True
        return bool(test(np.arange(low, high + 1)).any())

    def read(self, names: Sequence[str]) -> Arrays:
        """Return these columns."""
        return self._groups(None, names)

    def pick(self, rows: Rows, names: Sequence[str]) -> Arrays:
        """Return these columns of some rows, counted from the first one of the file."""
        if len(rows) == self.end - self.first:
            return self.read(names)
        found, group = [], rows // GROUP
        for number in dict.fromkeys(group.tolist()):
            here = self._groups([number], names)
            found.append(pick(here, rows[group == number] - number * GROUP))
        return join(found)

    def since(self, row: int) -> Rows:
        """Return the rows from this number of the run on, counted from the first of the file."""
        return np.arange(max(row - self.first, 0), self.end - self.first)

    def _groups(self, numbers: list[int] | None, names: Sequence[str]) -> Arrays:
        stored = [name for name in names if name != "hist_size"]
        with self._explained(), pq.ParquetFile(self.path, page_checksum_verification=True) as file:
            every = range(file.num_row_groups)
            table = file.read_row_groups(every if numbers is None else numbers, stored)
        found: Arrays = {}
        for name in stored:
            column = _whole(table.column(name))
            if name in RAGGED:
                found["hist_size"], found[name] = _ragged(column, table.schema.field(name))
            else:
                found[name] = column.to_numpy(zero_copy_only=False)
        return {name: found[name] for name in names}

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Say what is missing where the file is."""
        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(gone([self])) from error


def _unpacked(folder: Folder, data: bytes, first: int, end: int, steps: tuple[int, int]) -> Part:
    """Return a part that was pickled; those of one run share a folder again."""
    return Part(first, end, folder.keep(first, data), folder, steps)


def _whole(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _ragged(column: Any, field: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return how many numbers each row has, and all of them end to end."""
    dtype = np.dtype(field.metadata[b"dtype"].decode())
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[column.offset :][: len(column) + 1]
    values = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]].view(dtype)
    return (np.diff(ends) // dtype.itemsize).astype(np.uint16), values


class Folder:
    """A folder of one run's own, removed with the run or when Python ends.

    If the process is killed, the next one that makes such a folder removes it.
    """

    def __init__(self) -> None:
        """Make it where large temporary files belong: `TMPDIR`, else `/var/tmp`."""
        named = any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
        large = "/var/tmp"  # noqa: S108 - mkdtemp makes a private folder; /tmp may be memory
        there = not named and os.path.isdir(large) and os.access(large, os.W_OK)  # noqa: PTH112
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=large if there else None))
        self._owner = os.getpid()
        locks: list[IO[bytes] | None] = []
        self._remove = weakref.finalize(self, _remove, self.path, self._owner, locks)
        locks.append(held(self.path))
        sweep(self.path.parent)

    def __reduce__(self) -> tuple[Any, ...]:
        """Be pickled as a new one: what is in it comes with the parts."""
        return Folder, ()

    def can_be_written(self) -> bool:
        """Tell whether it is there, and ours: a forked child must not replace files of its parent.

        Both number their files from the same row on.
        """
        return os.getpid() == self._owner and self.path.is_dir()

    def keep(self, first: int, data: bytes) -> Path:
        """Write a file that was read elsewhere, whole or not at all."""
        path = self._file(first)
        with whole(path, lasting=False) as file:
            file.write(data)
        return path

    def _file(self, first: int) -> Path:
        return self.path / f"{first}.parquet"

    def write(self, first: int, columns: Arrays) -> Part:
        """Write rows into a file of their own, whole or not at all."""
        rows = len(columns["step"])
        path = self._file(first)
        with whole(path, lasting=False) as file:
            pq.write_table(
                _table(columns),
                file,
                compression="zstd",
                compression_level=1,
                use_dictionary=False,
                write_page_checksum=True,
                row_group_size=GROUP,
            )
        steps = int(columns["step"].min()), int(columns["step"].max())
        return Part(first, first + rows, path, self, steps)


def _remove(path: Path, owner: int, locks: list[IO[bytes] | None]) -> None:
    if os.getpid() == owner:  # a forked child holds a copy of the run, but not its files
        shutil.rmtree(path, ignore_errors=True)
    for lock in locks:
        if lock is not None:
            lock.close()


def _table(columns: Arrays) -> Any:
    """Return columns as a table, a histogram as bytes: lists would take twice the time."""
    fields, made = [], []
    ends = np.concatenate([[0], np.cumsum(columns["hist_size"].astype(np.int64))])
    for name, column in columns.items():
        if name == "hist_size":
            continue
        array = _as_bytes(ends, column) if name in RAGGED else pa.array(column)
        made.append(array)
        fields.append(pa.field(name, array.type, metadata={"dtype": column.dtype.str}))
    return pa.Table.from_arrays(made, schema=pa.schema(fields))


def _as_bytes(ends: NDArray[np.int64], values: NDArray[Any]) -> Any:
    buffers = [None, *map(pa.py_buffer, (ends * values.itemsize, np.ascontiguousarray(values)))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(ends) - 1, buffers)


@contextlib.contextmanager
def whole(target: Path, *, lasting: bool = True, first: bool = False) -> Iterator[IO[bytes]]:
    """Give a file to write into that takes the place of `target` when all is written.

    Whatever goes wrong on the way, what was at `target` before stays, and nothing else is left.
    One that need not outlast the computer is not flushed to the disk: that takes its time.

    Raises:
        FileExistsError: It should be the first at its place, and is not.
    """
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    name = str(aside)
    try:
        with aside.open("xb") as file:
            yield file
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        (_first if first else _replace)(aside, target)
    except BaseException:
        try:  # noqa: SIM105 - straight into C: no second Ctrl-C is heard before it is done
            os.unlink(name)  # noqa: PTH108
        except OSError:  # it has moved, or was never there
            pass
        raise


def _replace(made: Path, target: Path) -> None:
    made.replace(target)


def _first(made: Path, target: Path) -> None:
    """Move a file to where nothing is, or else leave it; of several at once one succeeds."""
    try:
        os.link(made, target)
    except FileExistsError:
        raise
    except OSError:  # no second name for a file on this disk: then it is empty for a moment
        with target.open("xb") as file:
            file.write(made.read_bytes())
    made.unlink()


def surely(act: Callable[[], object]) -> None:
    """Do it to the end, however often Ctrl-C is pressed meanwhile; then let that be heard."""
    heard: KeyboardInterrupt | None = None
    failed = False
    while True:
        try:
            act()
            break
        except KeyboardInterrupt as error:
            heard = error
        except OSError:
            if heard is None or failed:  # else it was cut off, and what it had closed is no more
                raise
            failed = True
    if heard is not None:
        raise heard
