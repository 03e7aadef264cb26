"""Buffers: read when a step begins, if they were written or replaced since they were last read.

Masks and tables of angles are large and never change; running means are small and change in every
step. What tells them apart is the version that torch counts up at each write, and the storage that
is held by a weak reference, so that no other can have its identity. The native kernels of batch
normalisation write the running mean and variance without counting: those are read in every step
in which their module may have written them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from probe_nb.observe.calls import Clock
from probe_nb.observe.select import Watched
from probe_nb.observe.sink import Sink
from probe_nb.observe.tasks import When

_PLAIN: Final = (torch.Tensor, nn.Parameter)
_UNCOUNTED: Final = ("running_mean", "running_var")
_UNKNOWN: Final = -1

Key = tuple[int, str]


class _Read(NamedTuple):
    """What a buffer was when it was read."""

    tensor: int
    storage: int
    weak: int
    """Torch's number of the weak reference to the storage, to be freed."""
    version: int
    training: bool

    def still(self, t: Tensor) -> bool:
        """Tell whether a buffer is certain to hold what it held."""
        if self.storage == _UNKNOWN or t.is_inference() or id(t) != self.tensor:
            return False
        return t._version == self.version and _storage(t)._cdata == self.storage


class Buffers:
    """Reads the floating-point buffers of the selected modules."""

    def __init__(
        self,
        watched: list[Watched],
        clock: Clock,
        sink: Sink,
        *,
        wanted: bool = True,
        once: bool = True,
    ) -> None:
        """Know of no buffer. `watched` may grow; unless `wanted` nothing is read.

        Unless `once` everything is read in every step: writes through `.data` are not counted.
        """
        self._watched = watched
        self._clock = clock
        self._sink = sink
        self._wanted = wanted
        self._once = once
        self._known: dict[Key, _Read] = {}

    def step_begins(self) -> None:
        """Read what is new or may have been written."""
        if self._wanted:
            self._read(self._watched)

    def built(self, watched: Watched) -> None:
        """Read the buffers of a lazy module that was built by its first call."""
        if self._wanted:
            self._read([watched])

    def _read(self, watched: Iterable[Watched]) -> None:
        clock, seen = self._clock, set[int]()
        when = When(clock.step, clock.micro_step, clock.recording)
        for each in watched:
            module = each.module() if each.selected else None
            if module is None or not module._buffers:
                continue
            for name, t in list(module._buffers.items()):
                if t is None or is_lazy(t) or not t.dtype.is_floating_point or id(t) in seen:
                    continue
                seen.add(id(t))
                if self._is_news((id(each), name), module, name, t):
                    self._sink.tensor(each.parameters_call(when), ("buffer", name), t)

    def _is_news(self, key: Key, module: nn.Module, name: str, t: Tensor) -> bool:
        """Tell whether a buffer must be read, and remember what it is now."""
        known, training = self._known.get(key), bool(module.training)
        if self._once and known is not None and known.still(t):
            uncounted = name in _UNCOUNTED and isinstance(module, _NormBase)
            if not uncounted or not (training or known.training):
                return False
        self._forget(key)
        self._known[key] = _Read(id(t), *_identity(t), training)
        return True

    def _forget(self, key: Key) -> None:
        """Hold a buffer no more: what a Ctrl-C interrupts here may leak, but is not freed twice."""
        known = self._known.pop(key, None)
        if known is not None and known.weak:
            torch.UntypedStorage._free_weak_ref(known.weak)

    def close(self) -> None:
        """Hold nothing any more."""
        while self._known:
            self._forget(next(iter(self._known)))


def _storage(t: Tensor) -> Any:
    return t.untyped_storage()  # torch's stubs do not know what it can do


def _identity(t: Tensor) -> tuple[int, int, int]:
    """Return storage, weak reference and version; of what has none it is not known."""
    if type(t) not in _PLAIN or t.layout != torch.strided or t.is_inference():
        return _UNKNOWN, 0, _UNKNOWN
    if torch._C._functorch.is_functorch_wrapped_tensor(t):
        return _UNKNOWN, 0, _UNKNOWN
    storage = _storage(t)
    return storage._cdata, storage._weak_ref(), t._version
