"""What a run says of its devices: names, drivers, versions, read without starting anything.

Only accelerators that the process has started are asked, and torch_npu if somebody imported it.
"""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import Any, Final

import torch

_NVIDIA_DRIVER: Final = Path("/proc/driver/nvidia/version")

SATURATES: Final = (
    "This NPU computes in saturation mode: what overflows becomes the largest number of its type, "
    "and what would be NaN becomes 0. No Inf or NaN is to be found; look at at_max_count instead."
)


def names() -> list[str]:
    """Return the accelerators that this process has started as people call them, or the CPU."""
    module = started()
    if module is None:
        return ["cpu"]
    found = kind()
    return [f"{found}:{i} {_name(module, i)}".strip() for i in range(module.device_count())]


def versions() -> dict[str, str]:
    """Return the version of torch, and of what drives its accelerator."""
    found = {"torch": str(torch.__version__)}
    for word in ("cuda", "hip"):
        built_for = getattr(torch.version, word, None)
        if built_for is not None:
            found[word] = str(built_for)
    return found | _nvidia_driver() | _npu_versions()


def notices() -> list[str]:
    """Return what must be known of the devices to read their numbers rightly."""
    return [SATURATES] if _npu_versions().get("npu_overflow") == "saturation" else []


def kind() -> str | None:
    """Return the kind of accelerator that torch is built or extended for; nothing is started."""
    try:
        found = torch.accelerator.current_accelerator()
    except RuntimeError:  # torch 2.6 raises where newer ones return None
        return None
    return None if found is None else found.type


def started() -> Any:
    """Return torch's module of the accelerator if this process has started it."""
    module = getattr(torch, kind() or "", None)
    is_started = getattr(module, "is_initialized", None)
    return module if is_started is not None and is_started() else None


def _name(module: Any, index: int) -> str:
    try:
        return str(module.get_device_name(index))
    except (AttributeError, RuntimeError):
        return ""


def _nvidia_driver() -> dict[str, str]:
    """Read the driver's version where it says so by itself: asking CUDA would start it."""
    if kind() != "cuda":
        return {}
    with contextlib.suppress(OSError):
        said = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", _NVIDIA_DRIVER.read_text())
        if said is not None:
            return {"cuda_driver": said[1]}
    return {}


def _npu_versions() -> dict[str, str]:
    npu = sys.modules.get("torch_npu")
    if npu is None:
        return {}
    tools = getattr(getattr(npu, "npu", None), "utils", None)
    found = {
        "torch_npu": getattr(npu, "__version__", None),
        "cann": _asked(tools, "get_cann_version", "CANN"),
        "npu_driver": _asked(tools, "get_cann_version", "DRIVER"),
    }
    if started() is not None:  # asking would start the device
        keeps = _asked(tools, "is_support_inf_nan")
        found["npu_overflow"] = {True: "Inf and NaN", False: "saturation"}.get(keeps)
    return {word: str(value) for word, value in found.items() if value not in (None, "")}


def _asked(tools: Any, question: str, *arguments: str) -> Any:
    """Return an answer of torch_npu, None where this version has none."""
    try:
        return getattr(tools, question)(*arguments)
    except Exception:  # what it raises depends on the version and on what else is installed
        return None
