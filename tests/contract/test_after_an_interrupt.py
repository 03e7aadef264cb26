"""After an exception that no hook tells of: frames that are gone, and others at their addresses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb import session
from tests.models import no_faults

X = torch.ones(1, 2)


class Stops(nn.Module):
    """Raises an exception of the kind that it is given, once, and holds none itself."""

    kind: type[BaseException] | None = None

    def forward(self, x):
        kind, self.kind = self.kind, None
        if kind is not None:
            raise kind("mine")
        return x


class Wrapper(nn.Module):
    """Calls a module, as trainers' modules do."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def left_by(error, module):
    """Call a module that raises, and keep no frame of it: theirs are the addresses of the next."""
    try:
        module(X)
    except error:
        return True
    return False


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, SystemExit, ValueError])
@pytest.mark.parametrize("wrappers", range(5))
@pytest.mark.parametrize("depth", range(3))
def test_forwards_after_one_that_was_left_are_steps_of_their_own(error, wrappers, depth):
    stops = Stops()
    model = nn.Sequential(nn.Linear(2, 2), stops)
    for _ in range(depth):
        model = nn.Sequential(model, nn.ReLU())
    called = model
    for _ in range(wrappers):
        called = Wrapper(called)
    with no_faults(), probe.watch(model, roles="output", live=False) as run, torch.no_grad():
        called(X)
        stops.kind = error
        assert left_by(error, called)
        called(X)
        called(X)
    root = run.frame(module="")
    assert root["step"].tolist() == [0, 2, 3]
    assert set(run.df["call"]) == {0}


@pytest.mark.parametrize("wrappers", range(3))
def test_an_error_elsewhere_is_not_laid_at_a_module_that_raised_before(wrappers):
    model, stranger = nn.Sequential(nn.Linear(2, 2), Stops()), nn.Sequential(Stops(), nn.ReLU())
    for _ in range(wrappers):
        stranger = Wrapper(stranger)
    run = probe.start(model, live=False)
    for _ in range(3):
        model[1].kind = ValueError
        assert left_by(ValueError, model)
    next(m for m in stranger.modules() if isinstance(m, Stops)).kind = KeyError
    with pytest.raises(KeyError) as raised:
        stranger(X)
    session.sessions()[-1].close_after(raised.value)
    assert run.info.ended == "KeyError at step 2: 'mine'"


def test_an_error_is_laid_at_the_innermost_watched_module_it_came_through():
    inner = Stops()
    inner.kind = KeyError
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(Wrapper(inner)))
    with pytest.raises(KeyError), probe.watch(model, live=False) as run:
        model(X)
    assert run.info.ended == "KeyError in 1.0.inner at step 0: 'mine'"
