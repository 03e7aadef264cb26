"""An NPU made of Python: PyTorch's PrivateUse1 backend under the name `npu`.

Tensors of the device wrap CPU tensors, and one boxed fallback runs every operator on those. Like
an NPU it refuses float64, and it writes down every time that somebody waits for a value of the
device. Renaming the backend cannot be undone: import this in a process of its own.
"""

from __future__ import annotations

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_map

waits: list[str] = []
"""The operators that brought values of the device to the host, in order."""

_ANSWERS = (  # operators whose result, or the shape of it, cannot be known without waiting
    *("_local_scalar_dense", "item", "equal", "is_nonzero", "nonzero", "masked_select"),
    *("bincount", "_unique", "_unique2", "unique_dim", "unique_consecutive", "allclose"),
)


class RefusedError(TypeError):
    """The device has no such type."""


class Module(backend_registration._DummyBackendModule):
    """What `torch.npu` is."""

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def get_device_name(self, index: int = 0) -> str:
        return "Simulated"


backend_registration._setup_privateuseone_for_python_backend("npu", Module())
NPU = torch.device("npu", 0)


class OnNpu(torch.Tensor):
    """A tensor of the device; `raw` holds its elements."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw):
        if raw.dtype in (torch.float64, torch.complex128):
            raise RefusedError(f"an NPU has no {raw.dtype}")
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=NPU,
        )
        wrapper.raw = raw
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, *args, **(kwargs or {}))


def raw(value):
    """Return what lies behind a tensor of the device; anything else as it is."""
    return value.raw if isinstance(value, OnNpu) else value


def run(operator, *args, **kwargs):
    """Run one operator on the CPU; what was written in place is handed back as it came."""
    name = operator._schema.name.removeprefix("aten::")
    if name in MOVES:
        return MOVES[name](*args, **kwargs)
    masks = [a for a in args[1:2] if name == "index" for a in a if a is not None]
    if name in _ANSWERS or any(mask.dtype == torch.bool for mask in masks):
        waits.append(name)
    came: dict[int, OnNpu] = {}

    def to_cpu(value):
        if isinstance(value, OnNpu):
            came[id(value.raw)] = value
        return torch.device("cpu") if isinstance(value, torch.device) else raw(value)

    def to_npu(value):
        if not isinstance(value, torch.Tensor):
            return value
        return came.get(id(value)) if id(value) in came else OnNpu(value)

    out = operator(*tree_map(to_cpu, args), **tree_map(to_cpu, kwargs))
    return tree_map(to_npu, out)


def _to_copy(self, *, dtype=None, device=None, **_):
    copy = raw(self).to(dtype=dtype or self.dtype, copy=True)
    if device is None or torch.device(device).type == "npu":
        return OnNpu(copy)
    waits.append("_to_copy")
    return copy


def _copy_(self, src, non_blocking=False):
    if not isinstance(self, OnNpu):
        waits.append("copy_")
    raw(self).copy_(raw(src))
    return self


def _empty(size, *, dtype=None, **_):
    return OnNpu(torch.empty(size, dtype=dtype or torch.get_default_dtype(), device="cpu"))


def _empty_strided(size, stride, *, dtype=None, **_):
    dtype = dtype or torch.get_default_dtype()
    return OnNpu(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


MOVES = {"_to_copy": _to_copy, "copy_": _copy_}
_everything = torch.library.Library("_", "IMPL")
_everything.fallback(run, "PrivateUse1")
_aten = torch.library.Library("aten", "IMPL")
for _name, _function in {
    "_to_copy": _to_copy,
    "copy_": _copy_,
    "empty.memory_format": _empty,
    "empty_strided": _empty_strided,
}.items():
    _aten.impl(_name, _function, "PrivateUse1")
