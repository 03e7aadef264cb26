"""Every module of `torch.nn` with every input that PyTorch tests it with."""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from tests.zoo.specimen import Feed, Specimen

FAMILY = "torch.nn"
FUSED = ("nn.Transformer", "nn.MultiheadAttention")
"""Modules that go another way where nothing needs a gradient, so they also infer."""


def specimens() -> list[Specimen]:
    """Return a specimen for each entry, number of its input, dtype and mode."""
    found = []
    for name, info in database().items():
        for dtype in _dtypes(info):
            for training in (True, False):
                count = len(_inputs(name, dtype, training=training))
                found += [_specimen(name, n, dtype, training=training) for n in range(count)]
    return found


def _dtypes(info: Any) -> list[torch.dtype]:
    """Return the types to try; torch itself may refuse bfloat16, which becomes a remark."""
    ours = (torch.float32, torch.float64, torch.bfloat16, torch.complex64)
    return [d for d in ours if d in info.dtypes or d == torch.bfloat16]


def _specimen(name: str, number: int, dtype: torch.dtype, *, training: bool) -> Specimen:
    def build() -> nn.Module:
        made = _input(name, number, dtype, training=training).constructor_input
        module = database()[name].module_cls(*made.args, **made.kwargs)
        return module.to(dtype).train(training)

    def feed(_: nn.Module) -> Feed:
        given = _input(name, number, dtype, training=training).forward_input
        return tuple(given.args), dict(given.kwargs)

    def infer(module: nn.Module) -> Any:
        args, kwargs = feed(module)
        with torch.inference_mode():
            return module(*args, **kwargs)

    mode = "train" if training else "eval"
    short = str(dtype).removeprefix("torch.")
    fused = not training and name.startswith(FUSED)
    return Specimen(
        f"{name}-{number}-{short}-{mode}", FAMILY, build, feed, infer if fused else None
    )


def _input(name: str, number: int, dtype: torch.dtype, *, training: bool) -> Any:
    """Return an input of its own; what was computed cannot be copied and is made once more."""
    found = _inputs(name, dtype, training=training)[number]
    try:
        return _Copied(*copy.deepcopy((found.constructor_input, found.forward_input)))
    except RuntimeError:
        return _inputs.__wrapped__(name, dtype, training=training)[number]


class _Copied(NamedTuple):
    constructor_input: Any
    forward_input: Any


@functools.lru_cache(maxsize=16)
def _inputs(name: str, dtype: torch.dtype, *, training: bool) -> list[Any]:
    """Return every input of a module, the same each time, without drawing from the generator."""
    info = database()[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=True, training=training
        )


@functools.cache
def database() -> dict[str, Any]:
    """Return PyTorch's own list of its modules by name."""
    with _imported_quietly():
        from torch.testing._internal.common_modules import module_db
    return {info.name: info for info in module_db}


@contextlib.contextmanager
def _imported_quietly() -> Iterator[None]:
    """Undo what the import changes for the whole process: filters, and switches that are locked."""
    flags = sys.modules["torch.backends"]
    locked = "__allow_nonbracketed_mutation_flag"
    before = getattr(flags, locked)
    with warnings.catch_warnings():
        yield
    setattr(flags, locked, before)
