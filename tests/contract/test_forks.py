"""A process that is forked off under a watch: it runs free, and the watch does not notice."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

BEGIN = """
import os, signal, sys, threading, warnings
import torch
from torch import nn
import probe_nb as probe
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

warnings.simplefilter("ignore")

class Twice(nn.Module):
    def forward(self, x):
        return x * 2

def child(act):
    pid = os.fork()
    if not pid:
        signal.alarm(250)  # what waits for ever is killed
        try:
            os._exit(7 if act() else 1)
        finally:
            os._exit(2)
    return pid

def well(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""


def run(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_child_does_not_wait_for_a_thread_that_is_not_there():
    run(
        """
model, large, over = Twice(), torch.randn(4_000_000), threading.Event()

def runs():
    while not over.is_set():
        model(large)

with probe.watch(model, reduce_once=False, live=False):
    thread = threading.Thread(target=runs)
    thread.start()
    ends = [well(child(lambda: model(torch.ones(1)).item() == 2)) for _ in range(3)]
    over.set()
    thread.join()
assert ends == [True] * 3
"""
    )


def test_a_child_has_nothing_of_ours_and_its_parent_all():
    run(
        """
model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
trains = lambda: model(torch.ones(1, 2)).sum().backward()

def hooks():
    tables = (
        torch_module._global_forward_pre_hooks,
        torch_module._global_forward_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    )
    on_parameters = sum(len(p._backward_hooks or ()) for p in model.parameters())
    return sum(map(len, tables)) + on_parameters

def is_free():
    rows = len(run.columns)
    trains()
    probe.stop()
    return hooks() == 0 and not run.is_open and len(run.columns) == rows

with probe.watch(model, live=False) as run:
    trains()
    before = hooks()
    assert before > 4
    assert well(child(is_free))
    assert (hooks(), run.is_open) == (before, True)
    rows = len(run)
    trains()
    assert len(run) > rows
assert run.info.ended == "finished"
"""
    )


def test_what_a_child_runs_is_not_taken_for_what_its_parent_ran():
    run(
        """
model = Twice()
values = [float(n) for n in range(1200)]
done, go = os.pipe()

def other():
    os.read(done, 1)  # when the parent has moved more of its records to files
    for _ in values:
        model(torch.tensor([-1e6]))
    return True

with probe.watch(model, roles="output", memory=20_000, live=False) as run:
    pid = None
    for n, value in enumerate(values):
        model(torch.tensor([value]))
        if n == 400:
            assert run.columns.spilled
            pid = child(other)
    os.write(go, b"x")
    assert well(pid)
assert run.columns.spilled > 800
assert run.df["max"].tolist() == [2 * value for value in values]
"""
    )
