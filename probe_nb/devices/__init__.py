"""The only room that knows device names: what they are called and what they cannot do."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import Tensor

from probe_nb.devices.choice import find, random_state, set_random_state, telling_waits, wait
from probe_nb.devices.made_with import SATURATES, names, notices, versions

__all__ = [
    "SATURATES",
    "Bytes",
    "Copy",
    "UnpinnedError",
    "capturing",
    "find",
    "has_float64",
    "is_host",
    "join",
    "names",
    "notices",
    "on",
    "private_format",
    "random_state",
    "runs_triton",
    "set_random_state",
    "stream",
    "telling_waits",
    "versions",
    "wait",
]

_PLAIN_FORMATS: Final = (-1, 0, 1, 2, 30)
"""Layouts of an NPU tensor whose elements lie as the strides say: undefined, NCHW, NHWC, ND, NCDHW.

Which of them a tensor has follows from its number of dimensions: 30 is every 5-D one.
Source: FormatHelper and InferFormat of torch_npu, where each is its own base format.
"""


def is_host(t: Tensor) -> bool:
    """Tell whether results computed from `t` can be read without waiting for a device."""
    return t.device.type == "cpu"


def has_float64(t: Tensor) -> bool:
    """Tell whether the device of `t` computes in float64: NPUs and Apple's GPUs do not."""
    return t.device.type not in ("npu", "mps")


def is_its_class(t: Tensor) -> bool:
    """Tell whether the class of `t` is what its device is made of: a backend written in Python."""
    return t.device.type == torch._C._get_privateuse1_backend_name()  # noqa: SLF001 - it has no other


def runs_triton(t: Tensor) -> bool:
    """Tell whether the device of `t` is of the kind that our Triton kernel was written for."""
    return t.device.type == "cuda"


def on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return a guard under which `device` is the current one of its kind."""
    module = getattr(torch, device.type)
    current = getattr(module, "current_device", None)
    if current is None or device.index in (None, current()):  # Apple's GPUs are never several
        return contextlib.nullcontext()
    guard: contextlib.AbstractContextManager[Any] = module.device(device)
    return guard


def capturing() -> bool:
    """Tell whether operators are being recorded into a graph, where ours must not go."""
    if torch.cuda.is_initialized():
        return torch.cuda.is_current_stream_capturing()
    npu: Any = getattr(sys.modules.get("torch_npu"), "npu", None)
    asked = getattr(npu, "is_current_stream_capturing", None)
    return asked is not None and npu.is_initialized() and bool(asked())


def stream(t: Tensor) -> Any:
    """Return the stream on which work on `t` is being queued, None where there are no streams."""
    current = getattr(getattr(torch, t.device.type, None), "current_stream", None)
    return None if current is None else current(t.device)


def join(streams: Iterable[Any]) -> None:
    """Have the current stream of each device wait for these."""
    for each in streams:
        if each is not None:
            getattr(torch, each.device.type).current_stream(each.device).wait_stream(each)


class Copy:
    """A copy of a tensor to the host that is under way, where its device can do so.

    It goes into pinned memory, and an event tells when it has come: nobody waits before `result`.
    """

    def __init__(self, t: Tensor) -> None:
        """Begin to copy; where that cannot be done on the side, copy and wait."""
        self._event: Any = None
        # as numpy sees it from now on: asking later could be seen by a mode of the user's
        self._host: NDArray[Any] = self._begun(t).numpy()

    def _begun(self, t: Tensor) -> Tensor:
        event = getattr(getattr(torch, t.device.type), "Event", None)
        if event is None or t.device.type == "cpu":
            return t.cpu()
        try:
            host = torch.empty(t.shape, dtype=t.dtype, device="cpu", pin_memory=True)
        except RuntimeError:  # the system has no such memory left, or none at all
            return t.cpu()
        with on(t.device):
            host.copy_(t, non_blocking=True)
            self._event = event()
            self._event.record()
        return host

    def is_done(self) -> bool:
        """Tell whether the copy has come."""
        return self._event is None or bool(self._event.query())

    def result(self) -> NDArray[Any]:
        """Return the copy, waiting for it."""
        if self._event is not None:
            self._event.synchronize()
        return self._host


class UnpinnedError(RuntimeError):
    """There is no memory on the host into which a device could copy on the side."""


class Bytes(Copy):
    """The elements of a tensor as they lie, row by row, in memory that nobody else writes.

    To be made in inference mode: what is copied has no history, and nobody's versions are counted
    up. Nobody waits for a device; where it could not copy on the side, `UnpinnedError` is raised.
    """

    def _begun(self, t: Tensor) -> Tensor:
        """Begin to copy, in the order of the current stream."""
        if is_host(t):
            return _flat(torch.empty(t.shape, dtype=t.dtype, device="cpu").copy_(t))
        kind = getattr(torch, t.device.type)
        try:
            event = kind.Event()
            host = torch.empty(t.shape, dtype=t.dtype, device="cpu", pin_memory=True)
        except (AttributeError, RuntimeError) as error:
            raise UnpinnedError(str(error)) from error
        with on(t.device):
            host.copy_(t, non_blocking=True)
            event.record()
        self._event = event
        return _flat(host)

    def result(self) -> NDArray[Any]:
        """Return the bytes, waiting for them; not in pinned memory, of which there is little."""
        found = super().result()
        return found if self._event is None else found.copy()


def _flat(t: Tensor) -> Tensor:
    return t.view(-1).view(torch.uint8)


def private_format(t: Tensor) -> bool:
    """Tell whether an NPU keeps `t` in a layout of its own (reducing it would convert it whole)."""
    npu = sys.modules.get("torch_npu")
    if npu is None or t.device.type != "npu":
        return False
    try:
        return int(npu.get_npu_format(t)) not in _PLAIN_FORMATS
    except (AttributeError, RuntimeError, TypeError):
        return False
