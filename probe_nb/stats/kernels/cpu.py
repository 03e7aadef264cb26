"""Statistics of a plain CPU tensor by compiled loops, where numba is installed.

Until they are ready, and wherever they cannot be, `host` serves: no caller waits.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from probe_nb.stats.kernels import cpu_code, making
from probe_nb.stats.kernels import cpu_places as places
from probe_nb.stats.layout import has_memory, runs
from probe_nb.stats.results import ROWS, WORDS, Chunk, Results

MOST: Final = 1 << 32
"""A class of more elements could overflow the counters of the loops."""

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
_ROW: Final = 8 * WORDS


class _Kind(NamedTuple):
    """A type of elements, as the loops know it.

    `largest` are the bits of its largest number in float32, and `subnormal` how many of the
    lowest exponents of float32 belong to its subnormal numbers.
    """

    number: int
    largest: int = 0x7F800000  # infinite: no finite element is at the end of the range
    subnormal: int = 0


_KINDS: Final = {
    torch.float32: _Kind(places.FLOAT32, 0x7F7FFFFF, 1),
    torch.float16: _Kind(places.FLOAT16, 0x477FE000, 113),
    torch.bfloat16: _Kind(places.BFLOAT16, 0x7F7F0000, 1),
    torch.float8_e4m3fn: _Kind(places.BYTE, 0x43E00000, 121),
    torch.float8_e4m3fnuz: _Kind(places.BYTE, 0x43700000, 120),
    torch.float8_e5m2: _Kind(places.BYTE, 0x47600000, 113),
    torch.float8_e5m2fnuz: _Kind(places.BYTE, 0x47600000, 112),
    torch.bool: _Kind(places.BYTE),
    torch.int8: _Kind(places.BYTE),
    torch.uint8: _Kind(places.BYTE),
    torch.int16: _Kind(places.INT16),
    torch.uint16: _Kind(places.UINT16),
    torch.int32: _Kind(places.INT32),
    torch.uint32: _Kind(places.UINT32),
    torch.int64: _Kind(places.INT64),
    torch.float64: _Kind(places.FLOAT64),
}


class _Scratch:
    """What one call works on, made once and used again: 45 KiB, laid out as in `cpu_places`."""

    _LINE: Final = 64

    def __init__(self, dtype: torch.dtype, kind: _Kind) -> None:
        memory = np.zeros(places.SCRATCH + 2 * self._LINE, np.uint8)
        self._memory = memory = memory[-memory.ctypes.data % self._LINE :]
        words = memory[places.COUNTS : places.BINS].view(np.int64).data
        words[places.KIND], words[places.LARGEST] = kind.number, kind.largest
        words[places.BELOW], words[places.ITEM] = kind.subnormal, dtype.itemsize
        if kind.number == places.BYTE:
            self._table = _values_of_bytes(dtype)
            words[places.TABLE] = self._table.data_ptr()
        self.size = dtype.itemsize
        self.given = words[places.ADDRESS : places.KIND]
        self.target = words[places.TARGET : places.TARGET + 1]
        self.sizes = words[places.SIZES : places.STRIDES]
        self.strides = words[places.STRIDES : places.STRIDES + places.DIMENSIONS]
        self.chunk: Chunk | None = None
        address = memory.ctypes.data
        ends = (address + places.SCRATCH, address + places.SCRATCH + 8, address)
        self.places = tuple(ctypes.c_void_p(place) for place in ends)


def _values_of_bytes(dtype: torch.dtype) -> Tensor:
    """Return the number that each byte stands for, in float32."""
    each = torch.arange(256, dtype=torch.uint8, device="cpu")
    return (each != 0 if dtype == torch.bool else each.view(dtype)).to(torch.float32)


_give: Final = struct.Struct("5q").pack_into
"""Writes what changes from tensor to tensor, in the order of `cpu_places`."""

_State = Literal["cold", "warming", "ready", "off"]
_state: _State = "cold"
_entry: Callable[..., int] | None = None
_lock = threading.Lock()


def ready() -> bool:
    """Tell whether `summarize` serves."""
    return _entry is not None


def kernel_name() -> str:
    """Return what reduces plain CPU tensors now: "numba" or "torch"."""
    return "torch" if _entry is None else "numba"


def warm() -> threading.Thread | None:
    """Make the kernel ready in the background; return the thread that does it, if one does.

    Cost: 0.1 s of work where it was compiled before; else a process of its own works for some
    seconds. Never raises.
    """
    global _state  # noqa: PLW0603 - one kernel per process
    with _lock:
        if _state != "cold":
            return None
        _state = "warming"
    thread = making.begin(_warm, _stop)
    if thread is None:
        _state = "off"
    return thread


def disable() -> None:
    """Leave everything to the torch kernel, in this process and for good."""
    global _entry, _state
    with _lock:
        _entry, _state = None, "off"


def _stop() -> None:
    disable()
    cpu_code.give_up()


def _warm() -> None:
    global _entry, _state  # noqa: PLW0603 - one kernel per process
    try:
        code = cpu_code.found()
        with _lock:
            if _state == "warming":
                _entry, _state = cpu_code.linked(code), "ready"
    except Exception:
        _state = "off"


def _after_fork() -> None:
    """In a child: the warming thread is gone, and what it held may be locked for ever."""
    global _lock, _state  # noqa: PLW0603 - one kernel per process
    _lock = threading.Lock()
    cpu_code.forget()
    if _state == "warming":
        _state = "off"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Kernel:
    """Reduces strided tensors on the CPU, but complex ones, into rows of results.

    One thread at a time may use it; other threads run meanwhile.
    Cost: one read of each element, two of float64 and large integers; no memory.
    """

    def __init__(self, results: Results) -> None:
        """Write into `results`."""
        self.results = results
        self._scratch: dict[torch.dtype, _Scratch] = {}

    def reduce(self, x: Tensor) -> int:
        """Reduce a tensor and return the number of its row, or -1 if it is not of the kind."""
        if type(x) not in _PLAIN or not x.is_cpu or x.layout is not torch.strided or x.is_neg():
            return -1
        return self.reduce_plain(x)

    def reduce_plain(self, x: Tensor) -> int:
        """Do as `reduce` does, for what is known to be dense, on the CPU and not negated."""
        entry, scratch = _entry, self._scratch.get(x.dtype)
        if entry is None or (scratch is None and (scratch := self._made(x.dtype)) is None):
            return -1
        n = end = x.numel()
        dims, repeats = 0, 1
        if not x.is_contiguous():
            n, end, dims, repeats = _lay(x, scratch)
        # a lazy copy has no memory of its own: asking for its address would make it a real one
        if not 0 < n <= MOST or _is_lazy(x):
            return -1
        address = x.data_ptr()
        if not address or address % scratch.size:
            return -1
        if _graph_task() == -1 and not has_memory(x, end):
            return -1
        chunk = self.results.chunk
        if (place := chunk.used) == ROWS:
            chunk, place = self.results.room(), 0
        if scratch.chunk is not chunk:
            scratch.chunk, scratch.target[0] = chunk, chunk.head
        _give(scratch.given, 0, address, n, repeats, chunk.first + _ROW * place, dims)
        entry(*scratch.places)
        chunk.used = place + 1  # an interrupt before this line leaves the row to the next tensor
        return chunk.before + place

    def _made(self, dtype: torch.dtype) -> _Scratch | None:
        kind = _KINDS.get(dtype)
        if kind is not None:
            self._scratch[dtype] = _Scratch(dtype, kind)
        return self._scratch.get(dtype)


def _lay(x: Tensor, scratch: _Scratch) -> tuple[int, int, int, int]:
    """Write down where the elements of a tensor lie that are not in the order of its dimensions.

    Returns how many there are, where the last one ends, in how many dimensions they lie, and how
    often they are repeated; none of the first where they lie in too many.
    """
    gaps, n, repeats = runs(x.shape, x.stride())
    if not gaps:
        return n, n, 0, repeats
    if len(gaps) > places.DIMENSIONS:
        return 0, 0, 0, 1
    for dim, (size, stride) in enumerate(gaps):
        scratch.sizes[dim], scratch.strides[dim] = size, stride * scratch.size
    return n, 1 + sum((size - 1) * stride for size, stride in gaps), len(gaps), repeats


_graph_task: Final = torch._C._current_graph_task_id
_is_lazy: Final[Callable[[Tensor], bool]] = torch._C._is_cow_tensor  # type: ignore[attr-defined]
