"""How files are spoiled: their bytes, the values in their JSON, and what Parquet and Arrow hold."""

from __future__ import annotations

import base64
import contextlib
import json
import struct
import zlib
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from probe_nb.errors import RunFormatError
from probe_nb.store import beside

WORDS = (
    *("", "x", "NaN", "(root)", "__class__", "../../x", "/etc/passwd", "\0", "\ud800", "é" * 300),
    *("forward", "input", "param_grad", "kept", "float32", "torch.float32", "[1,2]", "1e999"),
    *("<script>alert(1)</script>", "%s{0.__class__}", "layers.*", "[", "type:Linear", "step0"),
    *("Module.0.Linear.forward.0", "Functional.relu.0.backward", "torch.Tensor", "_grad", "-1"),
)
NUMBERS = (
    *(0, 1, -1, 2, 7, 255, 256, 65535, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**63 - 1),
    *(2**63, -(2**63), 2**64, 10**30, 0.0, -0.0, 1e-320, 1e308, float("inf"), float("nan")),
)


def thing(rng: Random, depth: int = 0) -> Any:
    """Return a value of any kind that JSON has."""
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind in (1, 2):
        return rng.choice(NUMBERS)
    if kind in (3, 4):
        return rng.choice(WORDS)
    if kind == 5:
        return [thing(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 6:
        return {str(rng.choice(WORDS)): thing(rng, depth + 1) for _ in range(rng.randrange(4))}
    deep: Any = 1
    for _ in range(rng.choice((1, 30, 100))):
        deep = [deep]
    return deep


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to every value inside a value."""
    found = [path]
    pairs = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node if isinstance(node, list) else ())
    )
    for name, each in pairs:
        found += places(each, (*path, name))
    return found


def in_json(value: Any, rng: Random) -> Any:
    """Change values somewhere inside: another one, another name, one less, one twice."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        path = rng.choice(places(value))
        if not path:
            value = thing(rng) if rng.random() < 0.1 else value
            continue
        node = value
        for step in path[:-1]:
            node = node[step]
        act = rng.randrange(6)
        if act == 0:
            del node[path[-1]]
        elif act == 1 and isinstance(node, dict):
            node[str(rng.choice(WORDS))] = node.pop(path[-1])
        elif act == 2 and isinstance(node, list):
            node.insert(rng.randrange(len(node) + 1), node[path[-1]])
        elif act == 3 and isinstance(node, dict):
            node[str(rng.choice(WORDS))] = thing(rng)
        else:
            node[path[-1]] = thing(rng)
    return value


def _changed(text: bytearray, rng: Random) -> bytes:
    """Change the first bytes of these, or cut all of them off."""
    size = rng.choice((1, 4, 8, 100, 1000))
    begin, rest = bytes(text[:size]), bytes(text[size:])
    number = rng.choice((-1, 0, 1, 2**24, 2**31 - 1, 2**40, 2**62))
    return rng.choice(
        (
            b"",
            rest,
            bytes(len(text)),
            struct.pack("<q", number) + bytes(text[8:]),
            struct.pack("<i", min(number, 2**31 - 1)) + bytes(text[4:]),
            rng.randbytes(size) + bytes(text),
            rng.randbytes(len(begin)) + rest,
            begin + bytes(text),
            bytes([begin[0] ^ 1 << rng.randrange(8) if begin else 0]) + bytes(text[1:]),
        )
    )


def in_bytes(data: bytes, rng: Random) -> bytes:
    """Change bytes somewhere: one bit, a number, a piece lost, doubled, or filled with zeros."""
    text = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(text) + 1)
        if rng.random() < 0.4:  # what a file says of itself is at its ends
            at = rng.choice((min(at, 200), max(len(text) - rng.randrange(1, 2000), 0)))
        text[at:] = _changed(text[at:], rng)
    return bytes(text)


def parquet(path: Path, rng: Random) -> None:
    """Change what the file of a run says, and write a file that is a sound one otherwise."""
    known = (b"probe_nb", beside.CALLS.encode(), beside.VALUES.encode())
    held, notes = pq.read_table(path), pq.read_metadata(path).metadata or {}
    said = {key: text for key, text in notes.items() if key in known}
    what = rng.choice([*said, b"columns", b"columns"])
    if what == b"probe_nb":
        about = in_json(json.loads(said[what]), rng)
        said[what] = json.dumps(about).encode("utf-8", "surrogatepass")
    elif what == b"columns":
        held = in_table(held, rng)
    elif rng.random() < 0.4:
        data = base64.b64encode(in_bytes(base64.b64decode(said[what][9:]), rng))
        said[what] = b"%08x:" % zlib.crc32(data) + data
    else:
        with contextlib.suppress(RunFormatError):
            said[what] = beside.encode(_in_beside(beside.decode(said[what]), rng))
    pq.write_table(held.replace_schema_metadata(said), path)


def _in_beside(table: pa.Table, rng: Random) -> pa.Table:
    about = (table.schema.metadata or {}).get(b"about")
    if about is not None and rng.random() < 0.6:
        text = json.dumps(in_json(json.loads(about), rng)).encode("utf-8", "surrogatepass")
        return table.replace_schema_metadata({b"about": text})
    return in_table(table, rng)


def in_table(table: pa.Table, rng: Random) -> pa.Table:
    """Change a column: other values, another type, nulls; or leave it out, or twice."""
    place = rng.randrange(table.num_columns)
    name, column = table.column_names[place], table.column(place)
    act = rng.randrange(5)
    if act == 0:
        return table.remove_column(place)
    if act == 1:
        return table.append_column(rng.choice((name, "more")), column)
    values = column.to_pylist()
    kind = column.type
    for _ in range(rng.choice((1, 3, 1000))):
        if values:
            values[rng.randrange(len(values))] = rng.choice((None, thing(rng, 3)))
    made = None
    for wanted in (kind, pa.string(), pa.float64(), pa.int64(), None):
        with contextlib.suppress(pa.ArrowException, OverflowError, TypeError, ValueError):
            made = pa.array(values, wanted)
            break
    if made is None:
        made = pa.nulls(len(values))
    return table.set_column(place, name, made)


def safetensors(path: Path, rng: Random) -> None:
    """Change what a file of tensors says, and write its checksums anew."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    head, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    notes = head.get("__metadata__", {})
    if "probe_nb" in notes and rng.random() < 0.7:
        text = json.dumps(in_json(json.loads(notes["probe_nb"]), rng))
        notes["probe_nb"] = text
        notes["probe_nb crc32"] = f"{zlib.crc32(text.encode()):08x}"
    else:
        head = in_json(head, rng)
    text = json.dumps(head).encode("utf-8", "surrogatepass")
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def spoil(path: Path, rng: Random) -> None:
    """Change a file somehow; half of the changes know what kind of file it is."""
    if rng.random() < 0.5:
        if path.suffix == ".json":
            value = in_json(json.loads(path.read_text("utf-8")), rng)
            path.write_bytes(json.dumps(value).encode("utf-8", "surrogatepass"))
            return
        if path.suffix == ".parquet":
            parquet(path, rng)
            return
        if path.suffix == ".safetensors":
            safetensors(path, rng)
            return
    path.write_bytes(in_bytes(path.read_bytes(), rng))
