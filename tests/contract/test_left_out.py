"""Steps that `steps=` leaves out: next to no work of ours, and no step lost in them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import probe_nb as probe
from tests.models import no_faults

OURS = str(Path(probe.__file__).parent)
X = torch.ones(2, 4)


def nested(blocks=20):
    return nn.Sequential(
        *[nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU())) for _ in range(blocks)]
    )


def calls_of_ours(act):
    """Count the functions of this package that are entered while something runs."""
    found = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            found.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_a_module_costs_a_handful_of_calls_in_a_step_that_is_left_out(grad):
    """Before and after each: who is it, is anything to be done, is it inside of a call."""
    model = nested()
    with (
        no_faults(),
        torch.set_grad_enabled(grad),
        probe.watch(model, live=False, steps="1000"),
    ):
        model(X)
        found = calls_of_ours(lambda: model(X))
    assert len(found) < 11 * len(list(model.modules()))
    assert not {"arguments", "tensor", "see", "add_modules", "changed"} & set(found)


def test_a_model_is_walked_again_only_when_it_changed():
    model = nested()
    with no_faults(), probe.watch(model, live=False) as run:
        model(X)
        assert "add_modules" not in calls_of_ours(lambda: model(X))
        model[3] = nn.Tanh()
        assert "add_modules" in calls_of_ours(lambda: model(X))
        assert "add_modules" not in calls_of_ours(lambda: model(X))
    assert run.frame(module="3", role="output")["step"].tolist() == [0, 1, 2, 3]
    assert (
        run.frame(module="3", role="output")["type"].tolist() == ["Sequential"] * 2 + ["Tanh"] * 2
    )


def test_a_module_put_where_one_died_is_seen_although_it_has_its_address():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    addresses = set()
    with no_faults(), probe.watch(model, live=False) as run:
        for n in range(30):
            model(X)
            del model[1]
            model.append(nn.Softplus(beta=n + 1))
            addresses.add(id(model[1]))
    assert len(addresses) < 30
    assert run.frame(module="1", role="output")["step"].tolist() == list(range(30))


def test_modules_that_change_places_have_their_new_paths():
    model = nn.Sequential(nn.Linear(4, 4), nn.Softplus())
    with no_faults(), probe.watch(model, live=False) as run:
        model(X)
        first, second = model
        model[0], model[1] = second, first
        model(X)
    assert run.frame(role="output", step=1)["module"].tolist() == ["0", "1", ""]
    assert run.frame(role="output", step=1)["type"].tolist() == ["Softplus", "Linear", "Sequential"]


def test_a_module_put_in_during_the_only_step_is_listed():
    model = nn.Sequential(nn.Linear(4, 4))
    with no_faults(), probe.watch(model, live=False) as run:
        model(X)
        model.append(nn.ReLU())
    frame = run.coverage()
    assert frame[frame["module"] == "1"]["reason"].notna().tolist() == [True]


class Stops(nn.Module):
    """Raises what it is given, once."""

    kind: type[BaseException] | None = None

    def forward(self, x):
        kind, self.kind = self.kind, None
        if kind is not None:
            raise kind
        return x


class Calls(nn.Module):
    """Calls the parts of another module, one by one, and is not watched."""

    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x


def left_by(error, module):
    """Call a module that raises, and keep no frame of it: theirs are the addresses of the next."""
    try:
        module(X)
    except error:
        return True
    return False


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, ValueError])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("at", [0, 1])
def test_an_exception_in_a_step_that_is_left_out_does_not_stop_the_steps(error, wrapped, at):
    """The parts of a container are called, so it is they that begin the steps."""
    stops = Stops()
    parts = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), Stops()) for _ in range(2))
    parts[at][1] = stops
    called = Calls(parts)
    called = Calls([called]) if wrapped else called
    with no_faults(), torch.no_grad(), probe.watch(parts, steps="2-3", live=False) as run:
        called(X)
        stops.kind = error
        assert left_by(error, called)
        for _ in range(2):
            called(X)
    frame = run.frame(role="output", module="0")
    assert frame["step"].tolist() == [2, 3]
    assert set(frame["call"]) == {0}


def test_a_checkpoint_of_a_recorded_step_is_repeated_in_one_that_is_left_out():
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.Tanh())
    with no_faults(), probe.watch(model, steps="0", live=False) as run:
        x = X.clone().requires_grad_()
        y = checkpoint(model, x, use_reentrant=False)
        run.step()
        model(X)
        y.sum().backward()
    z = x.detach().requires_grad_()
    inner = layer(z)
    (truth,) = torch.autograd.grad(inner.tanh().sum(), inner)
    found = run.frame(module="0", role="grad_output")
    assert found["step"].tolist() == [0]
    assert found["l2"].tolist() == pytest.approx([truth.double().norm().item()], rel=1e-5)
