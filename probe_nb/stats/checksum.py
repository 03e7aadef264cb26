"""Checksums over the bytes of a tensor, as they lie in memory, row after row.

`crc32` and the first part of `xor` are msProbe's. See docs/checksums.md.
"""

from __future__ import annotations

import ctypes
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from probe_nb import devices
from probe_nb.stats.layout import has_memory
from probe_nb.stats.measurable import bare, modes_off
from probe_nb.stats.summary import DENSE

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
_keys: Final = torch._C._dispatch_keys
_WORD: Final = 8
_READ: Final = 0x100
_memory: Final = ctypes.pythonapi.PyMemoryView_FromMemory
_memory.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_memory.restype = ctypes.py_object
_COMPRESSED: Final[dict[Any, tuple[str, str]]] = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def crc32(t: Tensor) -> str | None:
    """Return the CRC-32 of all bytes as 8 hexadecimal digits; None where there are no bytes."""
    return _summed(t, _crc32)


def xor(t: Tensor) -> str | None:
    """Return all words of 8 bytes combined by exclusive or, a colon, and the CRC-32.

    The last word is filled up with zeros. Of a tensor without dimensions the first part is its
    value, as JSON.
    """
    return _summed(t, _xor)


SUMS: Final[dict[str, Callable[[Tensor], str | None]]] = {"crc32": crc32, "xor": xor}
"""What `checksum=` chooses among."""


def _summed(t: Tensor, of: Callable[[list[Tensor]], str | None]) -> str | None:
    if type(t) in _PLAIN and _keys(t).raw_repr() in DENSE and t.is_contiguous():
        return of([t]) if not t.numel() or has_memory(t, t.numel()) else None
    with torch._C.DisableTorchFunction(), modes_off(), torch._C._InferenceMode(True):
        t, status = bare(t)
        if status not in ("ok", "empty"):
            return None
        try:
            parts = [_on_host(part) for part in _parts(t)]
            there = all(has_memory(part, part.numel()) for part in parts if part.numel())
            return of(parts) if there else None
        except NotImplementedError:  # torch cannot copy this type
            return None


def _parts(t: Tensor) -> Iterator[Tensor]:
    """Yield the strided tensors that a tensor is made of."""
    if t.is_nested:
        yield from (t.values(),) if t.layout == torch.jagged else t.unbind()
    elif t.layout == torch.sparse_coo:
        whole = t.coalesce()
        yield from (whole.indices(), whole.values())
    elif t.layout in _COMPRESSED:
        yield from (getattr(t, name)() for name in _COMPRESSED[t.layout])
        yield t.values()
    else:
        yield t.int_repr() if t.is_quantized else t


def _on_host(t: Tensor) -> Tensor:
    """Return the elements one after the other; a device is waited for."""
    if devices.is_host(t) and t.is_contiguous() and not (t.is_conj() or t.is_neg()):
        return t
    return torch.empty(t.shape, dtype=t.dtype, device="cpu").copy_(t)


def _bytes(t: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor, to be read as long as it lives."""
    if not t.numel():
        return memoryview(b"")
    found: memoryview = _memory(t.data_ptr(), t.numel() * t.element_size(), _READ)
    return found


def _crc32(parts: list[Tensor]) -> str:
    found = 0
    for part in parts:
        found = zlib.crc32(_bytes(part), found)
    return f"{found:08x}"


def _xor(parts: list[Tensor]) -> str | None:
    if not any(part.numel() for part in parts):
        return None
    first = _value(parts[0]) if len(parts) == 1 and not parts[0].dim() else _words(parts)
    return f"{first}:{_crc32(parts)}"


def _words(parts: list[Tensor]) -> str:
    found = 0
    for part in parts:
        data = _bytes(part)
        whole = len(data) // _WORD
        found ^= int(np.bitwise_xor.reduce(np.frombuffer(data, "<u8", whole))) if whole else 0
        found ^= int.from_bytes(data[whole * _WORD :], "little")
    return f"0x{found:016x}"


def _value(t: Tensor) -> str:
    value: Any = t.item()
    if isinstance(value, int):  # a bool is one
        return f"0x{value & (2**64 - 1):016x}"
    return json.dumps(value) if isinstance(value, float) else _words([t])
