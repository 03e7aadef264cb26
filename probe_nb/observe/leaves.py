"""Nested arguments and results -> (leaf path, tensor), without changing or copying anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

Leaf = tuple[str, Tensor]

_DEPTH: Final = 12
"""Deeper than any honest argument; ends structures that contain themselves."""

_CACHES: Final = ("Cache", "CacheLayerMixin")
"""Classes of transformers that hold the keys and values of the tokens so far."""

_SCALARS: Final = frozenset((type(None), bool, int, float, str, bytes))


def arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Leaf]:
    """Return the tensors among a call's arguments: `0`, `1.hidden`, `kwargs.mask`."""
    found: list[Leaf] = []
    for place, value in enumerate(args):
        if isinstance(value, Tensor):
            found.append((str(place), value))
        else:
            found += _inside(value, str(place), _DEPTH)
    for name, value in kwargs.items():
        if isinstance(value, Tensor):
            found.append((f"kwargs.{name}", value))
        else:
            found += _inside(value, f"kwargs.{name}", _DEPTH)
    return found


def results(output: Any) -> list[Leaf]:
    """Return the tensors in a result: a lone tensor is `0`, a dict gives its keys.

    The key-value cache of a `generate` loop is looked into here and not among the arguments: it
    is handed whole to every layer, and what went in is what came out one token before.
    """
    if isinstance(output, Tensor):
        return [("0", output)]
    return list(_inside(output, "", _DEPTH, caches=True))


def _inside(value: Any, path: str, depth: int, *, caches: bool = False) -> Iterator[Leaf]:
    if isinstance(value, Tensor):
        yield path or "0", value
    elif type(value) in _SCALARS or depth == 0:
        return
    else:
        prefix = f"{path}." if path else ""
        for name, each in _members(value) or (_cached(value) if caches else ()):
            if type(each) not in _SCALARS:  # a long list of numbers costs no generator each
                yield from _inside(each, f"{prefix}{name}", depth - 1, caches=caches)


def _cached(value: Any) -> Iterator[tuple[object, Any]]:
    """Return the parts of a cache of transformers, or of one of its layers."""
    if not any(kind.__name__ in _CACHES for kind in type(value).__mro__):
        return iter(())
    return iter([pair for pair in vars(value).items() if not pair[0].startswith("_")])


def _members(value: Any) -> Iterator[tuple[object, Any]] | None:
    """Return the named parts of a container, None for any other object."""
    if isinstance(value, PackedSequence):
        return iter((("data", value.data),))  # the rest is bookkeeping: lengths and orders
    if isinstance(value, Mapping):
        return iter(list(value.items()))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return zip(value._fields, value, strict=False)
    if isinstance(value, (tuple, list)):
        return enumerate(list(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value)]
        return ((name, getattr(value, name, None)) for name in names)
    return None
