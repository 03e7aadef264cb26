"""A fault at any line that keeps tensors, as in `test_faults_inside`: what the user sees of it.

A Ctrl-C reaches the user, once; any other error is ours and never does. What is said to be kept
afterwards is right.
"""

from __future__ import annotations

import linecache
import re
import threading
import warnings
from pathlib import Path

import pytest
import torch

import probe_nb as probe
from probe_nb.errors import ProbeWarning
from tests.contract.test_faults_inside import PACKAGE, Fault, left_over, made, traced, train

KEY = ["module", "role", "leaf", "step", "call", "backward"]
NO, ROOM = "not kept: budget", "not kept: made room"
MINE = ("keeper.py", "store/keeping.py", "store/kept.py", "store/stream.py", "store/tensors.py")
ROLES = ("input", "output", "param", "grad_output", "param_grad")


BEFORE_THE_GUARD = re.compile(r"with contextlib.suppress\(Exception\):|@|def |return$|try:")


def mine(fault):
    names = {str(Path(PACKAGE) / name) for name in MINE}
    return [place for place in fault.seen if place[0] in names]


def keep(folder):
    """Keep so little that not all fits, and older steps make room; in a folder, everything."""
    return probe.Keep("*", roles=ROLES, folder=folder, memory=None if folder else 250)


def named(place):
    return f"{Path(place[0]).relative_to(PACKAGE)}:{place[1]}: {linecache.getline(*place).strip()}"


def kept(run):
    """Return what is said to be kept, by its place, with its values."""
    everything = [k for k in run.tensors.known() if k.data is not None]
    assert all(k.status == "kept" for k in everything)
    return {
        tuple(getattr(k, name) for name in KEY): run.tensor(
            k.module, k.role, k.step, call=k.call, leaf=k.leaf
        )
        for k in everything
    }


def alone(fault, act):
    """Run `act` as `traced` does, but in this thread only: no Ctrl-C ever comes to another."""
    before = threading.settrace
    threading.settrace = lambda _: None
    try:
        return traced(fault, act)
    finally:
        threading.settrace = before


def watched(folder, place=None, error=KeyboardInterrupt):
    """Train and stop while a line fails; return the run, the fault, and what was raised."""
    model, optimizer = made()
    fault = Fault(place, error)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run = probe.start(model, keep=keep(folder), live=False)
        trace = alone if error is KeyboardInterrupt else traced
        raised = trace(fault, lambda: (train(model, optimizer), probe.stop(run)))
        probe.stop(run)
    told = [str(w.message) for w in said if issubclass(w.category, ProbeWarning)]
    assert left_over(model, optimizer) == 0
    return run, fault, raised, told


@pytest.fixture(scope="module")
def truth():
    """Return everything that is kept where there is room and nothing disturbs."""
    model, optimizer = made()
    with probe.watch(model, keep=probe.Keep("*", roles=ROLES, memory=None), live=False) as run:
        train(model, optimizer)
    return kept(run)


def wrong(run, truth):
    found = kept(run)
    return [k for k, t in found.items() if k not in truth or not torch.equal(t, truth[k])]


@pytest.fixture(params=["memory", "folder"])
def folder(request, tmp_path):
    """Return a function that names a new folder each time, or none."""
    numbers = iter(range(10**6))
    return lambda: tmp_path / str(next(numbers)) if request.param == "folder" else None


def lines(folder, error):
    """Return every line of mine that runs."""
    run, fault, _, told = watched(folder(), error=error)
    assert told == []
    expected = {"kept"} | ({NO, ROOM} if run.tensors._stream is None else set())
    assert set(run.kept()["status"]) == expected
    places = mine(fault)
    assert len(places) > 60
    return places


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("probe_nb")]


@pytest.mark.slow
def test_ctrl_c_at_any_line_reaches_the_user_once_and_nothing_wrong_is_kept(folder, truth):
    bad = {}
    for place in lines(folder, KeyboardInterrupt):
        run, fault, raised, _ = watched(folder(), place)
        found = {
            "the line did not run": not fault.fired,
            "swallowed": raised is None,
            "wrong": wrong(run, truth),
            "open": run.is_open,
        }
        if any(found.values()):
            bad[named(place)] = {what: yes for what, yes in found.items() if yes}
    assert bad == {}
    assert threads() == []


@pytest.mark.slow
def test_an_error_of_ours_at_any_line_never_reaches_the_training_and_is_told(folder, truth):
    bad = {}
    for place in lines(folder, MemoryError):
        if BEFORE_THE_GUARD.match(linecache.getline(*place).strip()):
            continue
        run, _, raised, told = watched(folder(), place, MemoryError)
        statuses = set(run.kept()["status"])
        missing = len(truth) - len(run.kept())
        found = {
            "raised": raised is not None,
            "wrong": wrong(run, truth),
            "not told": missing if not told and "not kept: failed" not in statuses else 0,
        }
        if any(found.values()):
            bad[named(place)] = {what: yes for what, yes in found.items() if yes}
    assert bad == {}
    assert threads() == []
