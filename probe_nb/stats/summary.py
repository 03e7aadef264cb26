"""What becomes of a tensor that was seen: reduced, found already reduced, or refused with a reason.

Results wait here until the drain, on the device where they were computed.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import weakref
from collections.abc import Hashable, Iterator
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses import FakeTensor
from torch.nested._internal.nested_tensor import NestedTensor
from torch.utils._python_dispatch import _disable_current_modes

from probe_nb import devices
from probe_nb.stats.kernels import cpu, eager, gpu, host
from probe_nb.stats.results import Drained, Results
from probe_nb.stats.waiting import Device, Flight, Waiting
from probe_nb.terms import Status

NONE: Final = -1
"""In place of a result: nothing was computed."""

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
_WHOLE: Final = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
"""Whole numbers that can be widened; types of less than a byte have no arithmetic in torch."""

_ORDINARY: Final = frozenset(
    {
        *(torch.float32, torch.bfloat16, torch.float16, torch.float64),
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    }
)
"""Types about which nothing needs a second look: those of a plain CPU tensor are most often."""

_keys: Final = torch._C._dispatch_keys
_Key: Final = torch._C.DispatchKey
_DENSE: Final = frozenset(
    functools.reduce(operator.or_, map(torch._C.DispatchKeySet, keys)).raw_repr()
    for keys in (
        (_Key.CPU, _Key.AutocastCPU, _Key.AutogradCPU, _Key.ADInplaceOrView),
        (_Key.CPU, _Key.AutocastCPU),  # of inference mode
    )
)
"""Where torch looks for the operators of a dense CPU tensor, as a number.

A tensor of another kind (on another device, sparse, nested, wrapped by a transform, conjugated)
has others, so that one question tells it apart from all of them.
"""

_is_batched: Final = torch._C._functorch.is_legacy_batchedtensor
_engine: Final[Any] = torch.autograd.Variable._execution_engine
_graph_task: Final = torch._C._current_graph_task_id
_COMPRESSED: Final = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


class Seen(NamedTuple):
    """What `Reducer.see` says of one tensor."""

    result: int
    status: Status
    reused: bool


_seen: Final = functools.partial(tuple.__new__, Seen)
"""Makes one in half the time."""


class Reducer:
    """Reduces each distinct tensor of a step once and hands all results over at the drain.

    One thread at a time may use it, and beside the user's function modes (`observe.aside`).
    """

    def __init__(self, *, reduce_once: bool = True) -> None:
        """Start empty.

        `reduce_once` takes elements whose storage, place and version were seen in this step as
        seen. Writes that autograd cannot see either (`.data`, numpy) need False.
        """
        self._once = reduce_once
        self._kernel = cpu.Kernel(Results())
        self._devices: dict[torch.device, Device] = {}
        self._streams: set[Any] = set()
        self._known: dict[Hashable, int] = {}
        self._held: set[int] = set()
        self._gradients: dict[int, tuple[weakref.ref[Tensor], int, int]] = {}
        self._scratch = host.Scratch()

    def see(self, t: Tensor, *, once: bool) -> Seen:
        """Reduce `t` unless it was reduced already, or say why not.

        `once` is the caller's word that the tensor may be looked up by its storage: an
        activation or a gradient, not a parameter or a buffer.
        """
        if type(t) in _PLAIN and _keys(t).raw_repr() in _DENSE and t.dtype in _ORDINARY:
            return self._taken(t, 0, once=once) if t.numel() else _seen((NONE, "empty", False))
        with torch._C.DisableTorchFunction(), modes_off():
            try:
                t, zeros, status = _measurable(t)
                if status == "ok":
                    return self._taken(t, zeros, once=once)
            except NotImplementedError:  # torch has no such operator for this kind of tensor
                status = "unsupported"
            return _seen((NONE, status, False))

    def _taken(self, t: Tensor, zeros: int, *, once: bool) -> Seen:
        if not once or not self._once or t.is_inference():
            return _seen((self._reduce(t, zeros), "ok", False))
        if _graph_task() != -1:
            return self._taken_in_backward(t, zeros)
        key = self._key(t, zeros)
        if (found := self._known.get(key)) is not None:
            return _seen((found, "ok", True))
        self._known[key] = result = self._reduce(t, zeros)
        return _seen((result, "ok", False))

    def _taken_in_backward(self, t: Tensor, zeros: int) -> Seen:
        """Look a gradient up by the tensor itself, which autograd hands from node to node.

        Asking a gradient for its storage would leave a Python object there, that counts as an
        owner: autograd would no longer add to that gradient in place.
        """
        known = self._gradients.get(id(t))
        if known is not None and known[0]() is t and known[1] == t._version:
            return _seen((known[2], "ok", True))
        result = self._reduce(t, zeros)
        if not self._gradients:  # torch does not swap tensors that are weakly referenced
            _engine.queue_callback(self._gradients.clear)
        self._gradients[id(t)] = (weakref.ref(t), t._version, result)
        return _seen((result, "ok", False))

    def _key(self, t: Tensor, zeros: int) -> Hashable:
        """Name the elements of a tensor: their storage, where they lie in it, and its version.

        A version belongs to a tensor and its views, not to the storage: that of `t.data` is
        another. While a weak reference to the storage is held, no other can have the same
        identity; an address alone would be reused within a step. The references are torch's own
        numbers, freed in `forget`: an object with a finaliser for each could swallow a Ctrl-C.
        Elements side by side are the same ones in whatever shape.
        """
        storage: Any = t.untyped_storage()  # torch's stubs do not know what it can do
        identity: int = storage._cdata
        if identity not in self._held:
            self._held.add(storage._weak_ref())
        base, dtype = t._base, t.dtype
        about = (identity, id(t if base is None else base), t._version, t.storage_offset(), dtype)
        if t.is_contiguous() and not dtype.is_complex:
            return (*about, t.numel(), t.is_neg(), zeros)
        return (*about, t.shape, t.stride(), t.is_conj(), t.is_neg(), zeros)

    def _reduce(self, t: Tensor, zeros: int) -> int:
        if not t.is_cpu:
            return self._on_device(t, zeros)
        row = self._kernel.reduce_plain(t) if type(t) in _PLAIN else NONE
        if row == NONE:
            with modes_off():
                row = self._kernel.results.put(host.summarize(t.detach(), self._scratch))
        if zeros:
            self._kernel.results.add_zeros(row, zeros)
        return row

    def _on_device(self, t: Tensor, zeros: int) -> int:
        t, stream = t.detach(), devices.stream(t)
        there = self._devices.setdefault(t.device, Device())
        self._streams.add(stream)
        row = self._kernel.results.reserve()
        if devices.runs_triton(t):
            rows, launched = there.launched.setdefault(stream, (gpu.Rows(t.device), []))
            if (done := rows.reduce(t)) is not None:
                place, repeats = done
                decode = functools.partial(gpu.decode, n=t.numel() // repeats, repeats=repeats)
                launched.append(Waiting(row, zeros, decode, [], place))
                return row
        words, repeats, kind = eager.summarize(t, float64=devices.has_float64(t))
        decode = functools.partial(eager.decode, repeats=repeats, kind=kind)
        there.eager.append(Waiting(row, zeros, decode, words))
        return row

    def forget(self) -> None:
        """Begin a new step: nothing counts as seen any more."""
        self._known.clear()
        self._gradients.clear()
        while self._held:
            torch.UntypedStorage._free_weak_ref(self._held.pop())

    def drain(self) -> tuple[Drained, list[str]]:
        """Bring everything to the host, waiting for devices, and start empty.

        Returns the results and, for results that a device lost, what it said.
        """
        return self.depart().land()

    def depart(self) -> Flight:
        """Send everything on its way to the host, one copy per device, and start empty."""
        there, self._devices = self._devices, {}
        streams, self._streams = self._streams, set()
        self.forget()
        if not there:
            return Flight(self._kernel.results.taken())
        flight, self._kernel = Flight(self._kernel.results), cpu.Kernel(Results())
        with torch._C.DisableTorchFunction(), modes_off():
            devices.join(streams)
            for device, waiting in there.items():
                flight.board(device, waiting)
        return flight


def _measurable(t: Tensor) -> tuple[Tensor, int, Status]:
    """Return a strided tensor with the elements of `t` and the number of zeros it leaves out.

    The status is "ok", or the reason why there is no such tensor.
    """
    t, status = bare(t)
    if status != "ok":
        return t, 0, status
    t, zeros = _strided(t.detach())
    return t, zeros, "ok" if t.layout == torch.strided and _has_arithmetic(t) else "unsupported"


def bare(t: Tensor) -> tuple[Tensor, Status]:
    """Return a tensor without the transforms and classes around it.

    The status is "ok", or the reason why it has no elements to read.
    """
    while torch._C._functorch.is_functorch_wrapped_tensor(t):
        if torch._C._functorch.is_batchedtensor(t):
            return t, "vmapped"
        t = torch._C._functorch.get_unwrapped(t)
    t, status = _without_class(t)
    return t, _obstacle(t) if status == "ok" else status


def _obstacle(t: Tensor) -> Status:
    """Return why a tensor, now unwrapped, has no elements to measure, "ok" if it has."""
    if _is_batched(t):
        return "vmapped"
    if t.device.type == "meta":
        return "meta"
    if t.numel() == 0:
        return "empty"
    if not devices.is_host(t) and devices.capturing():
        return "unsupported"
    return "private_format" if devices.private_format(t) else "ok"


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


def _without_class(t: Tensor) -> tuple[Tensor, Status]:
    """Return a tensor whose class does not see what is done with it.

    A class that takes operators itself (`__torch_dispatch__`) would see ours, and decide what
    comes out of them.
    """
    if type(t) in _PLAIN:
        return t, "ok"
    if isinstance(t, (FakeTensor, torch.nn.UninitializedParameter)):
        return t, "meta"
    if type(t).__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
        return torch.Tensor.detach(t), "ok"  # whatever the class makes of its own `detach`
    return t, "ok" if isinstance(t, NestedTensor) or devices.is_its_class(t) else "unsupported"


@contextlib.contextmanager
def modes_off() -> Iterator[None]:
    """Compute beside the user's dispatch modes and function transforms."""
    with contextlib.ExitStack() as stack:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            stack.enter_context(temporarily_clear_interpreter_stack())
        if torch._C._len_torch_dispatch_stack():
            stack.enter_context(_disable_current_modes())
        yield
