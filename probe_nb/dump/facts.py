"""What the entry of a tensor says of it beside its numbers, checked: it may say anything."""

from __future__ import annotations

import math
import re
from typing import Any, Final, NamedTuple

from probe_nb.terms import printable

_MINDSPORE: Final = re.compile(r"(U?Int|Float|BFloat|Complex|Float8E[45]M[23]\w*)[0-9]*|Bool")
_LONGEST: Final = 64
_DIMENSIONS: Final = 64
_LARGEST: Final = 2**62


class Facts(NamedTuple):
    """What a tensor is."""

    dtype: str
    shape: tuple[int, ...]
    numel: int
    requires_grad: bool
    checksum: str | None
    part: str
    """What is behind the leaf where a process holds a part alone, as our own rows have it."""


def facts_of(node: dict[str, Any]) -> Facts:
    """Return what an entry says.

    Raises:
        ValueError: No tensor can be so; the message says what.
    """
    shape = _shape(node["shape"])
    checksum = node.get("md5")
    return Facts(
        _dtype(node["dtype"]),
        shape,
        math.prod(shape),
        node.get("requires_grad") is True,
        None if checksum is None else printable(str(checksum)[:_LONGEST]),
        _part(node),
    )


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _DIMENSIONS:
        raise ValueError("its shape is none")
    if not all(type(n) is int and 0 <= n < _LARGEST for n in value):
        raise ValueError("its shape is none")
    if math.prod(value) >= _LARGEST:
        raise ValueError("no tensor is so large")
    return tuple(value)


def _dtype(value: Any) -> str:
    """Return the name that torch has for a type; MindSpore's differ."""
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST:
        raise ValueError("its dtype is none")
    name = value.removeprefix("torch.").removeprefix("mindspore.")
    return name.lower() if _MINDSPORE.fullmatch(name) else printable(name)


def _part(node: dict[str, Any]) -> str:
    if not str(node["type"]).endswith("DTensor"):
        return ""
    placements = str(node.get("placements"))[:1_000]
    return ".partial" if "Partial" in placements else ".shard" if "Shard" in placements else ""
