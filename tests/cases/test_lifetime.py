"""What outlives a watch, what travels with a model, and what must reach the user."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb import session
from probe_nb.errors import ProbeWarning
from tests.cases.watching import squares
from tests.models import hook_tables, no_faults

X = torch.ones(2, 4)


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(4, 1))


# -- started again ------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::probe_nb.errors.ProbeWarning")
@pytest.mark.parametrize("start", ["start", "watch"])
def test_however_often_a_watch_is_started_a_forward_has_one_set_of_rows(start):
    model = small()
    for _ in range(3):
        if start == "start":
            run = probe.start(model, roles="output", live=False)
        else:
            run = probe.watch(model, roles="output", live=False).__enter__()
        assert len(session.sessions()) == 1
        model(X)
        assert len(run) == 5
    assert probe.stop() is run
    model(X)
    assert len(run) == 5
    assert probe.stop() is None


def test_a_new_object_under_an_old_name_is_another_model():
    model = old = small()
    first = probe.start(model, roles="output", live=False)
    model = small()
    second = probe.start(model, roles="output", live=False)
    model(X)
    assert (len(first), len(second)) == (0, 5)
    old(X)
    assert (len(first), len(second)) == (5, 5)
    assert {probe.stop(), probe.stop()} == {first, second}


# -- saved and copied ---------------------------------------------------------------------------

LOADS = """
import sys, torch
sys.modules["probe_nb"] = None
model = torch.load(sys.argv[1], weights_only=False).eval()
print(model(torch.ones(2, 4)).sum().item())
"""


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": saved,
    "copy": copy.copy,
    "ForkingPickler": lambda m: pickle.loads(multiprocessing.reduction.ForkingPickler.dumps(m)),
    "AveragedModel": lambda model: torch.optim.swa_utils.AveragedModel(model).module,
    "load_state_dict": lambda model: loaded(model.state_dict()),
}


def loaded(state):
    model = small()
    model.load_state_dict(state)
    return model


@pytest.mark.parametrize("when", ["before", "between", "after"])
@pytest.mark.parametrize("way", WAYS)
def test_a_watched_model_can_be_copied_and_the_copy_is_watched_by_nobody(way, when):
    model = small()
    model[0].register_forward_hook(passes)  # ours is then among the module's own
    keys = list(model.state_dict())
    names = [sorted(vars(module)) for module in model.modules()]
    with no_faults(), probe.watch(model, live=False) as run:
        if when == "before":
            copied = WAYS[way](model)
        loss = squares(model(X))
        if when == "between":
            copied = WAYS[way](model)
        loss.backward()
        if when == "after":
            copied = WAYS[way](model)
        assert list(model.state_dict()) == list(copied.state_dict()) == keys
        rows = len(run)
        if way != "copy":  # a shallow copy has the same children, which are watched
            squares(copied(X)).backward()
            assert len(run) == rows
    assert [sorted(vars(module)) for module in model.modules()] == names
    expected = model.eval()(X)
    assert torch.equal(copied.eval()(X), expected)


def passes(_, __, output):
    return output


def test_what_was_saved_during_a_watch_loads_where_there_is_no_probe_nb(tmp_path):
    model = small()
    with no_faults(), probe.watch(model, live=False):
        squares(model(X)).backward()
        torch.save(model, tmp_path / "model.pt")
        (tmp_path / "model.pkl").write_bytes(pickle.dumps(model))
    expected = model.eval()(X).sum().item()
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(tmp_path / "model.pt")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert float(done.stdout) == expected
    assert b"probe_nb" not in (tmp_path / "model.pkl").read_bytes()


# -- exceptions ---------------------------------------------------------------------------------


class Stops(BaseException):
    """What neither `except Exception` nor anybody else may catch."""


ERRORS = [ValueError, RuntimeError, KeyboardInterrupt, SystemExit, StopIteration, Stops]


class Raises(nn.Module):
    """Raises in its forward or in its backward."""

    def __init__(self, error, where):
        super().__init__()
        self.layer, self.error, self.where = nn.Linear(4, 4), error, where

    def forward(self, x):
        y = self.layer(x)
        if self.where == "forward":
            raise self.error
        if self.where == "backward":
            y.register_hook(self.fails)
        return y

    def fails(self, _):
        raise self.error


@pytest.mark.filterwarnings("ignore::probe_nb.errors.ProbeWarning")  # a view without a notebook
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("where", ["block", "forward", "backward"])
@pytest.mark.parametrize("live", [False, True])
def test_an_exception_of_the_users_leaves_the_watch_as_the_object_that_was_raised(
    kind, where, live
):
    error = kind("user bug")
    model = Raises(error, where)
    runs = []
    with pytest.raises(kind) as caught:
        trains_badly(model, error, live, runs)
    assert caught.value is error
    assert error.__cause__ is error.__context__ is None
    assert runs[0].info.ended.startswith(kind.__name__)
    assert len(runs[0].frame(module="layer", role="output")) == 1


def trains_badly(model, error, live, runs):
    with probe.watch(model, live=live) as run:
        runs.append(run)
        squares(model(X)).backward()
        raise error


def test_an_error_in_drawing_never_reaches_the_user_and_is_told_once():
    model = nn.Linear(4, 4)
    drawn = []

    def draw():
        drawn.append(True)
        raise RuntimeError("a view is broken")

    run = probe.start(model, live=False)
    session.sessions()[0].listeners.append(draw)
    with pytest.warns(ProbeWarning, match="a view is broken") as told:
        steps(model, run, 5)
    probe.stop()
    assert len(told) == len(drawn) == 1
    assert len(run.frame(role="output")) == 5


def steps(model, run, count):
    for _ in range(count):
        model(X)
        run.step()


# -- unchanged ----------------------------------------------------------------------------------


class Big(nn.Module):
    """Branches of linear layers and batch norms over one tensor, with dropout, joined by sums."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.3)) for _ in range(4)
        )
        self.same, self.act, self.head = nn.Identity(), nn.ReLU(inplace=True), nn.Linear(8, 2)
        self.kept = True

    def forward(self, x):
        h = x * 1
        for branch in self.branches:
            h = h + branch(h) + branch(x)
        self.kept &= self.same(h) is h
        return self.head(self.act(h))


def trained(kind, *, watch):
    torch.manual_seed(1)
    model = Big()
    optimizer = kind(model.parameters(), lr=0.1)
    seen = []
    run = probe.start(model, live=False) if watch else None
    for _ in range(3):
        x = torch.randn(6, 8, requires_grad=True)
        loss = squares(model(x))
        loss.backward()
        seen += [loss.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    probe.stop(run)
    assert model.kept
    assert all(not table for m in model.modules() for table in hook_tables(m).values())
    return [*seen, *model.state_dict().values(), torch.get_rng_state(), torch.rand(3)]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_training_is_the_same_to_the_last_bit(kind):
    bare = trained(kind, watch=False)
    with no_faults():
        seen = trained(kind, watch=True)
    assert len(seen) == len(bare)
    assert all(torch.equal(a, b) for a, b in zip(bare, seen, strict=True))
