"""Leaf paths -> nested lists and dicts, and these -> the text of a file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

_NUMBER: Final = re.compile("0|[1-9][0-9]{0,6}")
_GAPS: Final = 1024
"""So many places of a list may be empty: what was there is no tensor."""


class Item(dict[str, Any]):
    """What is written of one tensor or value: on a line of its own."""


Tree = dict[str, Any]


def planted(leaves: Iterable[tuple[Sequence[str], Any]]) -> Tree:
    """Put items into nested dicts, each at its path."""
    tree: Tree = {}
    for path, item in leaves:
        *above, last = path or ("",)
        node = tree
        for name in above:
            node = _into(node, name)
        while last in node:  # another leaf is there, or goes through there
            last += "_"
        node[last] = item
    return tree


def _into(node: Tree, name: str) -> Tree:
    while isinstance(found := node.setdefault(name, {}), Item) or type(found) is not dict:
        name += "_"
    return found


def grown(node: Any) -> Any:
    """Make lists of the dicts whose names are numbers; what is missing between is None."""
    if type(node) is not dict or not node:
        return node
    parts = {name: grown(each) for name, each in node.items()}
    return _as_list(parts) if _counts(parts) else parts


def as_list(tree: Tree) -> list[Any]:
    """Return what a call was given or gave; names stand for one dict, alone in the list."""
    if not tree:
        return []
    found = grown(tree)
    return found if isinstance(found, list) else [found]


def _counts(parts: Mapping[str, Any]) -> bool:
    """Tell whether names are the places of a list."""
    if not all(map(_NUMBER.fullmatch, parts)):
        return False
    return max(map(int, parts)) < len(parts) + _GAPS


def _as_list(parts: Mapping[str, Any]) -> list[Any]:
    made: list[Any] = [None] * (max(map(int, parts)) + 1)
    for name, each in parts.items():
        made[int(name)] = each
    return made


def text_of(node: Any, depth: int = 0) -> Iterator[str]:
    """Yield the JSON of nested lists, dicts and items; an item is one line."""
    inner = "\n" + " " * (depth + 1)
    if isinstance(node, Item) or not isinstance(node, (dict, list)) or not node:
        yield json.dumps(node)
        return
    opening, closing = "{}" if isinstance(node, dict) else "[]"
    pairs = node.items() if isinstance(node, dict) else (("", each) for each in node)
    start = opening
    for name, each in pairs:
        before = start + inner + (f"{json.dumps(str(name))}: " if opening == "{" else "")
        if isinstance(each, Item):
            yield before + json.dumps(each)
        else:
            yield before
            yield from text_of(each, depth + 1)
        start = ","
    yield "\n" + " " * depth + closing
