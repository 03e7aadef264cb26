"""How every test runs: one thread, fixed examples and seeds, and everything given back at the end."""

from __future__ import annotations

import gc
import itertools
import math
import random
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

import hypothesis
import numpy as np
import pytest
import torch
import torch._dynamo  # an optimizer imports it at its first step, and it adds a warnings filter
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer
from torch.utils import _python_dispatch

from probe_nb import pace
from probe_nb.stats.kernels import cpu
from tests import models

if TYPE_CHECKING:
    from collections.abc import Iterator

torch.set_num_threads(1)
hypothesis.settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("fixed")
pace._PATIENCE = math.inf  # what is taken in amid a step on a slow machine is not for chance to say


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups, after the folders' own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one worker run the tests that share what their file makes: else each would make it."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None and _shares(item):
            item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name} {item.path.stem}"))


def _shares(item: pytest.Item) -> bool:
    made = getattr(item, "_fixtureinfo", None)
    fixtures = () if made is None else itertools.chain(*made.name2fixturedefs.values())
    return any(each.scope == "module" and each.baseid.startswith("tests") for each in fixtures)


def pytest_collection_finish() -> None:
    """Let no garbage collection go through what stays: thousands of tests, and what they import.

    Nor let the kernel of compiled loops become ready in the middle of a test that compares numbers.
    """
    if (thread := cpu.warm()) is not None:
        thread.join()
    _settle()


_settled: list[object] = []  # the file whose tests run


def _settle() -> None:
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before fixtures of any scope
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed every test alike, whatever ran before it."""
    if _settled != [item.path]:
        _settled[:] = [item.path]
        _settle()
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - users' programs draw from it
    torch.manual_seed(0)
    torch.set_grad_enabled(True)  # a test that failed may have left it off


@pytest.fixture(autouse=True)
def no_leftovers() -> Iterator[None]:
    """Hold that a test leaves no hook, mode, filter, callback or session behind."""
    before = fingerprint()
    yield
    open_sessions = _sessions()
    for session in open_sessions:  # so that the tests after this one do not fail with it
        session.close("left open by a test")
    after = fingerprint()
    torch.set_grad_enabled(before["grad mode"])
    assert not open_sessions, "a test left a session open"
    assert {k: v for k, v in after.items() if v != before[k]} == {}, "changed by the test"
    assert models.hooks_of_probe_nb() == []


def fingerprint() -> dict[str, Any]:
    """Read everything in the process that a watch could change and forget to change back."""
    tables = {
        f"{room.__name__}.{name}": dict(value)
        for room in (torch_module, torch_optimizer)
        for name, value in vars(room).items()
        if name.startswith("_global_") and isinstance(value, dict)
    }
    return tables | {
        "full backward hooks": torch_module._global_is_full_backward_hook,
        "function modes": list(torch.overrides._get_current_function_mode_stack()),
        "dispatch modes": list(_python_dispatch._get_current_dispatch_mode_stack()),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "anomaly mode": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "fast attention": torch.backends.mha.get_fastpath_enabled(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "torch threads": torch.get_num_threads(),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "hooks of Python": (sys.excepthook, threading.excepthook, sys.displayhook),
        "IPython": _ipython(),
    }


def _sessions() -> tuple[Any, ...]:
    room = sys.modules.get("probe_nb.session")
    return () if room is None else room.sessions()


def _ipython() -> object:
    """Return the state of the shell in this process, None if there is none."""
    room = sys.modules.get("IPython.core.interactiveshell")
    if room is None or not room.InteractiveShell.initialized():
        return None
    shell = room.InteractiveShell.instance()
    return (
        {name: list(calls) for name, calls in shell.events.callbacks.items()},
        list(shell.input_transformers_cleanup),
        list(shell.input_transformers_post),
        {kind: dict(known) for kind, known in shell.magics_manager.magics.items()},
        list(shell.Completer.custom_matchers),
    )
