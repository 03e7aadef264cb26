"""The only file that knows device names: what they are called and what they cannot do."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

_ND_FORMATS = (-1, 0, 2)
"""Layouts of an NPU tensor in which elements lie as the strides say: undefined, NCHW, ND."""


def is_host(t: Tensor) -> bool:
    """Tell whether results computed from `t` can be read without waiting for a device."""
    return t.device.type == "cpu"


def has_float64(t: Tensor) -> bool:
    """Tell whether the device of `t` computes in float64: NPUs and Apple's GPUs do not."""
    return t.device.type not in ("npu", "mps")


def private_format(t: Tensor) -> bool:
    """Tell whether an NPU keeps `t` in a layout of its own (reducing it would convert it whole)."""
    npu = sys.modules.get("torch_npu")
    if npu is None or t.device.type != "npu":
        return False
    try:
        return int(npu.get_npu_format(t)) not in _ND_FORMATS
    except (AttributeError, RuntimeError, TypeError):
        return False


def names() -> list[str]:
    """Return the accelerators of this process as people call them, or the CPU."""
    found = []
    for kind in ("cuda", "npu", "xpu"):
        module = getattr(torch, kind, None)
        available = getattr(module, "is_available", None)
        if available is None or not available():
            continue
        count = module.device_count() if module is not None else 0
        named = getattr(module, "is_initialized", bool)()  # asking would start the device
        found += [f"{kind}:{i} {_name(module, i) if named else ''}".strip() for i in range(count)]
    return found or ["cpu"]


def _name(module: object, index: int) -> str:
    try:
        return str(module.get_device_name(index))  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):
        return ""
