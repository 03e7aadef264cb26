"""What is in an entry: each tensor and each value, with its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from probe_nb.dump.keys import Key, Part
from probe_nb.dump.numbers import OURS
from probe_nb.dump.reports import Report
from probe_nb.store.values import KINDS
from probe_nb.terms import Direction, Role, printable

_PARTS: Final[dict[str, dict[str, Part]]] = {
    "forward": {
        "parameters": "parameters",
        "input_args": "input",
        "input": "input",
        "input_kwargs": "kwargs",
        "output": "output",
    },
    "backward": {"input": "input", "output": "output"},
}
"""The members of an entry that hold values, in the order in which they are there."""

_ROLES: Final[dict[tuple[str, Part], Role]] = {
    ("forward", "input"): "input",
    ("forward", "kwargs"): "input",
    ("forward", "output"): "output",
    ("forward", "parameters"): "param",
    ("backward", "input"): "grad_output",
    ("backward", "output"): "grad_input",
}
"""msProbe says of a backward what goes in and comes out of it."""

_DEEPEST: Final = 400
_LONGEST: Final = 1_000
"""Nested so deep, and a leaf path so long, nothing is looked at; msProbe itself stops at 400."""

_NUMPY: Final = frozenset(
    f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64, 128)
) | {"bool_", "complex64", "complex128", "float16", "longdouble"}


class Where(NamedTuple):
    """The part of an entry that something is in."""

    role: Role
    direction: Direction
    part: Part


class Seen(NamedTuple):
    """One tensor or value of an entry."""

    where: Where
    leaf: str
    node: Any


def seen_in(key: Key, entry: Any, report: Report) -> Iterator[Seen]:
    """Yield what an entry holds, in order."""
    if key.kind == "debug":
        yield from _nested(Where("value", key.direction, ""), "", entry, report)
        return
    if not isinstance(entry, dict):
        report("is no entry of a call")
        return
    if key.kind == "parameters_grad":
        where = Where("param_grad", "backward", "")
        for name, node in entry.items():
            only = node[0] if isinstance(node, list) and len(node) == 1 else node
            yield from _nested(where, name, only, report)
        return
    for member, part in _PARTS[key.direction].items():
        if member in entry:
            where = Where(_ROLES[key.direction, part], key.direction, part)
            for leaf, node in _named(part, entry[member]):
                yield from _nested(where, leaf, node, report)


def _named(part: Part, values: Any) -> list[tuple[str, Any]]:
    """Return what is in one member of an entry: a list or an object, which is no value itself."""
    if isinstance(values, list):
        only = values[0] if len(values) == 1 else None
        if part == "output" and isinstance(only, dict) and only and not _is_leaf(only):
            return list(only.items())  # a dict that was returned, and not a tuple with one in it
        return [(str(place), node) for place, node in enumerate(values)]
    if isinstance(values, dict) and not _is_leaf(values):
        kwargs = "kwargs." if part == "kwargs" else ""
        return [(f"{kwargs}{name}", node) for name, node in values.items()]
    return [] if values is None else [("0", values)]


def _nested(where: Where, leaf: str, node: Any, report: Report) -> Iterator[Seen]:
    waiting = [(leaf, node, 0)]
    while waiting:
        leaf, node, depth = waiting.pop()
        children = _children(node)
        if children and (depth >= _DEEPEST or len(leaf) > _LONGEST):
            report(f"{where.role} {printable(leaf[:40])}… was skipped: it is nested too deeply")
        elif children:
            dot = "." if leaf else ""
            waiting += [(f"{leaf}{dot}{name}", each, depth + 1) for name, each in children[::-1]]
        else:
            yield Seen(where, printable(leaf[:_LONGEST]), node)


def _children(node: Any) -> list[tuple[str, Any]]:
    if isinstance(node, list):
        return [(str(place), each) for place, each in enumerate(node)]
    if isinstance(node, dict) and not _is_leaf(node):
        return list(node.items())
    return []


def _is_leaf(node: dict[str, Any]) -> bool:
    return isinstance(node.get("type"), str)


def is_tensor(node: Any) -> bool:
    """Tell whether a value is a tensor."""
    return isinstance(node, dict) and _is_leaf(node) and "shape" in node and "dtype" in node


def ours_of(node: Any) -> dict[str, Any]:
    """Return what probe_nb wrote of a tensor beside what msProbe has a word for."""
    ours = node.get(OURS)
    return ours if isinstance(ours, dict) else {}


def said_of(key: Key, entry: Any) -> dict[str, Any]:
    """Return what probe_nb wrote of the first tensor of an entry, where all say the same."""
    everything = seen_in(key, entry, lambda _: None)
    return next((ours_of(each.node) for each in everything if is_tensor(each.node)), {})


def text_of(value: Any, instead: str) -> str:
    """Return a text that a file has, or something else where there is none."""
    return printable(value[:_LONGEST]) if isinstance(value, str) else instead


def value_of(node: Any) -> tuple[str, Any]:
    """Return the kind of a value that is no tensor, and what JSON can hold of it."""
    if not isinstance(node, dict):
        kind = {bool: "bool", int: "int", float: "float", str: "str", list: "list"}
        return kind.get(type(node), "None"), node
    if not node:
        return "dict", {}
    name = printable(str(node["type"])[:_LONGEST])
    short = name.removeprefix("numpy.")
    if name not in KINDS and short not in _NUMPY:
        return "object", name
    return (name if name in KINDS else short), node.get("value", node.get("format"))
