"""Statistics of a plain CPU tensor by compiled loops, where numba is installed.

Until they are ready, and wherever they cannot be, `host` serves: no caller waits.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from probe_nb.exponents import BINS
from probe_nb.stats.kernels import cpu_code
from probe_nb.stats.layout import compact, in_memory_order
from probe_nb.stats.numbers import Numbers

MOST: Final = 1 << 32
"""A class of more elements could overflow the counters of the loops."""

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)

_KINDS: Final = {
    torch.float32: (0, 0x7F7FFFFF, 4),
    torch.float16: (1, 0x477FE000, 2),
    torch.bfloat16: (2, 0x7F7F0000, 2),
}
"""The number of a type in the loops, the bits of its largest value in float32, and its size."""


class _Scratch:
    """What one call works on, made once and used again: 20 KiB, laid out as in `cpu_loops`."""

    _BINS, _END = 192, 192 + 8 * BINS + 4 * 4 * BINS + 4 * 2048
    _LINE = 64

    def __init__(self) -> None:
        memory = np.zeros(self._END + 2 * self._LINE, np.uint8)
        first = -memory.ctypes.data % self._LINE
        self.found = memory[first:][: 8 * 4].view(np.float64)
        self.counts = memory[first + self._LINE :][: 8 * 7].view(np.int64)
        self.bins = memory[first + self._BINS :][: 8 * BINS].view(np.int64)
        address = memory.ctypes.data + first
        self.place = ctypes.c_void_p(address)
        self.answers = (
            ctypes.c_void_p(address + self._END),
            ctypes.c_void_p(address + self._END + 8),
        )


_State = Literal["cold", "warming", "ready", "off"]
_state: _State = "cold"
_entry: Callable[..., int] | None = None
_pool: list[_Scratch] = []  # taken and given back by one operation each: safe among threads
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
        entry = cpu_code.entry()
    except Exception:
        _state = "off"
        return
    with _lock:
        if _state == "warming":
            _entry, _state = entry, "ready"


def _after_fork() -> None:
    """In a child: the warming thread is gone, and what it held may be locked for ever."""
    global _lock, _state  # noqa: PLW0603 - one kernel per process
    _lock = threading.Lock()
    _pool.clear()
    if _state == "warming":
        _state = "off"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def summarize(x: Tensor) -> Numbers | None:
    """Reduce a dense float32, float16 or bfloat16 tensor on the CPU; None if it is none.

    Cost: one read of each element; memory of one block. Other threads run meanwhile.
    """
    entry, kind = _entry, _KINDS.get(x.dtype)
    if entry is None or kind is None or type(x) not in _PLAIN:
        return None
    if not x.is_cpu or x.layout != torch.strided or x.is_neg():
        return None
    flat, repeats = (x, 1) if x.is_contiguous() else _dense(x)
    if flat is None or (address := _address(flat, kind[2])) is None:
        return None
    try:
        scratch = _pool.pop()
    except IndexError:
        scratch = _Scratch()
    entry(*scratch.answers, address, flat.numel(), kind[0], kind[1], scratch.place)
    numbers = _numbers(scratch)
    _pool.append(scratch)
    numbers.repeat(repeats)
    return numbers


def _dense(x: Tensor) -> tuple[Tensor | None, int]:
    unit, repeats = compact(x)
    return in_memory_order(unit), repeats


def _address(x: Tensor, size: int) -> int | None:
    """Return where the elements lie; None if they do not all lie there, or share their memory."""
    n = x.numel()
    if not 0 < n <= MOST or _is_shared(x):
        return None
    address, end = x.data_ptr(), (x.storage_offset() + n) * size
    return address if address % size == 0 and x.untyped_storage().nbytes() >= end else None


def _is_shared(x: Tensor) -> bool:
    """Tell whether `x` is a lazy copy: asking for its address would make it a real one."""
    return bool(torch._C._is_cow_tensor(x))  # type: ignore[attr-defined]


def _numbers(scratch: _Scratch) -> Numbers:
    finite, nan, posinf, neginf, zero, subnormal, at_max = scratch.counts.tolist()
    bins = scratch.bins.copy()
    if not finite:
        return Numbers(nan=nan, posinf=posinf, neginf=neginf, bins=bins)
    low, high, mean, spread = scratch.found.tolist()
    std = (spread / finite) ** 0.5
    return Numbers(finite, low, high, mean, std, nan, posinf, neginf, zero, subnormal, at_max, bins)
