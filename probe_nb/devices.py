"""The only file that knows device names: what they are called and what they cannot do."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

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


def capturing() -> bool:
    """Tell whether operators are being recorded into a CUDA graph, where ours must not go."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def stream(t: Tensor) -> Any:
    """Return the stream on which work on `t` is being queued, None where there are no streams."""
    current = getattr(getattr(torch, t.device.type, None), "current_stream", None)
    return None if current is None else current(t.device)


def join(streams: Iterable[Any]) -> None:
    """Have the current stream of each device wait for these."""
    for each in streams:
        if each is not None:
            getattr(torch, each.device.type).current_stream(each.device).wait_stream(each)


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
