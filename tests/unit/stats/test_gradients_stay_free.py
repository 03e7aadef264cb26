"""Measuring a gradient leaves autograd free to add to it in place, as it does unwatched."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.stats.summary import Reducer
from tests.measuring import drained
from tests.models import no_faults


def three_senders(x):
    """Return nodes that send one gradient each to `x`."""
    return x * 2, x.sin(), x.cos()


def version_of_sum(reducer):
    x = torch.randn(3, 4, requires_grad=True)
    parts = three_senders(x)
    if reducer is not None:
        for part in parts:
            part.grad_fn.register_hook(lambda given, _: reducer.see(given[0], once=True) and None)
    sum(parts).sum().backward()
    return x.grad._version


def test_a_sum_of_gradients_is_written_into_the_first_as_it_would_be():
    reducer = Reducer()
    assert version_of_sum(reducer) == version_of_sum(None) == 2
    assert len(drained(reducer)) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_versions_of_gradients_are_those_of_an_unwatched_backward(dtype):
    def versions(watched):
        torch.manual_seed(0)
        model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).to(dtype)
        x = torch.randn(2, 5, 16, dtype=dtype, requires_grad=True)
        session = probe.watch(model, live=False) if watched else contextlib.nullcontext()
        with session:
            model(x).square().sum().backward()
        return [x.grad._version, *(p.grad._version for p in model.parameters())]

    assert versions(watched=True) == versions(watched=False)


def test_a_gradient_that_is_handed_on_is_reduced_once():
    reducer, seen = Reducer(), []
    x = torch.randn(4, requires_grad=True)
    y = x.sin()
    z = y * 2
    z.grad_fn.register_hook(lambda given, _: seen.append(reducer.see(given[0], once=True)))
    y.register_hook(lambda g: seen.append(reducer.see(g, once=True)) and None)
    z.sum().backward()
    assert [each.reused for each in seen] == [False, True]
    statistics, _, _ = drained(reducer)[0]
    assert statistics["max"] == 2.0


def test_a_gradient_at_the_address_of_one_that_is_gone_is_read():
    reducer = Reducer()
    found = []

    def look(g):
        values = (torch.full((5,), value) for value in (1.0, 2.0, 3.0))
        found.extend(reducer.see(t, once=True).reused for t in values)

    x = torch.ones(3, requires_grad=True)
    x.register_hook(look)
    (x * 1).sum().backward()
    assert found == [False] * 3
    assert [statistics["max"] for statistics, _, _ in drained(reducer)] == [1.0, 2.0, 3.0]


def test_gradients_can_be_swapped_when_the_backward_has_ended():
    """`torch.utils.swap_tensors` refuses tensors that are weakly referenced."""
    model = nn.Linear(3, 3)
    x = torch.ones(2, 3, requires_grad=True)
    with probe.watch(model, live=False) as run:
        given = torch.autograd.grad(model(x).sum(), [x, *model.parameters()])
        torch.utils.swap_tensors(given[0], torch.zeros(2, 3))
        for p, g in zip(model.parameters(), given[1:], strict=True):
            p.grad = g
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            model.double()
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)
    assert model.weight.grad.dtype == torch.float64
    assert run.frame(role="grad_input", module="")["status"].tolist() == ["ok"]


@pytest.mark.parametrize("vectorize", [False, True])
def test_a_batch_of_gradients_is_said_to_be_one(vectorize):
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    x = torch.randn(3)
    bare = torch.autograd.functional.jacobian(model, x, vectorize=vectorize)
    with no_faults(), probe.watch(model, live=False) as run:
        seen = torch.autograd.functional.jacobian(model, x, vectorize=vectorize)
    assert torch.equal(seen, bare)
    rows = run.df[run.df["role"] == "grad_output"]
    assert set(rows["status"]) == ({"vmapped"} if vectorize else {"ok"})
