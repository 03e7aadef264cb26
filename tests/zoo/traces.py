"""What one use of a specimen leaves behind, down to the bit."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from tests import models
from tests.zoo.specimen import Specimen

Around = Callable[[nn.Module], AbstractContextManager[Any]]
"""Makes what a specimen is used within: a watch, a recorder, or nothing."""

SEED = 0


@dataclasses.dataclass
class Trace:
    """Everything that can be known about one use; `around` is what its `with` gave."""

    book: dict[str, object]
    around: Any
    error: Exception | None
    warnings: list[tuple[type, str]]


def seed() -> None:
    """Begin every source of random numbers anew."""
    torch.manual_seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002 - the global generator is one that must not be drawn from
    random.seed(SEED)


def trained(specimen: Specimen, around: Around) -> Trace:
    """Run forward and backward once."""
    seed()
    model = built(specimen)
    args, kwargs = specimen.feed(model)
    given = [t for _, t in leaves([args, kwargs])]

    def use(book: dict[str, object]) -> None:
        output = model(*args, **kwargs)
        _note(book, "output", output)
        book["types"] = _types(output)
        book["identity"] = [[o is i for i in given] for _, o in leaves(output)]
        loss = total(output) if specimen.trains else None
        if loss is not None:
            loss.backward()

    def after(book: dict[str, object]) -> None:
        _note(book, "input", given)
        for place, t in enumerate(given):
            _note_gradient(book, f"input {place}", t.grad if t.is_leaf else None)

    return _traced(model, around, use, after)


def generated(specimen: Specimen, around: Around) -> Trace:
    """Generate in eval mode."""
    seed()
    model = built(specimen).eval()
    seed()

    def use(book: dict[str, object]) -> None:
        _note(book, "output", specimen.generate(model))

    return _traced(model, around, use, lambda book: None)


def built(specimen: Specimen) -> nn.Module:
    """Build a model that is remembered, to look for hooks on it at the end."""
    model = specimen.build()
    models._built.add(model)
    return model


def _traced(model: nn.Module, around: Around, use: Callable, after: Callable) -> Trace:
    book: dict[str, object] = {}
    error = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        manager = around(model)
        with manager as inside:
            try:
                use(book)
            except Exception as raised:
                error = raised
    book["error"] = None if error is None else (type(error), str(error))
    after(book)
    for name, p in model.named_parameters():
        _note_gradient(book, name, p.grad)
        book[f"hooks on {name}"] = len(p._backward_hooks or ())
    for kind, named in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, t in named:
            book[f"{kind} {name}"] = bits(t)
    _note(book, "state", dict(model.state_dict()))
    for path, module in model.named_modules():
        book[f"attributes of {path or 'root'}"] = list(vars(module))
        tables = models.hook_tables(module)
        book[f"hooks of {path or 'root'}"] = {name: len(table) for name, table in tables.items()}
        book[f"mode of {path or 'root'}"] = module.training
    book["torch's random numbers"] = torch.get_rng_state().numpy().tobytes()
    kind, numbers, *rest = np.random.get_state()  # noqa: NPY002
    book["numpy's random numbers"] = (kind, numbers.tobytes(), rest)
    book["Python's random numbers"] = random.getstate()
    return Trace(book, inside, error, [(w.category, str(w.message)) for w in caught])


def differences(before: Trace, after: Trace) -> list[str]:
    """Name what differs between two uses; empty if they are the same to the bit."""
    a, b = before.book, after.book
    names = [name for name in {**a, **b} if name not in a or name not in b or a[name] != b[name]]
    return [_told(name, a.get(name, "nothing"), b.get(name, "nothing")) for name in names]


def _told(name: str, a: object, b: object) -> str:
    if name == "error":
        return f"raises {b}, not {a}"
    shown = name.startswith(("attributes", "hooks", "mode", "types", "identity"))
    return f"{name} differs: {b}, not {a}" if shown else f"{name} differs"


# -- nested values -----------------------------------------------------------------------------


def leaves(value: Any, path: str = "", *, caches: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in nested values by leaf path, as the glossary defines it.

    Results are looked through with `caches`: what a model keeps of the tokens so far.
    """
    if isinstance(value, Tensor):
        yield path or "0", value
    for name, each in _members(value) or (_cached(value) if caches else []):
        yield from leaves(each, f"{path}.{name}" if path else str(name), caches=caches)


def _cached(value: Any) -> list[tuple[str, Any]]:
    room = sys.modules.get("transformers.cache_utils")
    if room is None or not isinstance(value, (room.Cache, room.CacheLayerMixin)):
        return []
    return [(name, each) for name, each in vars(value).items() if not name.startswith("_")]


def _members(value: Any) -> list[tuple[object, Any]]:
    if isinstance(value, PackedSequence):
        return [("data", value.data)]
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    return []


def _deep(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """Yield every tensor that can be reached, also inside caches and other objects."""
    if isinstance(value, Tensor):
        yield value
        return
    if id(value) in seen or isinstance(value, (nn.Module, type)) or callable(value):
        return
    seen.add(id(value))
    inside = [each for _, each in _members(value)] or list(getattr(value, "__dict__", {}).values())
    for each in inside:
        yield from _deep(each, seen)


def _types(value: Any) -> object:
    return (type(value), [(name, _types(each)) for name, each in _members(value)])


def _note(book: dict[str, object], name: str, value: Any) -> None:
    for place, t in enumerate(_deep(value, set())):
        book[f"{name} {place}"] = bits(t)
        book[f"version of {name} {place}"] = None if t.is_inference() else t._version


def _note_gradient(book: dict[str, object], name: str, g: Tensor | None) -> None:
    book[f"gradient of {name}"] = None if g is None else bits(g)
    book[f"version of gradient of {name}"] = None if g is None else g._version


# -- tensors -----------------------------------------------------------------------------------


def total(output: Any) -> Tensor | None:
    """Return a loss over every differentiable leaf, each element with a weight of its own."""
    parts = [_weighted(t) for _, t in leaves(output) if t.requires_grad]
    return sum(parts[1:], parts[0]) if parts else None


def _weighted(t: Tensor) -> Tensor:
    real = torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
    if real.layout != torch.strided:
        real = real.to_dense()
    wide = real if real.dtype == torch.float64 else real.float()
    place = torch.arange(real.numel(), dtype=wide.dtype).reshape(real.shape)
    return (wide * (0.25 + place.remainder(7) / 8)).sum()


def dense(t: Tensor) -> Tensor:
    """Return a strided tensor with the elements of `t`, implicit zeros included."""
    t = t.detach()
    if t.is_quantized:
        return t.dequantize()
    if t.is_nested:
        return torch.cat([each.reshape(-1) for each in t.unbind()])
    return t if t.layout == torch.strided else t.to_dense()


def bits(t: Tensor) -> tuple[object, ...]:
    """Return what a tensor is, and its exact bytes in short, so that NaN equals NaN."""
    about = (t.dtype, t.layout, t.device.type, t.requires_grad)
    if t.device.type == "meta" or isinstance(t, nn.UninitializedParameter | nn.UninitializedBuffer):
        return about
    if t.layout == torch.sparse_coo:
        return (*about, tuple(t.shape), bits(t._indices()), bits(t._values()))
    if t.layout == torch.strided and not t.is_nested:
        about = (*about, tuple(t.shape), t.stride())
    raw = dense(t).resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return (*about, hashlib.blake2b(raw.numpy()).digest())
