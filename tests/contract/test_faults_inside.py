"""A fault at any line of ours while a model trains: what the user sees of it, and what is left.

Each line that runs is made to fail once: a Ctrl-C reaches the user, once; any other error is ours
and never does. Afterwards everything is given back, and the rows that are there are right.
"""

from __future__ import annotations

import linecache
import re
import sys
import threading
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer
from torch.utils import _python_dispatch

import probe_nb as probe
from probe_nb import session
from probe_nb.errors import ProbeWarning
from tests import measuring

PACKAGE = str(Path(probe.__file__).parent)
X = torch.tensor([[1.0, -2.0], [0.5, 4.0]])
KEY = ["step", "micro_step", "module", "direction", "role", "leaf", "call", "backward"]
NUMBERS = ["numel", "min", "max", "mean", "std", "l2", "absmax", "zero_count"]


class Net(nn.Module):
    """Reads a tensor twice, writes one in place, has a module with hooks of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Linear(2, 2)
        self.last.register_forward_hook(lambda *_: None)

    def forward(self, x):
        h = self.act(self.first(x))
        return self.last(h) + h


def made():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5)
    optimizer.register_step_pre_hook(lambda *_: None)
    optimizer.register_step_post_hook(lambda *_: None)
    return model, optimizer


def train(model, optimizer, run=None, kept=()):
    """Train two steps; with a run, take in what was seen after each and note the rows so far."""
    for _ in range(2):
        x = X.clone().requires_grad_()
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if run is not None:
            run.flush()
            kept.append(len(run.columns))


BEFORE_THE_GUARD = re.compile(
    r"try:|if g is None:$|for share, places in self\._shares:$|@|def |return$|watched = None|if torch.compiler.is_compiling\(\):|self._act\(\*args\)"
)
"""Lines outside of any guard: they do nothing that could fail."""


UNHEARD = "torch._C._set_grad_enabled(before)"
"""Between a `finally` and a call into C no Ctrl-C is heard: it can come before them and after."""


class Fault:
    """Notes every line of ours that runs; raises when one of them does for the first time."""

    def __init__(self, place=None, error=KeyboardInterrupt):
        self.seen, self.place, self.error, self.fired = {}, place, error, False

    def __call__(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            at = (frame.f_code.co_filename, frame.f_lineno)
            self.seen[at] = self.seen.get(at, 0) + 1
            if at == self.place and not self.fired:
                self.fired = True
                raise self.error
        return self


def traced(fault, act):
    """Run `act`, in this thread and in those that autograd starts; return what it raised."""
    threading.settrace(fault)
    sys.settrace(fault)
    try:
        act()
    except (KeyboardInterrupt, MemoryError) as error:
        return error
    finally:
        sys.settrace(None)
        threading.settrace(None)
    return None


def left_over(model, optimizer):
    tables = (
        torch_module._global_forward_pre_hooks,
        torch_module._global_forward_hooks,
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    )
    found = sum(len(table) for table in tables) + len(session.sessions())
    found += sum(len(p._backward_hooks or ()) for p in model.parameters())
    found += len(_python_dispatch._get_current_dispatch_mode_stack())
    found += len(torch.overrides._get_current_function_mode_stack())
    own = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    found += sum(len(table) - 1 for table in hooks)
    return found + sum(own) - 1 + (not torch.is_grad_enabled())


@pytest.fixture(scope="module")
def lines():
    """Return every line of ours that runs while a model trains, and how often.

    What runs only because nobody asks for rows in between, or only because somebody does, is
    left out: the trainings below do the one or the other.
    """
    measuring.compiled()  # so that no other kernel takes over in between
    model, optimizer = made()
    train(model, optimizer)
    alone, asked = Fault(), Fault()
    with probe.watch(model, optimizer=optimizer, live=False):
        traced(alone, lambda: train(model, optimizer))
    with probe.watch(model, optimizer=optimizer, live=False) as run:
        traced(asked, lambda: train(model, optimizer, run, []))
    both = {
        at: times
        for at, times in alone.seen.items()
        if at in asked.seen and UNHEARD not in linecache.getline(*at)
    }
    assert len(both) > 300
    return both


@pytest.fixture(scope="module")
def truth():
    """Return the rows of a training that nothing disturbs."""
    model, optimizer = made()
    with probe.watch(model, optimizer=optimizer, live=False) as run:
        train(model, optimizer)
    return run.df


def watched(place, error):
    """Train while a line fails; return the run, what was wrong with it, and what was raised."""
    model, optimizer = made()
    fault, kept = Fault(place, error), []
    run = probe.start(model, optimizer=optimizer, live=False)
    flushed = run if error is KeyboardInterrupt else None  # asked for, so its errors are no secret
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        raised = traced(fault, lambda: train(model, optimizer, flushed, kept))
        probe.stop(run)
    told = any(issubclass(w.category, ProbeWarning) for w in said)
    found = {
        "the line did not run": not fault.fired,
        "left over": left_over(model, optimizer),
        "rows were lost": len(run.columns) < max(kept, default=0),
        "open": run.is_open,
    }
    return run, {what: yes for what, yes in found.items() if yes}, raised, told


def numbers(frame, *, exact):
    """Return every row as its place and its numbers; `exact` with the step and the call."""
    place = KEY if exact else ["module", "direction", "role", "leaf"]
    rows = frame[frame["status"] == "ok"][[*place, *NUMBERS]]
    return Counter(map(repr, rows.astype(object).itertuples(index=False, name=None)))


def wrong(run, truth, *, exact):
    """Tell how many rows are not among those of the undisturbed training."""
    known = numbers(truth, exact=exact)
    return sum(n for row, n in numbers(run.df, exact=exact).items() if n > known[row])


def named(place):
    return f"{Path(place[0]).relative_to(PACKAGE)}:{place[1]}: {linecache.getline(*place).strip()}"


@pytest.mark.slow
def test_ctrl_c_at_any_line_reaches_the_user_once_and_all_is_given_back(lines, truth):
    bad = {}
    for place in lines:
        run, found, raised, _ = watched(place, KeyboardInterrupt)
        if raised is None:
            found["swallowed"] = True
        if rows := wrong(run, truth, exact=True):
            found["wrong rows"] = rows
        if found:
            bad[named(place)] = found
    assert bad == {}
    model, optimizer = made()
    with probe.watch(model, optimizer=optimizer, live=False) as run:
        train(model, optimizer)
    assert numbers(run.df, exact=True) == numbers(truth, exact=True)


@pytest.mark.slow
def test_an_error_of_ours_at_any_line_never_reaches_the_training_and_is_told(lines, truth):
    bad = {}
    for place in lines:
        if BEFORE_THE_GUARD.match(linecache.getline(*place).strip()):
            continue
        run, found, raised, told = watched(place, MemoryError)
        if raised is not None:
            found["raised"] = True
        # who was told that a step's end was missed knows that rows may stand under another step
        if rows := wrong(run, truth, exact=not told):
            found["wrong rows"] = rows
        missing = len(truth) - len(run.columns)
        if missing > 0 and not told and not (run.df["status"] == "failed").any():
            found["not told"] = missing
        if found:
            bad[named(place)] = found
    assert bad == {}
