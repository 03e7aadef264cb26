"""What becomes of a tensor that was seen: reduced, found already reduced, or refused with a reason.

Results wait here until the drain, on the device where they were computed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from probe_nb import devices
from probe_nb.stats.kernels import cpu, eager, host
from probe_nb.stats.numbers import Numbers
from probe_nb.terms import COUNTS, STATISTICS, Status

NONE: Final = -1
"""In place of a result: nothing was computed."""

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
_WHOLE: Final = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
"""Whole numbers that can be widened; types of less than a byte have no arithmetic in torch."""

_ORDINARY: Final = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64)
_COMPRESSED: Final = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


class _Result(NamedTuple):
    """The numbers of one tensor in the form in which they wait: a few hundred bytes."""

    statistics: tuple[float, ...]
    counts: tuple[int, ...]
    bins: NDArray[np.uint16]
    values: NDArray[np.int64]

    @classmethod
    def of(cls, numbers: Numbers) -> _Result:
        bins = numbers.bins.nonzero()[0]
        values = numbers.bins[bins]
        return cls(numbers.statistics(), numbers.counts(), bins.astype(np.uint16), values)


class Seen(NamedTuple):
    """What `Reducer.see` says of one tensor."""

    result: int
    status: Status
    reused: bool


@dataclass
class Drained:
    """The results of one drain, row `i` belonging to result `i`.

    Shapes: statistics (n, 6), counts (n, 6), sizes (n,), bins and values end to end.
    """

    statistics: NDArray[np.float64]
    counts: NDArray[np.int64]
    sizes: NDArray[np.uint16]
    bins: NDArray[np.uint16]
    values: NDArray[np.int64]


@dataclass
class _OnDevice:
    """Rows of one tensor that wait on a device: their place among the rows of that device."""

    device: torch.device
    first: int
    rows: eager.Rows
    zeros: int
    result: _Result | None = None


@dataclass
class Reducer:
    """Reduces each distinct tensor of a step once and hands all results over at the drain.

    Args:
        reduce_once: Take a tensor whose storage, geometry and version were seen in this step as
            seen. Writes that autograd cannot see either (`.data`, numpy) need False.
    """

    reduce_once: bool = True
    _results: list[_Result | _OnDevice] = field(default_factory=list)
    _waiting: dict[torch.device, list[Tensor]] = field(default_factory=dict)
    _streams: set[Any] = field(default_factory=set)
    _known: dict[Hashable, int] = field(default_factory=dict)
    _references: list[int] = field(default_factory=list)
    _scratch: host.Scratch = field(default_factory=host.Scratch)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def see(self, t: Tensor, *, once: bool) -> Seen:
        """Reduce `t` unless it was reduced already, or say why not.

        `once` is the caller's word that the tensor may be looked up by its storage: an
        activation or a gradient, not a parameter or a buffer.
        """
        # Guards of torch's own, entered by `with` itself: a Ctrl-C cannot come between. Grad mode
        # is left alone: everything is computed from a detached tensor.
        with torch._C.DisableTorchFunction():
            if _modes_on():
                with _modes_off():
                    return self._see(t, once=once)
            return self._see(t, once=once)

    def _see(self, t: Tensor, *, once: bool) -> Seen:
        t, zeros, status = _measurable(t)
        if status != "ok":
            return Seen(NONE, status, reused=False)
        key = self._key(t, zeros) if once and self.reduce_once else None
        if key is None:
            return Seen(self._reduce(t, zeros), "ok", reused=False)
        found = self._known.get(key)
        if found is not None:
            return Seen(found, "ok", reused=True)
        result = self._known[key] = self._reduce(t, zeros)
        return Seen(result, "ok", reused=False)

    def _key(self, t: Tensor, zeros: int) -> Hashable:
        """Name a tensor by its storage object, kept from being mistaken by a weak reference.

        While the reference is held, no other storage can have the same identity; an address
        alone would be reused within a step. The references are torch's own numbers, freed in
        `forget`: an object with a finaliser for each could swallow a Ctrl-C.
        """
        if t.is_inference() or t.layout != torch.strided:
            return None
        reference: Any = t.untyped_storage()._weak_ref()  # a number, whatever the stubs say
        self._references.append(reference)
        place = (t.storage_offset(), t.shape, t.stride(), t.dtype, t.is_conj(), t.is_neg())
        return (reference, t._version, zeros, *place)

    def _reduce(self, t: Tensor, zeros: int) -> int:
        outcome: _Result | _OnDevice
        if devices.is_host(t):
            outcome = self._on_host(t, zeros)
        else:
            rows = eager.summarize(t, float64=devices.has_float64(t))
            with self._lock:
                waiting = self._waiting.setdefault(t.device, [])
                outcome = _OnDevice(t.device, len(waiting), rows, zeros)
                waiting += rows.words
                self._streams.add(devices.stream(t))
        with self._lock:
            self._results.append(outcome)
            return len(self._results) - 1

    def _on_host(self, t: Tensor, zeros: int) -> _Result:
        found = cpu.reduced(t) if not zeros else None
        if found is not None:
            return _Result(*found)
        numbers = cpu.summarize(t) or host.summarize(t, self._scratch)
        numbers.add_zeros(zeros)
        return _Result.of(numbers)

    def forget(self) -> None:
        """Begin a new step: nothing counts as seen any more."""
        self._known.clear()
        references, self._references = self._references, []
        while references:
            torch.UntypedStorage._free_weak_ref(references.pop())

    def drain(self) -> tuple[Drained, list[str]]:
        """Copy everything to the host, one copy per device, and start empty.

        Returns the results and, for results that a device lost, what it said.
        """
        with self._lock:
            results, self._results = self._results, []
            waiting, self._waiting = self._waiting, {}
            streams, self._streams = self._streams, set()
            self.forget()
        errors = []
        with torch._C.DisableTorchFunction(), _modes_off():
            devices.join(streams)
            for device, rows in waiting.items():
                mine = [r for r in results if isinstance(r, _OnDevice) and r.device == device]
                try:
                    words = torch.stack(rows).cpu().numpy()
                except RuntimeError as error:
                    errors.append(f"{device}: {error}")
                    continue
                for each in mine:
                    block = words[each.first : each.first + len(each.rows.words)]
                    numbers = eager.decode(block, each.rows.repeats, each.rows.kind)
                    numbers.add_zeros(each.zeros)
                    each.result = _Result.of(numbers)
        return _packed([r.result if isinstance(r, _OnDevice) else r for r in results]), errors


def _packed(results: list[_Result | None]) -> Drained:
    n = len(results)
    statistics = np.full((n, len(STATISTICS)), np.nan)
    counts = np.full((n, len(COUNTS)), NONE, np.int64)
    sizes = np.zeros(n, np.uint16)
    there = [(row, result) for row, result in enumerate(results) if result is not None]
    for row, result in there:
        statistics[row], counts[row] = result.statistics, result.counts
        sizes[row] = len(result.bins)
    bins = np.concatenate([np.empty(0, np.uint16), *(r.bins for _, r in there)])
    values = np.concatenate([np.empty(0, np.int64), *(r.values for _, r in there)])
    return Drained(statistics, counts, sizes, bins, values)


def _measurable(t: Tensor) -> tuple[Tensor, int, Status]:
    """Return a strided tensor with the elements of `t` and the number of zeros it leaves out.

    The status is "ok", or the reason why there is no such tensor.
    """
    if _is_ordinary(t):
        return (t.detach(), 0, "ok") if t.numel() else (t, 0, "empty")
    while torch._C._functorch.is_functorch_wrapped_tensor(t):
        if torch._C._functorch.is_batchedtensor(t):
            return t, 0, "vmapped"
        t = torch._C._functorch.get_unwrapped(t)
    t, status = _unwrapped(t)
    if status == "ok":
        status = _obstacle(t)
    if status != "ok":
        return t, 0, status
    t, zeros = _strided(t.detach())
    return t, zeros, "ok" if t.layout == torch.strided and _has_arithmetic(t) else "unsupported"


def _obstacle(t: Tensor) -> Status:
    """Return why a tensor, now unwrapped, has no elements to measure, "ok" if it has."""
    if t.device.type == "meta":
        return "meta"
    if t.numel() == 0:
        return "empty"
    if not devices.is_host(t) and devices.capturing():
        return "unsupported"
    return "private_format" if devices.private_format(t) else "ok"


def _is_ordinary(t: Tensor) -> bool:
    """Tell whether nothing about `t` needs a second look: the common case, decided quickly."""
    return (
        type(t) in _PLAIN
        and t.dtype in _ORDINARY
        and t.layout == torch.strided
        and t.device.type == "cpu"
        and not t.is_nested
        and not torch._C._functorch.is_functorch_wrapped_tensor(t)
    )


def _has_arithmetic(t: Tensor) -> bool:
    """Tell whether the elements of `t` can be widened to a type that sums and compares."""
    name = str(t.dtype).removeprefix("torch.")
    if name == "uint64":
        return devices.has_float64(t)
    if t.dtype.is_floating_point:
        return not name.startswith("float4")
    return t.dtype.is_complex or name in _WHOLE


def _strided(t: Tensor) -> tuple[Tensor, int]:
    """Return the stored elements of a tensor of any layout, and the number of implicit zeros."""
    if t.is_quantized:
        return t.dequantize(), 0
    if t.is_nested:
        if t.layout == torch.jagged and t.lengths() is None:  # type: ignore[attr-defined]
            return t.values(), 0
        return torch.cat([each.reshape(-1) for each in t.unbind()]), 0
    if t.layout == torch.sparse_coo:
        values = t.coalesce().values()
        return values, t.numel() - values.numel()
    if t.layout in _COMPRESSED:
        return t.values(), t.numel() - t.values().numel()
    return t, 0


def _unwrapped(t: Tensor) -> tuple[Tensor, Status]:
    """Look inside a tensor subclass: a sharded tensor gives its local shard."""
    if type(t) in _PLAIN:
        return t, "ok"
    if isinstance(t, (FakeTensor, torch.nn.UninitializedParameter)):
        return t, "meta"
    local = getattr(t, "_local_tensor", None)
    if isinstance(local, Tensor):
        return local, "ok"
    return t, "ok"


@contextlib.contextmanager
def _modes_off() -> Iterator[None]:
    """Compute beside the user's dispatch modes and function transforms."""
    with contextlib.ExitStack() as stack:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            stack.enter_context(temporarily_clear_interpreter_stack())
        if torch._C._len_torch_dispatch_stack():
            stack.enter_context(_disable_current_modes())
        yield


def _modes_on() -> bool:
    """Tell whether there is a mode or a transform to step aside from."""
    if torch._C._len_torch_dispatch_stack():
        return True
    return torch._C._functorch.peek_interpreter_stack() is not None
