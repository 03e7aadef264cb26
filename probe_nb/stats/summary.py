"""What becomes of a tensor that was seen: reduced, found already reduced, or refused with a reason.

Results wait here until the drain, on the device where they were computed.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from probe_nb import devices
from probe_nb.devices import communication
from probe_nb.stats.kernels import cpu, eager, gpu, host
from probe_nb.stats.measurable import measurable, modes_off
from probe_nb.stats.results import Drained, Results
from probe_nb.stats.waiting import Device, Flight, Waiting
from probe_nb.terms import Status

NONE: Final = -1
"""In place of a result: nothing was computed."""

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
_ORDINARY: Final = frozenset(
    {
        *(torch.float32, torch.bfloat16, torch.float16, torch.float64),
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    }
)
"""Types about which nothing needs a second look: those of a plain CPU tensor are most often."""

_keys: Final = torch._C._dispatch_keys
_Key: Final = torch._C.DispatchKey
_TRACKED, _UNTRACKED = DENSE = tuple(
    functools.reduce(operator.or_, map(torch._C.DispatchKeySet, keys)).raw_repr()
    for keys in (
        (_Key.CPU, _Key.AutocastCPU, _Key.AutogradCPU, _Key.ADInplaceOrView),
        (_Key.CPU, _Key.AutocastCPU),  # of inference mode: it has no version
    )
)
"""Where torch looks for the operators of a dense CPU tensor, as a number.

A tensor of another kind (on another device, sparse, nested, wrapped by a transform, negated)
has others, so that one question tells it apart from all of them.
"""

_engine: Final[Any] = torch.autograd.Variable._execution_engine
_graph_task: Final = torch._C._current_graph_task_id
_groups: Final = communication.groups


class Seen(NamedTuple):
    """What `Reducer.see` says of one tensor."""

    result: int
    status: Status
    reused: bool


_seen: Final = functools.partial(tuple.__new__, Seen)
"""Makes one in half the time."""


def _fresh(result: int) -> Seen:
    """Return what is said of a tensor that was reduced now, unless it has no element."""
    return _seen((result, "ok" if result != NONE else "empty", False))


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
        self._begun: int | None = 0
        self._scratch = host.Scratch()

    def see(self, t: Tensor, *, once: bool) -> Seen:
        """Reduce `t` unless it was reduced already, or say why not.

        `once` is the caller's word that the tensor may be looked up by its storage: an
        activation or a gradient, not a parameter or a buffer.
        """
        plain = type(t) in _PLAIN and t.dtype in _ORDINARY
        if plain and (keys := _keys(t).raw_repr()) in DENSE:
            return self._taken(t, 0, self._reduce_dense, once=once and keys == _TRACKED)
        with torch._C.DisableTorchFunction(), modes_off():
            try:
                t, zeros, status = measurable(t)
                if status == "ok":
                    once = once and not t.is_inference()
                    return self._taken(t, zeros, self._reduce, once=once)
            except NotImplementedError:  # torch has no such operator for this kind of tensor
                status = "unsupported"
            return _seen((NONE, status, False))

    def _taken(
        self, t: Tensor, zeros: int, reduce: Callable[[Tensor, int], int], *, once: bool
    ) -> Seen:
        if not once or not self._once:
            return _fresh(reduce(t, zeros))
        if _graph_task() != -1:
            return self._taken_in_backward(t, zeros, reduce)
        key = self._key(t, zeros)
        if (found := self._known.get(key, NONE)) != NONE and (
            (not _groups and self._begun == 0) or self._unwritten()
        ):
            return _seen((found, "ok", True))
        self._known[key] = result = reduce(t, zeros)
        return _fresh(result)

    def _taken_in_backward(
        self, t: Tensor, zeros: int, reduce: Callable[[Tensor, int], int]
    ) -> Seen:
        """Look a gradient up by the tensor itself, which autograd hands from node to node.

        Asking a gradient for its storage would leave a Python object there, that counts as an
        owner: autograd would no longer add to that gradient in place.
        """
        known, version = self._gradients.get(id(t)), t._version
        if known is not None and known[0]() is t and known[1] == version and self._unwritten():
            return _seen((known[2], "ok", True))
        if (result := reduce(t, zeros)) != NONE:
            if not self._gradients:  # torch does not swap tensors that are weakly referenced
                _engine.queue_callback(self._gradients.clear)
            self._gradients[id(t)] = (weakref.ref(t), version, result)
        return _fresh(result)

    def _unwritten(self) -> bool:
        """Tell whether no collective has run since; else nothing counts as seen any more."""
        begun = communication.begun()
        if begun == self._begun is not None:
            return True
        self._begun = begun
        self._known.clear()
        self._gradients.clear()
        return False

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

    def _reduce_dense(self, t: Tensor, zeros: int) -> int:
        row = self._kernel.reduce_plain(t)
        return row if row != NONE else self._reduce(t, zeros)

    def _reduce(self, t: Tensor, zeros: int) -> int:
        """Return the number of the result; there is none where there is no element."""
        if not (t.numel() or zeros):
            return NONE
        if not t.is_cpu:
            return self._on_device(t, zeros)
        row = self._kernel.reduce(t)
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
