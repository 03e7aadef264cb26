"""Statistics of a CUDA tensor by one launch of a Triton kernel, where Triton can be had.

Rows of words wait in memory of the device that is taken once: per tensor nothing is allocated,
copied or waited for. What the kernel does not serve, `eager` does.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe_nb import devices
from probe_nb.exponents import BINS
from probe_nb.stats.kernels import making
from probe_nb.stats.layout import compact, has_memory, in_memory_order
from probe_nb.stats.numbers import Numbers

ROWS: Final = 256
"""Rows that are taken at once: less than a mebibyte."""

MOST: Final = 1 << 31
"""From so many elements on the counters of the kernel could overflow."""

_LARGEST_AND_TINY: Final = {
    torch.float32: (0x7F7FFFFF, 0x00800000),
    torch.float16: (0x477FE000, 0x38800000),
    torch.bfloat16: (0x7F7F0000, 0x00800000),
    torch.int8: (0, 0),
    torch.uint8: (0, 0),
    torch.int16: (0, 0),
    torch.bool: (0, 0),
}
"""What is served, and the bits of the largest and the smallest normal number in float32."""

_State = Literal["warming", "ready", "off"]
_states: dict[torch.dtype, _State] = {}
_lock = threading.Lock()


def serves(t: Tensor) -> bool:
    """Tell whether the kernel is ready for tensors of this type; the first time, begin to make it.

    Compiling takes seconds: a thread does it, and meanwhile the caller goes on without.
    """
    state = _states.get(t.dtype)
    if state is None and t.dtype in _LARGEST_AND_TINY:
        with _lock:
            if t.dtype in _states:
                return False
            _states[t.dtype] = "warming"
        work = functools.partial(_make, t.dtype, t.device)
        if making.begin(work, stop=lambda: None) is None:
            _states[t.dtype] = "off"
    return state == "ready"


def _make(dtype: torch.dtype, device: torch.device) -> None:
    """Compile the kernel for one type of elements, or give it up, whatever the reason."""
    try:
        from probe_nb.stats.kernels import gpu_code

        kind = torch.int16 if dtype == torch.bfloat16 else dtype
        with devices.on(device):
            gpu_code.summarize.warmup(kind, torch.int32, 1, 1, 1, grid=(1,), **_options(dtype))
        _states[dtype] = "ready"
    except Exception:  # Triton is not there, or does not know this device
        _states[dtype] = "off"


def _options(dtype: torch.dtype) -> dict[str, Any]:
    from probe_nb.stats.kernels import gpu_code

    return {"block": gpu_code.BLOCK, "bfloat16": dtype == torch.bfloat16}


class Rows:
    """Rows on one device and stream that the kernel fills, one per tensor."""

    def __init__(self, device: torch.device) -> None:
        """Take no memory yet."""
        self._device = device
        self._full: list[Tensor] = []
        self._open: Tensor | None = None
        self._used = 0

    def reduce(self, x: Tensor) -> tuple[int, int] | None:
        """Reduce a tensor of this device; return its row and how often its elements count.

        Returns None for a tensor that the kernel does not serve.
        Cost: one launch; one read of each element.
        """
        if not serves(x) or x.is_neg():
            return None
        unit, repeats = compact(x)
        flat = in_memory_order(unit)
        if flat is None or not 0 < flat.numel() < MOST or not has_memory(flat, flat.numel()):
            return None
        place, row = self._next()
        try:
            _launch(flat, row)
        except Exception:  # a launch that fails has done nothing; the row stays empty
            _states[x.dtype] = "off"
            return None
        return place, repeats

    def _next(self) -> tuple[int, Tensor]:
        """Take the next row: before the launch, so that an interrupt cannot give it out twice."""
        if self._open is None or self._used == ROWS:
            if self._open is not None:
                self._full.append(self._open)
            self._open = torch.zeros(ROWS, words(), dtype=torch.int32, device=self._device)
            self._used = 0
        self._used += 1
        return ROWS * len(self._full) + self._used - 1, self._open[self._used - 1]

    def taken(self) -> list[Tensor]:
        """Return the filled rows, still on the device, and start empty, with new memory."""
        filled = [] if self._open is None else [*self._full, self._open[: self._used]]
        self._full, self._open, self._used = [], None, 0
        return filled


def words() -> int:
    """Return the number of words of a row."""
    from probe_nb.stats.kernels import gpu_code

    return gpu_code.WORDS


def _launch(flat: Tensor, row: Tensor) -> None:
    from probe_nb.stats.kernels import gpu_code

    n, dtype = flat.numel(), flat.dtype
    programs = min(gpu_code.PROGRAMS, -(-n // gpu_code.BLOCK))
    kernel: Callable[..., None] = gpu_code.summarize[(programs,)]
    with devices.on(flat.device):
        elements = flat.view(torch.int16) if dtype == torch.bfloat16 else flat
        kernel(elements, row, n, *_LARGEST_AND_TINY[dtype], **_options(dtype))


def decode(row: NDArray[np.int32], n: int, repeats: int) -> Numbers:
    """Turn a row, now on the host, into the numbers of the `n` elements it was made from."""
    from probe_nb.stats.kernels import gpu_code as code

    _, nan, posinf, neginf, zero, pos_zero, tiny, at_max = row[BINS : BINS + 8].tolist()
    out = Numbers(nan=nan, posinf=posinf, neginf=neginf, zero=zero, subnormal=tiny, at_max=at_max)
    for program in range(min(code.PROGRAMS, -(-n // code.BLOCK))):
        part = row[BINS + 8 + code.PART * program :][: code.PART].copy()
        low, high = part[code.LOW : code.COUNT].view(np.float32).astype(float).tolist()
        mean, spread = part[code.MEAN :].view(np.float64).tolist()
        count = int(part[code.COUNT])
        if count:
            std = math.sqrt(max(spread, 0.0) / count)
            out.merge(Numbers(count, low, high, mean, std))
    out.bins = row[:BINS].astype(np.int64)
    out.bins[0] -= pos_zero
    out.bins[BINS // 2] -= zero - pos_zero
    out.repeat(repeats)
    return out
