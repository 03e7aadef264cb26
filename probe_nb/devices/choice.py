"""Finding a device that is there, and what who uses it can ask of it whatever its kind."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from probe_nb.devices.made_with import kind
from probe_nb.errors import DeviceError


def find(asked: str | torch.device | None = None) -> torch.device:
    """Return a device that is there, by default the accelerator, or the CPU if there is none.

    Raises:
        DeviceError: It is not there, or there is no such device; the message says what is.
    """
    if asked is None:
        found = kind()
        return _indexed(
            torch.device(found if found and torch.accelerator.is_available() else "cpu")
        )
    with contextlib.suppress(RuntimeError, TypeError):  # `npu` is a name only with torch_npu
        wanted = torch.device(asked)
        if wanted.type == "cpu" or _is_there(wanted):
            return _indexed(wanted)
    raise DeviceError(f"There is no device `{asked}` here; {_there()}.{_advice(str(asked))}")


def _is_there(device: torch.device) -> bool:
    count = torch.accelerator.device_count() if device.type == kind() else 0
    return (device.index or 0) < count


def _indexed(device: torch.device) -> torch.device:
    index: int | None = device.index
    if device.type == "cpu" or index is not None:
        return device
    current = getattr(getattr(torch, device.type), "current_device", int)
    return torch.device(device.type, current())


def _there() -> str:
    found = kind()
    count = torch.accelerator.device_count() if found else 0
    if not count:
        built = f", though it is built or extended for {found}" if found else ""
        return f"torch {torch.__version__} finds no accelerator, only `cpu`{built}"
    last = "" if count == 1 else f" to `{found}:{count - 1}`"
    return f"torch {torch.__version__} finds `cpu` and `{found}:0`{last}"


def _advice(asked: str) -> str:
    wanted = asked.split(":", maxsplit=1)[0]
    if wanted == kind() and torch.accelerator.is_available():
        return ""
    if wanted == "cuda" and torch.version.cuda is None and torch.version.hip is None:
        return " This torch is built without CUDA: install one that is, see pytorch.org."
    if wanted == "cuda":
        return " Look with `nvidia-smi` whether the driver sees the GPU."
    return _npu_advice() if wanted == "npu" else ""


def _npu_advice() -> str:
    if "torch_npu" in sys.modules:
        return (
            " torch_npu is imported. Look with `npu-smi info` whether the driver sees the NPU, "
            "and whether Ascend's set_env.sh was sourced before Python started."
        )
    try:
        version = metadata.version("torch_npu")
    except metadata.PackageNotFoundError:
        release = torch.__version__.split("+")[0]
        return f" torch_npu is not installed; take the version for this torch, {release}."
    return (
        f" torch_npu {version} is installed and not imported: source Ascend's set_env.sh, start "
        "Python again, and `import torch_npu`."
    )


def random_state(device: torch.device) -> Tensor | None:
    """Return the state of the device's random numbers, None where it cannot be read."""
    if device.type == "cpu":
        return torch.get_rng_state()
    try:
        state: Tensor = getattr(torch, device.type).get_rng_state(*_which(device))
    except (AttributeError, RuntimeError):
        return None
    return state


def set_random_state(device: torch.device, state: Tensor | None) -> None:
    """Put back what `random_state` returned."""
    if state is None:
        return
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        getattr(torch, device.type).set_rng_state(state, *_which(device))


def _which(device: torch.device) -> tuple[torch.device, ...]:
    """Return what tells a device from others of its kind: of Apple's there is one."""
    return () if device.type == "mps" else (device,)


def wait(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cpu":
        return
    synchronize = getattr(torch, device.type).synchronize
    if device.type == "mps":  # which are never several
        synchronize()
    else:
        synchronize(device)


@contextlib.contextmanager
def telling_waits(device: torch.device, mode: str = "warn") -> Iterator[bool]:
    """Have torch warn whenever the host waits for the device, or not; yield whether it can."""
    module: Any = getattr(torch, device.type, None)
    if device.type == "cpu" or not hasattr(module, "set_sync_debug_mode"):
        yield False
        return
    before = module.get_sync_debug_mode()
    module.set_sync_debug_mode(mode)
    try:
        yield True
    finally:
        module.set_sync_debug_mode(before)
