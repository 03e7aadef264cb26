"""The check as a whole: what is looked at, in which order, and leaving everything as it was."""

from __future__ import annotations

import contextlib
import platform
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

import probe_nb
from probe_nb import devices
from probe_nb.checkup import behaviour, numbers
from probe_nb.checkup.report import Check, SelfCheck
from probe_nb.stats.kernels import cpu


def self_check(device: str | torch.device | None = None) -> SelfCheck:
    """Check that probe_nb keeps its promises with this torch on this device.

    Small models are trained with and without a watch, tensors of every type are measured and
    held against numpy, and what the watch costs is measured. It takes about a minute at most,
    needs some ten megabytes, and leaves random numbers and all settings as they were.

    Args:
        device: Such as `"cpu"`, `"cuda"`, `"cuda:1"` or `"npu"`. None: the accelerator that torch
            finds, or the CPU.

    Returns:
        A report: `.ok`, `.df` with one row per check, and printed a text to paste into a bug
        report. A check is `passed`, `failed`, `measured` (a figure that nothing judges), or
        `skipped` with the reason.

    Raises:
        DeviceError: There is no such device here; the message says what there is.

    >>> import probe_nb as probe
    >>> report = probe.self_check("cpu")
    >>> report.ok
    True
    >>> sorted(report.df["check"].unique())
    ['cost', 'given back', 'identity', 'numbers', 'operators', 'waits']
    """
    where = devices.find(device)
    before = behaviour.fingerprint(where)
    with _as_it_was(where):
        checks = [
            *_guarded("identity", lambda: behaviour.identity(where)),
            *_guarded("operators", lambda: behaviour.operators(where)),
            *_guarded("waits", lambda: behaviour.waits(where)),
            *_guarded("numbers", lambda: numbers.checks(where)),
            *_guarded("cost", lambda: behaviour.cost(where)),
        ]
        checks += [Check("device", str(where), "measured", said) for said in devices.notices()]
        made_with, names = _versions(where), tuple(devices.names())
    checks += behaviour.given_back(where, before)
    return SelfCheck(str(where), names, made_with, tuple(checks))


def _guarded(name: str, make: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """Pass checks on; one that raises has failed and is the last of its kind."""
    try:
        yield from make()
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        yield Check(name, "all that is left", "failed", f"{type(error).__name__}: {text}")


def _versions(device: torch.device) -> dict[str, str]:
    found = {"probe_nb": probe_nb.__version__, "python": platform.python_version()}
    found |= devices.versions()
    if device.type == "cpu":
        found["cpu_kernel"] = cpu.kernel_name()
    return found | {"system": f"{platform.system()} {platform.machine()}"}


def _no_autocast(kind: str) -> contextlib.AbstractContextManager[Any]:
    try:
        return torch.autocast(kind, enabled=False)
    except (AssertionError, RuntimeError):  # the device has none
        return contextlib.nullcontext()


@contextlib.contextmanager
def _as_it_was(device: torch.device) -> Iterator[None]:
    """Work under torch's own defaults, and put the user's settings back."""
    places = {torch.device("cpu"), device}
    states = [(place, devices.random_state(place)) for place in places]
    dtype = torch.get_default_dtype()
    defaults: list[Any] = [
        warnings.catch_warnings(),
        torch.inference_mode(mode=False),
        torch.enable_grad(),
        torch.device("cpu"),
        devices.telling_waits(device, "default"),
        *(_no_autocast(kind) for kind in {place.type for place in places}),
    ]
    with contextlib.ExitStack() as stack:
        for each in defaults:
            stack.enter_context(each)
        try:
            torch.set_default_dtype(torch.float32)
            yield
        finally:
            torch.set_default_dtype(dtype)
            for place, state in states:
                devices.set_random_state(place, state)
