"""A run as one Parquet file: columns as columns, everything else as JSON in its metadata.

Nothing is pickled. The file is written aside, flushed to disk and renamed over the old one, so
an interrupted write leaves the old file whole.
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from probe_nb.errors import RunFormatError
from probe_nb.exponents import BINS
from probe_nb.progress import Told, progress, silent
from probe_nb.store import beside, sealed
from probe_nb.store.about_one import as_info
from probe_nb.store.blocks import ALL, GROUP, RAGGED, empty_block, whole
from probe_nb.store.columns import Columns
from probe_nb.store.keeping import Source, Tensors
from probe_nb.store.newer import UPDATE, why
from probe_nb.store.pieces import pieces
from probe_nb.store.table import ABSENT, COLUMNS, DTYPES, OF_SITE, Arrays, Tables, to_frame
from probe_nb.store.words import coded, words
from probe_nb.terms import DIRECTIONS, ROLES, STATUSES, RunInfo, Site

T = TypeVar("T")

FORMAT: Final = "probe_nb run"
VERSION: Final = 1
_KEY: Final = b"probe_nb"
_TEXT: Final = (*OF_SITE, "dtype", "shape", "device", "checksum", "status")
"""What repeats; of numbers a dictionary costs twice the time and saves nothing."""


def save(
    path: str | os.PathLike[str],
    columns: Columns,
    info: RunInfo,
    kept: Tensors | None = None,
    tables: Mapping[str, pa.Table] | None = None,
) -> Path:
    """Write a run to `path`, whole or not at all, and return the path.

    Tensors that it keeps are written beside it; the files name each other. `tables` go into the
    file, under their keys in `beside`.

    Raises:
        FileExistsError: A file of somebody else's is where the tensors belong.
    """
    target = Path(path).expanduser()
    if target.is_dir():
        raise IsADirectoryError(f"`{target}` is a folder; give the path of a file to write.")
    target.parent.mkdir(parents=True, exist_ok=True)
    saving = None if kept is None else kept.saving(target)
    about = {"format": FORMAT, "version": VERSION, "info": info.as_dict()}
    about |= {} if saving is None else {"tensors": saving.about}
    metadata = {_KEY: json.dumps(about, allow_nan=False).encode()}
    held = columns.chunks()
    names = columns.tables.copy()  # after the pieces: it knows all of their codes
    schema = _table(empty_block(), names).schema.with_metadata(metadata)
    options = {"compression": "zstd", "use_dictionary": _TEXT, "write_page_checksum": True}
    with whole(target) as file:
        with pq.ParquetWriter(file, schema, **options) as writer:
            with progress("Saving", len(columns), " rows") as told:
                for _, arrays in held:
                    writer.write_table(_table(arrays, names), row_group_size=GROUP)
                    told(len(arrays["site"]))
            texts = {key: beside.encode(table) for key, table in (tables or {}).items()}
            if texts:
                writer.add_key_value_metadata(texts)
        file.flush()
        sealed.seal(Path(file.name))
        if saving is not None:
            saving.write()
    return target


def _table(arrays: Arrays, tables: Tables) -> pa.Table:
    """Return rows with their texts spelled out; equal tables give equal types."""
    names = [name for name in COLUMNS if name != "shape"]
    table = pa.Table.from_pandas(to_frame(arrays, tables, names=names), preserve_index=False)
    shapes = [json.dumps(shape) for shape in tables.shapes.values]
    shape = pa.DictionaryArray.from_arrays(pa.array(arrays["shape"]), pa.array(shapes, pa.string()))
    table = table.add_column(COLUMNS.index("shape"), "shape", shape)
    offsets = pa.array(np.concatenate([[0], np.cumsum(arrays["hist_size"].astype(np.int64))]))
    for name in RAGGED:
        values = arrays[name].astype({"hist_counts": np.int64}.get(name, arrays[name].dtype))
        table = table.append_column(name, pa.LargeListArray.from_arrays(offsets, pa.array(values)))
    return table.replace_schema_metadata()


def size_of(path: Path) -> int:
    """Return the bytes of a file, 0 if nobody knows."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def load(
    path: str | os.PathLike[str], budget: int | None = None, told: Told = silent
) -> tuple[Columns, RunInfo]:
    """Read what `save` wrote; what exceeds `budget` bytes of memory stays on disk.

    `told` hears how many bytes were read.

    Raises:
        FileNotFoundError: Nothing is at `path`.
        RunFormatError: The file is not a run, is damaged, or is of a newer version.
        OSError: More than the budget has to go to disk, and cannot.
    """
    source = Path(path).expanduser()
    if not source.exists():
        raise FileNotFoundError(f"There is no file `{source}`.")
    _check_seal(source)
    about = _about(source)
    columns, rows = Columns(budget=budget), 0
    try:
        for table in _groups(source, told):
            rows += table.num_rows
            columns.append(_block(table, columns.tables))
        info = as_info(about["info"])
    except beside.DAMAGE as error:
        raise RunFormatError(f"Cannot read the run `{source}`: {why(error, about)}") from error
    if len(columns) < rows:
        raise OSError(f"Cannot read the run `{source}`: {columns.notices[-1]}")
    return columns, info


def kept(path: str | os.PathLike[str]) -> Tensors:
    """Return the tensors of a run that `save` wrote; they are looked for when asked for."""
    source = Path(path).expanduser()
    return Tensors(source=Source.of(source, _about(source).get("tensors")))


def table(path: str | os.PathLike[str], key: str, made: Callable[[pa.Table], T]) -> T | None:
    """Return what `made` makes of a table that lies in the file; None if it has none.

    Raises:
        RunFormatError: It is damaged.
    """
    source = Path(path).expanduser()
    try:
        found = beside.read(source, key)
        return None if found is None else made(found)
    except (*beside.DAMAGE, RunFormatError) as error:
        reason = why(error, _about(source))
        raise RunFormatError(f"Cannot read `{key}` of the run `{source}`: {reason}") from error


def _groups(source: Path, told: Told) -> Iterator[pa.Table]:
    for table, share in pieces(source):
        yield table
        told(size_of(source) * share)


def _check_seal(source: Path) -> None:
    try:
        sealed.check(source)
    except OSError as error:
        raise RunFormatError(f"Cannot read `{source}`: {error.strerror or error}.") from error
    except ValueError as error:
        raise RunFormatError(f"Cannot read the run `{source}`: it is damaged ({error}).") from error


def _about(source: Path) -> dict[str, Any]:
    """Return the description inside the file, or say why it is not a run that can be read."""
    try:
        metadata = pq.read_schema(source).metadata or {}
        about = json.loads(metadata[_KEY])
    except (pa.ArrowException, KeyError, OSError, RecursionError, ValueError) as error:
        raise RunFormatError(
            f"`{source}` is not a saved run; give a file that `run.save(path)` wrote."
        ) from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise RunFormatError(f"`{source}` is not a saved run of probe_nb.")
    if not isinstance(about.get("version"), int):
        raise RunFormatError(f"`{source}` does not say of which version it is.")
    if about["version"] > VERSION:
        raise RunFormatError(
            f"`{source}` is a run of format {about['version']}, this probe_nb reads up to "
            f"{VERSION}. {UPDATE}"
        )
    return about


def _block(table: pa.Table, tables: Tables) -> Arrays:
    """Return the rows of a piece with their texts as codes in `tables`."""
    block: Arrays = {"site": _sites(table, tables)}
    for name, interned in (("dtype", tables.dtypes), ("device", tables.devices)):
        codes, labels = words(table, name)
        block[name] = np.array([interned.code(label) for label in labels], np.int64)[codes]
    codes, labels = words(table, "shape")
    shapes = [tuple(operator.index(n) for n in json.loads(label)) for label in labels]
    block["shape"] = np.array([tables.shapes.code(shape) for shape in shapes], np.int64)[codes]
    codes, labels = words(table, "checksum", absent=True)
    sums = [tables.checksums.code(label) for label in labels]
    block["checksum"] = np.array([*sums, ABSENT], np.int64)[codes]
    codes, labels = words(table, "status")
    block["status"] = np.array([STATUSES.index(label) for label in labels], np.int64)[codes]
    for name in DTYPES:
        if name not in block:
            block[name] = _numbers(table, name)
    block |= _histograms(table)
    block = {n: v.astype(DTYPES[n], copy=False) if n in DTYPES else v for n, v in block.items()}
    return {name: block[name] for name in ALL}


def _sites(table: pa.Table, tables: Tables) -> np.ndarray:
    """Return the site code of each row; only the combinations that occur are looked at."""
    parts = [words(table, name) for name in OF_SITE]
    return coded(parts, lambda *each: tables.sites.code(_known(Site(*each))))


def _known(site: Site) -> Site:
    if site.direction not in DIRECTIONS or site.role not in ROLES:
        raise ValueError(f"unknown direction or role in {site}")
    return site


def _numbers(table: pa.Table, name: str) -> Any:
    """Return a column of numbers; one that does not fit its type is an error."""
    dtype = np.dtype(DTYPES[name])
    column = table.column(name).combine_chunks()
    if name == "training":
        column = column.cast(pa.int8())
    if dtype.kind == "b":
        return column.cast(pa.bool_()).to_numpy(zero_copy_only=False)
    absent = np.nan if dtype.kind == "f" else ABSENT
    return column.cast(pa.from_numpy_dtype(dtype)).fill_null(absent).to_numpy(zero_copy_only=False)


def _histograms(table: pa.Table) -> Arrays:
    found: Arrays = {}
    for name, kind in (("hist_bins", pa.uint16()), ("hist_counts", pa.int64())):
        column = table.column(name).combine_chunks()
        sizes = column.value_lengths().to_numpy(zero_copy_only=False)
        values = column.flatten().cast(kind).to_numpy(zero_copy_only=False)
        if len(sizes) != table.num_rows or len(values) != sizes.sum():
            raise ValueError(f"`{name}` does not fit its rows")
        if "hist_size" in found and not np.array_equal(found["hist_size"], sizes):
            raise ValueError("bins and counts of a histogram differ in number")
        found["hist_size"], found[name] = sizes.astype(np.uint16), values
    if (found["hist_bins"] >= BINS).any():
        raise ValueError("a bin of a histogram does not exist")
    if found["hist_counts"].max(initial=0) < 2**32:
        found["hist_counts"] = found["hist_counts"].astype(np.uint32)
    return found
