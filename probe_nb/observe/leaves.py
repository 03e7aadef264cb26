"""Nested arguments and results -> (leaf path, tensor), without changing or copying anything.

Only what is stored is read: entries of dicts, lists and tuples and attributes of dataclasses, past
whatever a class makes of reading them. Code of the user's could load, draw random numbers, raise.
So it is `type(value)` that is asked: `isinstance` reads `value.__class__`, which may be code too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MemberDescriptorType
from typing import Any, Final

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from probe_nb.terms import printable

Leaf = tuple[str, Tensor]
Members = Iterable[tuple[object, Any]]

DEPTH: Final = 32
"""Deeper than any honest argument; bounds the paths along a linked list."""

TOO_DEEP: Final = (
    f"arguments or results are nested more than {DEPTH} deep: what lies deeper was not looked at"
)

_CACHES: Final = ("Cache", "CacheLayerMixin")
"""Classes of transformers that hold the keys and values of the tokens so far."""

_STORES: Final = {"UserDict": "data", "TensorDict": "_tensordict"}
"""Classes of mappings whose entries are in a dict of their own, and its name."""

_SCALARS: Final = frozenset((type(None), bool, int, float, str, bytes))


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any], unread: set[str]) -> list[Leaf]:
    """Return the tensors among a call's arguments: `0`, `1.hidden`, `kwargs.mask`.

    What was passed over although it may hold tensors is said in `unread`, here and below.
    """
    if len(args) == 1 and not kwargs and type(args[0]) is Tensor:
        return [("0", args[0])]
    walk = _Walk(unread)
    walk.through(enumerate(args), "", DEPTH)
    if kwargs:
        walk.through(entries(kwargs), "kwargs.", DEPTH)
    return walk.found


def results(output: Any, unread: set[str]) -> list[Leaf]:
    """Return the tensors in a result: a lone tensor is `0`, a dict gives its keys.

    The key-value cache of a `generate` loop is looked into here and not among the arguments: it
    is handed whole to every layer, and what went in is what came out one token before.
    """
    kind = type(output)
    if kind is Tensor or issubclass(kind, Tensor):
        return [("0", output)]
    walk = _Walk(unread, caches=True)
    if kind not in _SCALARS:
        walk.into(output, "", DEPTH)
    return walk.found


class _Walk:
    """One look at what a call was given or gave; each container is entered once.

    Where containers are shared, or linked in circles, the first path to one is its path.
    """

    __slots__ = ("_caches", "_entered", "_unread", "found")

    def __init__(self, unread: set[str], *, caches: bool = False) -> None:
        self.found: list[Leaf] = []
        self._entered: set[int] = set()
        self._unread = unread
        self._caches = caches

    def through(self, members: Members, prefix: str, depth: int) -> None:
        """Look at the parts of a container."""
        for name, value in members:
            kind = type(value)
            if kind is Tensor:
                self.found.append((f"{prefix}{name}", value))
            elif kind in _SCALARS:
                continue
            elif issubclass(kind, Tensor):
                self.found.append((f"{prefix}{name}", value))
            elif id(value) not in self._entered:
                self.into(value, f"{prefix}{name}.", depth - 1)

    def into(self, value: Any, prefix: str, depth: int) -> None:
        """Look into an object, if it is a container."""
        parts = members(value, type(value))
        if parts is None and self._caches:
            parts = _cached(value)
        if parts is None:
            self._pass_over(type(value))
        elif depth == 0:
            self._unread.add(TOO_DEEP)
        else:
            self._entered.add(id(value))
            self.through(parts, prefix, depth)

    def _pass_over(self, kind: type) -> None:
        if Mapping in kind.__mro__:
            self._unread.add(
                f"what a `{printable(kind.__name__)}` holds was not looked at: reading it runs "
                "code of its own"
            )


def members(value: Any, kind: type) -> Members | None:
    """Return the named parts of a container, None for any other object."""
    if kind is dict or issubclass(kind, dict):
        return entries(value)
    if issubclass(kind, tuple):
        return _of_tuple(value, kind)
    if issubclass(kind, list):
        return enumerate(list.copy(value))
    fields = _of_class(kind, "__dataclass_fields__")
    if type(fields) is dict:
        return _fields(value, kind, fields)
    for name in [_STORES[each.__name__] for each in kind.__mro__ if each.__name__ in _STORES]:
        stored: Any = _attributes(value).get(name)
        return entries(stored) if issubclass(type(stored), dict) else None
    return None


def _of_tuple(value: Any, kind: type) -> Members:
    parts = tuple.__iter__(value)
    if kind is tuple:
        return enumerate(parts)
    if issubclass(kind, PackedSequence):
        return (("data", next(parts)),)  # the rest is bookkeeping: lengths and orders
    names = _of_class(kind, "_fields")
    return zip(names, parts, strict=False) if type(names) is tuple else enumerate(parts)


def entries(value: dict[Any, Any]) -> Members:
    """Return the entries of a dict under names that can be written."""
    pairs: list[tuple[Any, Any]] = list(dict.items(value))
    for place, (key, each) in enumerate(pairs):
        if type(key) is not str:
            pairs[place] = (_named(key, place), each)
    return pairs


def _fields(value: Any, kind: type, fields: dict[str, Any]) -> Members:
    """Return the fields of a dataclass that are attributes or slots, and not those it computes."""
    stored = _attributes(value)
    found = []
    for name in fields:
        if name in stored:
            found.append((name, stored[name]))
        elif type(slot := _of_class(kind, name)) is MemberDescriptorType:
            found.append((name, _in_slot(slot, value)))
    return found


def _cached(value: Any) -> Members | None:
    """Return the parts of a cache of transformers, or of one of its layers."""
    if not any(kind.__name__ in _CACHES for kind in type(value).__mro__):
        return None
    return [pair for pair in _attributes(value).items() if not pair[0].startswith("_")]


def _attributes(value: Any) -> dict[str, Any]:
    """Return a copy of what an object keeps by name."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:  # it has slots alone
        return {}
    return dict(dict.items(found))


def _of_class(kind: type, name: str) -> Any:
    """Return an attribute of a class as it is stored there, None if there is none."""
    return next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)


def _in_slot(slot: MemberDescriptorType, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:  # it was never set
        return None


def _named(key: Any, place: int) -> str:
    """Write a key of a dict; one whose text is code of the user's is known by its place."""
    kind = type(key)
    if kind in _SCALARS or (kind is tuple and all(type(each) in _SCALARS for each in key)):
        return str(key)
    if kind.__module__ in ("numpy", "torch") and not issubclass(kind, Tensor):
        return str(key)
    if issubclass(kind, Enum):
        return f"{kind.__name__}.{_attributes(key).get('_name_')}"
    if issubclass(kind, str):
        return str.__str__(key)
    return f"<{kind.__name__} {place}>"
