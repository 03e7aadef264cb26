"""No activation and no gradient lives longer than without the watch."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.observe.shares import Hook


class Layers(nn.Module):
    """Remembers weakly what it computed; the list says which of it still lives."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.act = nn.ReLU()
        self.last = nn.Linear(4, 4)
        self.seen: list[weakref.ref] = []

    def forward(self, x):
        for layer in (self.first, self.act, self.last):
            x = layer(x)
            self.seen.append(weakref.ref(x))
        return x

    def alive(self):
        return [place for place, ref in enumerate(self.seen) if ref() is not None]


@pytest.fixture(autouse=True)
def no_collector():
    """Let a tensor that dies only through the garbage collector count as kept."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def watched(model, *, yes):
    return probe.watch(model, live=False) if yes else contextlib.nullcontext()


def test_an_activation_dies_as_soon_as_the_model_lets_go():
    model = Layers()
    with probe.watch(model, live=False), torch.no_grad():
        y = model(torch.ones(2, 4))
        assert model.alive() == [2]
        del y
        assert model.alive() == []


@pytest.mark.parametrize("yes", [False, True], ids=["bare", "watched"])
def test_a_graph_is_freed_with_its_loss(yes):
    model = Layers()
    with watched(model, yes=yes):
        loss = model(torch.ones(2, 4, requires_grad=True)).sum()
        loss.backward()
        del loss
        assert model.alive() == []


@pytest.mark.parametrize("yes", [False, True], ids=["bare", "watched"])
def test_a_graph_that_is_never_walked_is_freed_as_well(yes):
    model = Layers()
    with watched(model, yes=yes):
        model(torch.ones(2, 4, requires_grad=True))
        assert model.alive() == []


@pytest.mark.parametrize("yes", [False, True], ids=["bare", "watched"])
def test_a_gradient_becomes_the_parameters_without_a_copy(yes):
    """A gradient that somebody holds is copied by autograd, which costs its memory twice."""
    model = nn.Linear(4, 4)
    addresses = []
    with watched(model, yes=yes):
        model.weight.register_hook(lambda g: addresses.append(g.data_ptr()))
        model(torch.ones(2, 4)).sum().backward()
    assert model.weight.grad.data_ptr() == addresses[0]


@pytest.mark.parametrize("yes", [False, True], ids=["bare", "watched"])
def test_gradients_die_during_the_backward(yes):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
    seen, alive = [], []

    def note(g):
        alive.append(sum(ref() is not None for ref in seen))
        seen.append(weakref.ref(g))

    with watched(model, yes=yes):
        x = torch.ones(2, 4)
        for layer in model:
            x = layer(x)
            x.register_hook(note)
        x.sum().backward()
    assert len(alive) == 4
    assert max(alive) <= 1  # the one that is on its way


def test_the_gradients_of_many_steps_are_not_kept():
    model = Layers()
    with probe.watch(model, live=False) as run:
        for _ in range(20):
            model(torch.ones(2, 4, requires_grad=True)).sum().backward()
        assert model.alive() == []
        held = [o for o in gc.get_objects() if issubclass(type(o), Hook)]
    assert len(run) > 0
    # only the hooks of the four parameters, which have no graph that could free them
    assert [type(o).__name__ for o in held] == ["ParameterHook"] * 4


def test_a_swapped_parameter_can_be_swapped_under_the_watch():
    """`torch.utils.swap_tensors` refuses tensors that are weakly referenced."""
    model = nn.Linear(4, 4)
    with probe.watch(model, live=False) as run:
        model(torch.ones(2, 4)).sum().backward()
        torch.utils.swap_tensors(model.weight, nn.Parameter(torch.full((4, 4), 2.0)))
        model(torch.ones(2, 4))
        run.step()
        model(torch.ones(2, 4))
    weights = run.frame(role="param", leaf="weight")
    assert weights["mean"].tolist()[-1] == 2.0
