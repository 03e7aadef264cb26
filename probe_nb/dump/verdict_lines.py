"""The entries of a dump as the lines that `msprobe compare` makes of them, one per tensor."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from probe_nb.dump.keys import Key, parse

NONE: Final = "None"
NOT_THERE: Final = "N/A"
NO_FILE: Final = "-1"

_FOUR: Final = ("Max", "Min", "Mean", "Norm")
_PARTS: Final = {
    "input_args": "input",
    "input_kwargs": "input",
    "input": "input",
    "output": "output",
    "parameters": "parameters",
}
_ORDER: Final = ("input", "", "parameters", "output")
_GROUPS: Final = frozenset({"src", "dst", "group_src", "group_dst"})
_P2P: Final = "torch.distributed.P2POp"
_DEEPEST: Final = 400

Four = tuple[Any, Any, Any, Any]


@dataclass(frozen=True)
class Line:
    """One tensor or value.

    Attributes:
        name: As msProbe writes it.
        key: What it is matched by: backwards are counted as they come.
        entry: The name of its entry.
        dtype: Its type, or the class of a value.
        shape: Its shape as text.
        requires_grad: As text; what has none says that it is not there.
        four: Max, min, mean and norm, as the dump has them.
        checksum: Its checksum; of a value msProbe makes one.
        file: The name of its file, `NO_FILE` without one.
        stack: The lines that led to the call, in the first line of an entry.
    """

    name: str
    key: str
    entry: str
    part: str
    dtype: str
    shape: str
    requires_grad: Any
    four: Four
    checksum: Any
    file: str = NO_FILE
    stack: Any = NOT_THERE


def lines_of(
    entries: Iterable[tuple[str, Any]], stacks: Mapping[str, Sequence[str]] | None = None
) -> list[Line]:
    """Return the lines of entries, in their order; of one its parameters before its outputs."""
    found: list[Line] = []
    backwards = Counter[Key]()
    for name, body in entries:
        key = parse(name)
        if key is None:
            continue
        mine = sorted(_of_entry(name, key, body), key=lambda line: _ORDER.index(line.part))
        if not mine:
            continue
        if key.kind in ("module", "api") and key.direction == "backward":
            bare = replace(key, call=0)
            mine = _renumbered(mine, name, key, backwards[bare])
            backwards[bare] += 1
        if stacks is not None and name in stacks:
            mine[0] = replace(mine[0], stack=list(stacks[name]))
        found += mine
    return found


def _renumbered(lines: list[Line], name: str, key: Key, number: int) -> list[Line]:
    """Number a backward by the order in which it came: a repeated forward shifts the numbers."""
    end = name.rpartition(".")[2]
    if key.kind == "module":
        now = f"{name.removesuffix(end)}{number}"
    else:
        now = f"{name.removesuffix(f'{key.call}.{end}')}{number}.{end}"
    return [replace(line, key=now + line.name.replace(name, "")) for line in lines]


def _of_entry(name: str, key: Key, body: Any) -> Iterator[Line]:
    if key.kind in ("debug", "parameters_grad"):
        yield from _nested(name, name, "", body, 0)
    elif isinstance(body, dict):
        for member, part in _PARTS.items():
            if member in body:
                yield from _nested(f"{name}.{part}", name, part, body[member], 0)


def _nested(name: str, entry: str, part: str, node: Any, depth: int) -> Iterator[Line]:
    if node is None:
        yield _nothing(name, entry, part)
        return
    if depth > _DEEPEST or not node:
        return
    if isinstance(node, list):
        grads = "parameters_grad" in name.split(".")
        for place, each in enumerate(node):
            yield from _nested(name if grads else f"{name}.{place}", entry, part, each, depth + 1)
    elif isinstance(node, dict):
        if node.get("class_type") == _P2P:
            node = node.get("tensor")
        if not isinstance(node, dict) or isinstance(node.get("type"), str):
            yield _leaf(name, entry, part, node)
            return
        for word, each in node.items():
            yield from _nested(f"{name}.{word}", entry, part, each, depth + 1)


def _nothing(name: str, entry: str, part: str) -> Line:
    return Line(name, name, entry, part, *(NOT_THERE,) * 3, (NONE,) * 4, NOT_THERE)


def _leaf(name: str, entry: str, part: str, node: Any) -> Line:
    if not isinstance(node, dict):  # a communication without a tensor
        return _nothing(name, entry, part)
    file = node.get("data_name") or NO_FILE
    shown = str(file).rpartition(".")[0] if file != NO_FILE else name
    dtype, shape, four, checksum = _facts(name, node)
    if not checksum:
        checksum = f"{zlib.crc32(str(node.get('value', '')).encode()):08x}"
    grad = node.get("requires_grad")
    grad = NOT_THERE if grad is None else str(grad) if isinstance(grad, bool) else grad
    return Line(shown, shown, entry, part, dtype, shape, grad, _said(four), checksum, str(file))


def _facts(name: str, node: dict[str, Any]) -> tuple[str, str, Sequence[Any], Any]:
    """Return the type, the shape, the four numbers and the checksum of a tensor or value."""
    numbers, value = [node.get(word) for word in _FOUR], node.get("value")
    kind, checksum = node["type"], node.get("md5")
    if node.get("dtype"):
        return str(node["dtype"]), str(node.get("shape")), numbers, checksum
    if kind == "torch.Size":
        return kind, str(value), numbers, checksum
    if kind == "slice":
        return kind, str(np.shape(np.array(value))), numbers, checksum
    if kind == "torch.ProcessGroup" or name.rpartition(".")[2] in _GROUPS:
        text = str(node.get("group_ranks") if kind == "torch.ProcessGroup" else value)
        return kind, "[]", [text] * 4, text
    return kind if kind == "ellipsis" else str(type(value)), "[]", [value] * 4, checksum


def _said(numbers: Sequence[Any]) -> Four:
    """Return numbers as they are written: truth as a word, nothing as `None`, NaN as `Nan`."""
    high, low, mean, norm = map(_word, numbers)
    return high, low, mean, norm


def _word(value: Any) -> Any:
    if value is None:
        return NONE
    if isinstance(value, float) and value != value:  # noqa: PLR0124 - NaN alone
        return "Nan"
    return value
