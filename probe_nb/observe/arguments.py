"""Arguments and results that are no tensors -> (leaf path, kind, what JSON can hold of them).

As in `leaves`, only what is stored is read, and no code of the user's runs: of an object that is
not known the name of its class is all that is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor

from probe_nb.observe.calls import Call
from probe_nb.observe.leaves import DEPTH, TOO_DEEP, Members, entries, members
from probe_nb.observe.select import Watched
from probe_nb.terms import Role, printable

Plain = tuple[str, str, Any]
"""A leaf path, a kind as `store.values.KINDS` lists them, and a value that JSON can hold."""

MOST: Final = 4096
"""Values of one call that are looked at."""

TOO_MANY: Final = (
    f"a call had more than {MOST} values that are no tensors: the rest was passed over"
)


class ValueSink(Protocol):
    """Takes what is no tensor."""

    def value(self, call: Call, role: Role, found: Plain) -> None:
        """Write a value down."""

    def fault(self, watched: Watched | None, where: str, error: Exception) -> None:
        """Take note of an error of our own."""


class Arguments:
    """Records what of the arguments and results of calls is no tensor."""

    def __init__(self, sink: ValueSink, roles: Collection[Role], *, recomputes: bool) -> None:
        """Record inputs and outputs, if these are among the roles."""
        self._sink = sink
        self._roles = roles
        self._recomputes = recomputes

    def given(self, call: Call, args: Any, kwargs: dict[str, Any], unread: set[str]) -> None:
        """Look at what a call is given."""
        if self._wants(call, "input"):
            self._record(call, "input", plain_arguments(args, kwargs, unread))

    def returned(self, call: Call, output: Any, unread: set[str]) -> None:
        """Look at what it gives back."""
        if self._wants(call, "output"):
            self._record(call, "output", plain_results(output, unread))

    def _wants(self, call: Call, role: Role) -> bool:
        if role not in self._roles or call.silent == "forward":
            return False
        return self._recomputes or not call.recompute

    def _record(self, call: Call, role: Role, found: Iterator[Plain]) -> None:
        try:
            for each in found:
                self._sink.value(call, role, each)
        except Exception as error:  # a fault of ours is never the user's
            self._sink.fault(call.watched, f"{role} that is no tensor", error)


def plain_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], unread: set[str]
) -> Iterator[Plain]:
    """Yield what is no tensor among a call's arguments; paths are those of `leaves.arguments`."""
    walk = _Walk(unread)
    yield from walk.through(enumerate(args), "", DEPTH)
    yield from walk.through(entries(kwargs), "kwargs.", DEPTH)


def plain_results(output: Any, unread: set[str], *, alone: str = "0") -> Iterator[Plain]:
    """Yield what is no tensor in a result; a lone value has the path `alone`."""
    kind = type(output)
    if issubclass(kind, Tensor):
        return
    known = _known(output, kind)
    inside = None if known else members(output, kind)
    walk = _Walk(unread)
    if inside is None:
        yield (alone, *(known or _object(kind)))
        return
    yield from walk.inside(alone, "", output, inside, DEPTH)


class _Walk:
    """One look at what a call was given or gave. What is shared is met on each of its paths."""

    __slots__ = ("_left", "_on_the_way", "_unread")

    def __init__(self, unread: set[str]) -> None:
        self._unread = unread
        self._left = MOST
        self._on_the_way: set[int] = set()

    def through(self, parts: Members, prefix: str, depth: int) -> Iterator[Plain]:
        """Look at the parts of a container."""
        for name, value in parts:
            kind = type(value)
            if issubclass(kind, Tensor):
                continue
            if self._left <= 0:
                self._unread.add(TOO_MANY)
                return
            self._left -= 1
            path = f"{prefix}{name}"
            if (known := _known(value, kind)) is not None:
                yield (path, *known)
            elif (inside := members(value, kind)) is None:
                yield (path, *_object(kind))
            elif id(value) not in self._on_the_way:
                yield from self.inside(path, f"{path}.", value, inside, depth - 1)

    def inside(
        self, path: str, prefix: str, value: Any, parts: Members, depth: int
    ) -> Iterator[Plain]:
        """Look into a container; one without parts is a value."""
        found = list(parts)
        if not found:
            yield (path, *_empty(type(value)))
        elif depth == 0:
            self._unread.add(TOO_DEEP)
        else:
            self._on_the_way.add(id(value))
            yield from self.through(found, prefix, depth)
            self._on_the_way.discard(id(value))


def _empty(kind: type) -> tuple[str, Any]:
    if issubclass(kind, dict):
        return "dict", {}
    if issubclass(kind, tuple):
        return "tuple", []
    return ("list", []) if issubclass(kind, list) else _object(kind)


def _object(kind: type) -> tuple[str, str]:
    return "object", printable(kind.__name__)


def _known(value: Any, kind: type) -> tuple[str, Any] | None:
    """Return the kind of a value and what JSON can hold of it, None if it is another object."""
    made = _EXACT.get(kind)
    if made is not None:
        return made(value)
    if issubclass(kind, np.generic):
        return _scalar(value, kind)
    for base, exact in _BASES.items():  # an IntEnum, a text of a class of its own
        if issubclass(kind, base):
            return _EXACT[base](exact(value))
    return None


def _slice(value: slice) -> tuple[str, Any]:
    return "slice", [_bound(each) for each in (value.start, value.stop, value.step)]


def _bound(value: Any) -> int | None:
    """Return a bound of a slice; one that is no number, or waits on a device, is left out."""
    kind = type(value)
    if kind in (int, bool):
        return int(value)
    if issubclass(kind, np.integer):
        return int(np.generic.item(value))
    return None


def _integer(value: int) -> tuple[str, Any]:
    if value.bit_length() > _BITS:
        return "object", "int"
    return "int", value


_BITS: Final = 4096
"""Python writes no longer integers as text, unless it is told to."""


def _scalar(value: Any, kind: type) -> tuple[str, Any]:
    """Return a scalar of NumPy under its own name; what is no number is an object."""
    if kind.__module__ != "numpy" or not issubclass(kind, (np.bool_, np.integer, np.floating)):
        return _object(kind)
    found = np.generic.item(value)
    return (kind.__name__, found) if type(found) in (bool, int, float) else _object(kind)


_EXACT: Final[dict[type, Callable[[Any], tuple[str, Any]]]] = {
    type(None): lambda _: ("None", None),
    bool: lambda value: ("bool", value),
    int: _integer,
    float: lambda value: ("float", value),
    str: lambda value: ("str", value),
    slice: _slice,
    type(...): lambda _: ("ellipsis", "..."),
    torch.Size: lambda value: ("torch.Size", [_bound(each) for each in value]),
    torch.dtype: lambda value: ("torch.dtype", str(value)),
    torch.device: lambda value: ("torch.device", str(value)),
    torch.memory_format: lambda value: ("torch.memory_format", str(value)),
}
_BASES: Final[dict[type, Callable[[Any], Any]]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
}
