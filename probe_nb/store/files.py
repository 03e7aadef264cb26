"""A run as one Parquet file: columns as columns, everything else as JSON in its metadata.

Nothing is pickled. The file is written aside, flushed to disk and renamed over the old one, so
an interrupted write leaves the old file whole.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from probe_nb.errors import RunFormatError
from probe_nb.store.columns import HISTOGRAM, Columns
from probe_nb.store.table import DTYPES, Arrays, Tables, to_frame
from probe_nb.terms import DIRECTIONS, ROLES, STATUSES, RunInfo, Site

FORMAT: Final = "probe_nb run"
VERSION: Final = 1
_KEY: Final = b"probe_nb"
_TEXT: Final = ("model", "module", "type", "api", "direction", "role", "leaf")


def save(path: str | os.PathLike[str], columns: Columns, info: RunInfo) -> Path:
    """Write a run to `path`, whole or not at all, and return the path."""
    target = Path(path).expanduser()
    if target.is_dir():
        raise IsADirectoryError(f"`{target}` is a folder; give the path of a file to write.")
    target.parent.mkdir(parents=True, exist_ok=True)
    table = _table(columns, info)
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with aside.open("xb") as file:
            pq.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    return target


def _table(columns: Columns, info: RunInfo) -> pa.Table:
    arrays = columns.arrays()
    frame = to_frame(arrays, columns.tables)
    frame["shape"] = [json.dumps(shape) for shape in frame["shape"]]
    frame["shape"] = frame["shape"].astype("category")
    table = pa.Table.from_pandas(frame, preserve_index=False)
    offsets = np.concatenate([[0], np.cumsum(arrays["hist_size"].astype(np.int64))])
    for name in ("hist_bins", "hist_counts"):
        ragged = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(arrays[name]))
        table = table.append_column(name, ragged)
    about = {"format": FORMAT, "version": VERSION, "info": info.as_dict()}
    return table.replace_schema_metadata({_KEY: json.dumps(about, allow_nan=False).encode()})


def load(path: str | os.PathLike[str]) -> tuple[Columns, RunInfo]:
    """Read what `save` wrote.

    Raises:
        FileNotFoundError: Nothing is at `path`.
        RunFormatError: The file is not a run, is damaged, or is of a newer version.
    """
    source = Path(path).expanduser()
    if not source.exists():
        raise FileNotFoundError(f"There is no file `{source}`.")
    about = _about(source)
    try:
        table = pq.read_table(source)
        return _columns(table), RunInfo(**about["info"])
    except (pa.ArrowException, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        raise RunFormatError(f"Cannot read the run `{source}`: it is damaged ({error}).") from error


def _about(source: Path) -> dict[str, Any]:
    """Return the description inside the file, or say why it is not a run that can be read."""
    try:
        metadata = pq.read_schema(source).metadata or {}
        about: dict[str, Any] = json.loads(metadata[_KEY])
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise RunFormatError(
            f"`{source}` is not a saved run; give a file that `run.save(path)` wrote."
        ) from error
    if about.get("format") != FORMAT or not isinstance(about.get("version"), int):
        raise RunFormatError(f"`{source}` is not a saved run of probe_nb.")
    if about["version"] > VERSION:
        raise RunFormatError(
            f"`{source}` is a run of format {about['version']}, this probe_nb reads up to "
            f"{VERSION}. Update with: pip install -U probe-nb"
        )
    return about


def _columns(table: pa.Table) -> Columns:
    tables = Tables()
    block: Arrays = {}
    text = {name: _strings(table, name) for name in _TEXT}
    codes = np.empty(table.num_rows, np.int32)
    for row, values in enumerate(zip(*text.values(), strict=True)):
        site = Site(**dict(zip(_TEXT, values, strict=True)))
        codes[row] = tables.sites.code(_known(site))
    block["site"] = codes
    block["dtype"] = np.array([tables.dtypes.code(v) for v in _strings(table, "dtype")])
    block["device"] = np.array([tables.devices.code(v) for v in _strings(table, "device")])
    shapes = {text: tuple(json.loads(text)) for text in dict.fromkeys(_strings(table, "shape"))}
    block["shape"] = np.array([tables.shapes.code(shapes[v]) for v in _strings(table, "shape")])
    block["checksum"] = np.array(
        [-1 if v is None else tables.checksums.code(v) for v in _strings(table, "checksum")]
    )
    place = {status: code for code, status in enumerate(STATUSES)}
    block["status"] = np.array([place[v] for v in _strings(table, "status")])
    for name in (*DTYPES, "training"):
        if name not in block:
            block[name] = _numbers(table, name)
    for name in ("hist_bins", "hist_counts"):
        column = table.column(name).combine_chunks()
        block[name] = np.asarray(column.flatten())
        sizes = column.value_lengths()
    block["hist_size"] = np.asarray(sizes).astype(np.uint16)
    block = {n: v.astype(DTYPES[n], copy=False) if n in DTYPES else v for n, v in block.items()}
    columns = Columns(tables)
    columns.append({name: block[name] for name in (*DTYPES, *HISTOGRAM)})
    return columns


def _known(site: Site) -> Site:
    if site.direction not in DIRECTIONS or site.role not in ROLES:
        raise ValueError(f"unknown direction or role in {site}")
    return site


def _strings(table: pa.Table, name: str) -> list[Any]:
    return table.column(name).to_pylist()  # type: ignore[no-any-return]


def _numbers(table: pa.Table, name: str) -> Any:
    dtype = DTYPES[name]
    absent = np.nan if np.issubdtype(dtype, np.floating) else -1
    column = table.column(name)
    if column.null_count == 0:
        return column.to_numpy().astype(dtype)
    values = column.combine_chunks()
    filled = values.cast(pa.float64()) if values.type == pa.bool_() else values
    return filled.fill_null(absent).to_numpy(zero_copy_only=False).astype(dtype)
