"""Statistics of a plain CPU tensor by compiled loops, where numba is installed.

Until they are ready, and wherever they cannot be, `host` serves: no caller waits.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import threading
from collections.abc import Callable
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe_nb.exponents import BINS
from probe_nb.stats.kernels import cpu_code
from probe_nb.stats.layout import compact, in_memory_order
from probe_nb.stats.numbers import Numbers
from probe_nb.terms import STATISTICS

MOST: Final = 1 << 32
"""A class of more elements could overflow the counters of the loops."""

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
_L2: Final = STATISTICS.index("l2")

Reduced = tuple[tuple[float, ...], tuple[int, ...], NDArray[np.uint16], NDArray[np.int64]]
"""Statistics and counts in the order of `terms`, the numbers of the filled bins, their counts."""


class _Scratch:
    """What one call works on, made once and used again: 24 KiB, laid out as in `cpu_loops`."""

    _COUNTS, _BINS = 64, 192
    _VALUES = _BINS + 8 * BINS
    _NUMBERS = _VALUES + 8 * BINS
    _END = _NUMBERS + 2 * BINS + 4 * 4 * BINS + 4 * 2048
    _LINE = 64

    def __init__(self, kind: _Kind) -> None:
        memory = np.zeros(self._END + 2 * self._LINE, np.uint8)
        memory = memory[-memory.ctypes.data % self._LINE :]
        self.pool = kind.pool
        self.found = memory[: 8 * len(STATISTICS)].view(np.float64)
        self.words = memory[self._COUNTS : self._BINS].view(np.int64)
        self.counts, self.given = self.words[:8], self.words.data[12:16]
        self.bins = memory[self._BINS : self._VALUES].view(np.int64)
        self.values = memory[self._VALUES : self._NUMBERS].view(np.int64)
        self.numbers = memory[self._NUMBERS :][: 2 * BINS].view(np.uint16)
        self.given[2], self.given[3] = kind.number, kind.largest
        address = memory.ctypes.data
        places = (address + self._END, address + self._END + 8, address)
        self.places = tuple(ctypes.c_void_p(place) for place in places)


class _Kind:
    """A type of elements: its number in the loops, the bits of its largest value in float32."""

    def __init__(self, number: int, largest: int, size: int) -> None:
        self.number, self.largest, self.size = number, largest, size
        # taken and given back by one operation each: safe among threads
        self.pool: list[_Scratch] = []


_KINDS: Final = {
    torch.float32: _Kind(0, 0x7F7FFFFF, 4),
    torch.float16: _Kind(1, 0x477FE000, 2),
    torch.bfloat16: _Kind(2, 0x7F7F0000, 2),
}

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
    for kind in _KINDS.values():
        kind.pool.clear()
    if _state == "warming":
        _state = "off"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def summarize(x: Tensor) -> Numbers | None:
    """Reduce a dense float32, float16 or bfloat16 tensor on the CPU; None if it is none.

    Cost: one read of each element; memory of one block. Other threads run meanwhile.
    """
    done = _measured(x)
    if done is None:
        return None
    scratch, repeats = done
    numbers = _numbers(scratch)
    scratch.pool.append(scratch)
    numbers.repeat(repeats)
    return numbers


def reduced(x: Tensor) -> Reduced | None:
    """Do as `summarize` does, for a tensor that will not be merged with others: 3 us less."""
    done = _measured(x)
    if done is None:
        return None
    scratch, repeats = done
    _, *counts, filled = scratch.counts.tolist()
    statistics = scratch.found.tolist()
    bins, values = scratch.numbers[:filled].copy(), scratch.values[:filled].copy()
    scratch.pool.append(scratch)
    if repeats > 1:
        counts = [count * repeats for count in counts]
        statistics[_L2] *= math.sqrt(repeats)
        values *= repeats
    return tuple(statistics), tuple(counts), bins, values


def _measured(x: Tensor) -> tuple[_Scratch, int] | None:
    """Return where the results lie, and how often they count."""
    entry, kind = _entry, _KINDS.get(x.dtype)
    if entry is None or kind is None or type(x) not in _PLAIN:
        return None
    if not x.is_cpu or x.layout != torch.strided or x.is_neg():
        return None
    flat, repeats = (x, 1) if x.is_contiguous() else _dense(x)
    if flat is None or (address := _address(flat, kind.size)) is None:
        return None
    try:
        scratch = kind.pool.pop()
    except IndexError:
        scratch = _Scratch(kind)
    scratch.given[0], scratch.given[1] = address, flat.numel()
    entry(*scratch.places)
    return scratch, repeats


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
    finite, nan, posinf, neginf, zero, subnormal, at_max, _ = scratch.counts.tolist()
    bins = scratch.bins.copy()
    if not finite:
        return Numbers(nan=nan, posinf=posinf, neginf=neginf, bins=bins)
    low, high, mean, std, _, _ = scratch.found.tolist()
    return Numbers(finite, low, high, mean, std, nan, posinf, neginf, zero, subnormal, at_max, bins)
