"""Which strided tensor holds the elements of one that was seen, or why there is none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses import FakeTensor
from torch.nested._internal.nested_tensor import NestedTensor
from torch.utils._python_dispatch import _disable_current_modes

from probe_nb import devices
from probe_nb.terms import Status

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
_WHOLE: Final = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
"""Whole numbers that can be widened; types of less than a byte have no arithmetic in torch."""

_is_batched: Final = torch._C._functorch.is_legacy_batchedtensor
_COMPRESSED: Final = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def measurable(t: Tensor) -> tuple[Tensor, int, Status]:
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
