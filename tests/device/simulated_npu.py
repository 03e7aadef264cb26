"""An NPU made of Python: PyTorch's PrivateUse1 backend under the name `npu`.

Tensors of the device wrap CPU tensors, and one boxed fallback runs every operator on those. Like
an NPU it refuses float64, and it writes down every time that somebody waits for a value of the
device. It has autocast, warns of waits where it is asked to, and in saturation mode makes no
infinity and no NaN. Renaming the backend cannot be undone: import this in a process of its own.
"""

from __future__ import annotations

import contextlib
import sys
import types
import warnings

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_map

waits: list[str] = []
"""The operators that brought values of the device to the host, in order."""

saturation = False
"""Whether what overflows becomes the largest number of its type, and NaN becomes 0."""

_ANSWERS = (  # operators whose result, or the shape of it, cannot be known without waiting
    *("_local_scalar_dense", "item", "equal", "is_nonzero", "nonzero", "masked_select"),
    *("bincount", "_unique", "_unique2", "unique_dim", "unique_consecutive", "allclose"),
)


class RefusedError(TypeError):
    """The device has no such type."""


class Module(backend_registration._DummyBackendModule):
    """What `torch.npu` is: one device, whose random numbers are those of the CPU."""

    def __init__(self) -> None:
        self.initialized = True
        self.sync_debug_mode = 0

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        return 1

    def get_device_name(self, index: int = 0) -> str:
        assert self.initialized, "asking for the name would start the device"
        return "Simulated"

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None:
        torch.set_rng_state(state)

    def get_sync_debug_mode(self) -> int:
        return self.sync_debug_mode

    def set_sync_debug_mode(self, mode: int | str) -> None:
        modes = {"default": 0, "warn": 1, "error": 2}
        self.sync_debug_mode = modes[mode] if isinstance(mode, str) else mode

    def synchronize(self, device: object = None) -> None:
        """Have nothing to wait for: every operator is done when it returns."""


module = Module()


def waited(name: str) -> None:
    """Write down that the host waits, and say so in the words of torch, where that is asked for."""
    waits.append(name)
    if module.sync_debug_mode == 1:
        warnings.warn("called a synchronizing NPU operation", UserWarning, stacklevel=2)
    elif module.sync_debug_mode == 2:
        raise RuntimeError("called a synchronizing NPU operation")


backend_registration._setup_privateuseone_for_python_backend("npu", module)
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
        waited(name)
    came: dict[int, OnNpu] = {}

    def to_cpu(value):
        if isinstance(value, OnNpu):
            came[id(value.raw)] = value
        return torch.device("cpu") if isinstance(value, torch.device) else raw(value)

    def to_npu(value):
        if not isinstance(value, torch.Tensor):
            return value
        return came.get(id(value)) if id(value) in came else OnNpu(value)

    called = SUBSTITUTES.get(name, operator)
    out = called(*tree_map(to_cpu, args), **tree_map(to_cpu, kwargs))
    if saturation and not any(alias in name for alias in _MOVED):
        tree_map(saturate, out)
    return tree_map(to_npu, out)


_MOVED = ("view", "transpose", "permute", "as_strided", "expand", "detach", "slice", "alias")


def saturate(value):
    """Make of what was computed what an NPU in saturation mode makes of it."""
    if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
        largest = torch.finfo(value.dtype).max
        torch.nan_to_num_(value, nan=0.0, posinf=largest, neginf=-largest)


def _lstm_cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None):
    """One step of an LSTM: the device has its own, the CPU has none of this name."""
    biases = [b for b in (input_bias, hidden_bias) if b is not None]
    i, f, g, o = sum([hidden_gates, *biases], start=input_gates).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _lstm_cell_backward(grad_hy, grad_cy, cx, cy, *rest):
    workspace, has_bias = rest
    i, f, g, o = workspace.chunk(4, 1)
    tanh = cy.tanh()
    grad_hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    through = grad_hy * o * (1 - tanh * tanh) + (0 if grad_cy is None else grad_cy)
    gates = [through * g * i * (1 - i), through * cx * f * (1 - f)]
    gates += [through * i * (1 - g * g), grad_hy * tanh * o * (1 - o)]
    grad = torch.cat(gates, 1)
    return grad, through * f, grad.sum(0) if has_bias else torch.empty(0)


SUBSTITUTES = {
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "convolution_overrideable": torch.ops.aten.convolution,
    "convolution_backward_overrideable": lambda grad, x, weight, *rest: (
        torch.ops.aten.convolution_backward(grad, x, weight, [weight.shape[0]], *rest)
    ),
}
"""What the CPU calls otherwise than a device."""


def _to_copy(self, *, dtype=None, device=None, **_):
    copy = raw(self).to(dtype=dtype or self.dtype, copy=True)
    if device is None or torch.device(device).type == "npu":
        return OnNpu(copy)
    waited("_to_copy")
    return copy


pinned: set[int] = set()
"""Addresses of memory on the host into which the device copies on the side."""

under_way: list[tuple[torch.Tensor, torch.Tensor]] = []
"""Copies that the device has still to make, in order: what to write, and where to."""


class Event:
    """Tells when the device has come so far."""

    def record(self) -> None:
        """Stand behind all that is under way."""
        self.before = [place for place, _ in under_way]

    def query(self) -> bool:
        """Tell whether that has come, without waiting."""
        return not any(place is each for place in self.before for each, _ in under_way)

    def synchronize(self) -> None:
        """Wait for it."""
        if not self.query():
            waited("synchronize")
            arrive()


def arrive() -> None:
    """Let everything come that is under way."""
    with torch.inference_mode():
        while under_way:
            place, value = under_way.pop(0)
            place.copy_(value)


def _copy_(self, src, non_blocking=False):
    if non_blocking and not isinstance(self, OnNpu) and self.data_ptr() in pinned:
        under_way.append((self, raw(src).clone()))  # what is written to it later comes later
        return self
    if not isinstance(self, OnNpu):
        waited("copy_")
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


_NARROWED = ("linear", "conv2d", "matmul", "mm", "addmm", "bmm", "baddbmm", "addbmm")
_around = torch.library.Library("_", "IMPL")
_around.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")


def _narrowing(operator):
    """Return the operator as autocast calls it: with what is float32 in the narrow type."""

    def narrow(value):
        wide = isinstance(value, torch.Tensor) and value.dtype == torch.float32
        return value.to(torch.get_autocast_dtype("npu")) if wide else value

    def called(*args, **kwargs):
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return operator(*tree_map(narrow, args), **tree_map(narrow, kwargs))

    return called


_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
for _name in _NARROWED:
    _operator = getattr(torch.ops.aten, _name).default
    _aten.impl(_name, _narrowing(_operator), "AutocastPrivateUse1")


def fake_torch_npu(**answers) -> types.ModuleType:
    """Return what stands for the package torch_npu: the questions that are asked of it.

    `formats` maps shapes to layouts (ND where it does not say), `versions` parts to versions.
    """
    fake = types.ModuleType("torch_npu")
    fake.__version__ = answers.get("version", "2.13.0")
    formats, versions = answers.get("formats", {}), answers.get("versions", {})
    fake.get_npu_format = lambda t: formats.get(tuple(t.shape), 2)
    utils = types.SimpleNamespace(
        get_cann_version=lambda part="CANN": versions.get(part, ""),
        is_support_inf_nan=lambda: not saturation,
    )
    fake.npu = types.SimpleNamespace(utils=utils, is_initialized=module.is_initialized)
    return fake


@contextlib.contextmanager
def installed(fake: types.ModuleType):
    """Have a stand-in for torch_npu be imported inside the block."""
    sys.modules["torch_npu"] = fake
    try:
        yield
    finally:
        del sys.modules["torch_npu"]
