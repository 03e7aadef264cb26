"""The random numbers of every device at once: seen, seeded by torch itself, put back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from probe_nb.devices.choice import random_state, set_random_state
from probe_nb.devices.made_with import kind

FIXED_SUMS: Final = {
    "HCCL_DETERMINISTIC": "True",
    "LCCL_DETERMINISTIC": "1",
    "CLOSE_MATMUL_K_SHIFT": "1",
    "ATB_LLM_LCOC_ENABLE": "0",
}
"""What tells Ascend's libraries to add in the same order each time; they read it as they start."""
_CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG"
_FIXED_WORKSPACES: Final = (":4096:8", ":16:8")
"""The two settings under which cuBLAS promises the same bits each time."""


def environment() -> dict[str, str]:
    """Return the environment variables under which the devices here compute the same each time."""
    wanted = {"HCCL_DETERMINISTIC": FIXED_SUMS["HCCL_DETERMINISTIC"]}
    if kind() == "npu":
        wanted |= FIXED_SUMS
    if _has_cublas() and os.environ.get(_CUBLAS) not in _FIXED_WORKSPACES:
        wanted[_CUBLAS] = _FIXED_WORKSPACES[0]
    return wanted


def _has_cublas() -> bool:
    return kind() == "cuda" and torch.version.cuda is not None


def started() -> list[torch.device]:
    """Return the CPU and the accelerators whose random numbers exist: none is started for it."""
    found, name = [torch.device("cpu")], kind()
    module: Any = getattr(torch, name or "", None)
    if module is None or _is_in_bad_fork(module) or not _is_started(module):
        return found
    count = torch.accelerator.device_count()
    return found + [torch.device(str(name), index) for index in range(count)]


def _is_started(module: Any) -> bool:
    return bool(getattr(module, "is_initialized", module.is_available)())


def _is_in_bad_fork(module: Any) -> bool:
    """Tell whether this is a child of a process in which the devices were in use."""
    return bool(getattr(module, "_is_in_bad_fork", bool)())


def states() -> dict[torch.device, Tensor | None]:
    """Return the state of the random numbers of each device that has some."""
    return {device: random_state(device) for device in started()}


def positions() -> dict[torch.device, bytes | None]:
    """Return the same as bytes, to tell whether somebody drew."""
    with torch._C.DisableTorchFunction():  # noqa: SLF001 - modes of the user's are not asked
        return {k: None if v is None else v.numpy().tobytes() for k, v in states().items()}


def position(generator: torch.Generator) -> bytes | None:
    """Return where one generator is, None where it cannot be read."""
    with contextlib.suppress(RuntimeError), torch._C.DisableTorchFunction():  # noqa: SLF001
        return generator.get_state().numpy().tobytes()
    return None


def remembered() -> Callable[[], None]:
    """Remember all random numbers of torch's; what is returned puts them back."""
    before = states()
    waiting = [_seed_that_waits(module) for module in _with_seeds_that_wait()]

    def put_back() -> None:
        for device, state in before.items():
            set_random_state(device, state)
        for each in waiting:
            each()

    return put_back


def _with_seeds_that_wait() -> list[Any]:
    """Return the kinds of devices that did not start yet: they have at most a seed."""
    modules = [getattr(torch, name, None) for name in {"cuda", "xpu", kind() or "cuda"}]
    return [
        each
        for each in modules
        if hasattr(each, "_lazy_seed_tracker") and not (_is_in_bad_fork(each) or _is_started(each))
    ]


def _seed_that_waits(module: Any) -> Callable[[], None]:
    """Remember the seed with which a device would start; what is returned puts it back."""
    waiting = vars(module._lazy_seed_tracker)  # noqa: SLF001 - torch tells nobody what it is
    seeds = dict(waiting)

    def put_back() -> None:
        if _is_in_bad_fork(module):
            return
        if not _is_started(module):
            waiting.update(seeds)
        elif seeds["manual_seed_all_cb"] is not None:  # as the seed would have been used
            seeds["manual_seed_all_cb"][0]()
        else:  # a device that nobody seeded begins anywhere
            module.seed_all()

    return put_back
