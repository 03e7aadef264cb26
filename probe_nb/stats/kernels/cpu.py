"""Statistics of a plain CPU tensor by compiled loops, where numba is installed.

Until they are ready, and wherever they cannot be, `host` serves: no caller waits.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import struct
import threading
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from probe_nb.exponents import BINS
from probe_nb.stats.kernels import cpu_code
from probe_nb.stats.layout import compact, in_memory_order
from probe_nb.stats.results import ROWS, WORDS, Chunk, Results

MOST: Final = 1 << 32
"""A class of more elements could overflow the counters of the loops."""

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


class _Kind(NamedTuple):
    """A type of elements: its number in the loops, the bits of its largest value, its size."""

    number: int
    largest: int
    size: int


_KINDS: Final = {
    torch.float32: _Kind(0, 0x7F7FFFFF, 4),
    torch.float16: _Kind(1, 0x477FE000, 2),
    torch.bfloat16: _Kind(2, 0x7F7F0000, 2),
}


class _Scratch:
    """What one call works on, made once and used again: 20 KiB, laid out as in `cpu_loops`."""

    _COUNTS, _BINS, _LINE = 64, 256, 64
    _END = _BINS + 8 * BINS + 4 * 4 * BINS + 4 * 2048
    _GIVEN, _KIND, _LARGEST, _TARGET = 12, 16, 17, 18

    def __init__(self, kind: _Kind) -> None:
        memory = np.zeros(self._END + 2 * self._LINE, np.uint8)
        self._memory = memory = memory[-memory.ctypes.data % self._LINE :]
        words = memory[self._COUNTS : self._BINS].view(np.int64).data
        words[self._KIND], words[self._LARGEST] = kind.number, kind.largest
        self.size = kind.size
        self.given = words[self._GIVEN : self._KIND]
        self.target = words[self._TARGET : self._TARGET + 1]
        self.chunk: Chunk | None = None
        address = memory.ctypes.data
        places = (address + self._END, address + self._END + 8, address)
        self.places = tuple(ctypes.c_void_p(place) for place in places)


_give: Final = struct.Struct("4q").pack_into
"""Writes the address of the elements, their number, their repetitions and the address of a row."""

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
    atexit.register(disable)
    thread = threading.Thread(target=_warm, name="probe_nb-kernel", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads, or the interpreter is about to end
        _state = "off"
        return None
    return thread


def disable() -> None:
    """Leave everything to the torch kernel, in this process and for good."""
    global _entry, _state
    with _lock:
        _entry, _state = None, "off"


def _warm() -> None:
    global _entry, _state  # noqa: PLW0603 - one kernel per process
    try:
        code = cpu_code.found()
        with _lock:  # the interpreter does not end meanwhile
            if _state == "warming":
                _entry, _state = cpu_code.linked(code), "ready"
    except Exception:
        _state = "off"


def _after_fork() -> None:
    """In a child: the warming thread is gone, and what it held may be locked for ever."""
    global _lock, _state  # noqa: PLW0603 - one kernel per process
    _lock = threading.Lock()
    if _state == "warming":
        _state = "off"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Kernel:
    """Reduces dense float32, float16 and bfloat16 tensors on the CPU into rows of results.

    One thread at a time may use it; other threads run meanwhile.
    Cost: one read of each element; memory of one block.
    """

    def __init__(self, results: Results) -> None:
        """Write into `results`."""
        self._results = results
        self._scratch: dict[torch.dtype, _Scratch] = {}

    def reduce(self, x: Tensor) -> int:
        """Reduce a tensor and return the number of its row, or -1 if it is not of the kind."""
        entry, scratch = _entry, self._scratch.get(x.dtype)
        if entry is None or (scratch is None and (scratch := self._made(x.dtype)) is None):
            return -1
        if type(x) not in _PLAIN or not x.is_cpu or x.layout != torch.strided or x.is_neg():
            return -1
        if x.is_contiguous():
            return self._run(entry, scratch, x, 1)
        unit, repeats = compact(x.detach())
        flat = in_memory_order(unit)
        return -1 if flat is None else self._run(entry, scratch, flat, repeats)

    def _made(self, dtype: torch.dtype) -> _Scratch | None:
        kind = _KINDS.get(dtype)
        if kind is not None:
            self._scratch[dtype] = _Scratch(kind)
        return self._scratch.get(dtype)

    def _run(
        self,
        entry: Callable[..., int],
        scratch: _Scratch,
        x: Tensor,
        repeats: int,
    ) -> int:
        """Run the loops over the elements of `x`, if all of them are where they should be."""
        n = x.numel()
        if not 0 < n <= MOST or _is_shared(x):
            return -1
        address, size = x.data_ptr(), scratch.size
        if address % size or x.untyped_storage().nbytes() < (x.storage_offset() + n) * size:
            return -1
        results = self._results
        chunk = results.chunk if results.chunk.used < ROWS else results.room()
        if scratch.chunk is not chunk:
            scratch.chunk, scratch.target[0] = chunk, chunk.head
        _give(scratch.given, 0, address, n, repeats, chunk.first + 8 * WORDS * chunk.used)
        entry(*scratch.places)
        chunk.used += 1  # an interrupt before this line leaves the row to the next tensor
        return len(results) - 1


_is_shared: Final[Callable[[Tensor], bool]] = torch._C._is_cow_tensor  # type: ignore[attr-defined]
"""Tells of a lazy copy: asking for its address would make it a real one."""
