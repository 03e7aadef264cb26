"""Lazy modules: their parameters come with the first call, and their class changes then."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import probe_nb as probe
from tests import oracle

PLACES = {
    "root": (lambda lazy: lazy, ""),
    "inside": (lambda lazy: nn.Sequential(nn.ReLU(), lazy), "1"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("lazy", [nn.LazyLinear, lambda n: nn.LazyConv1d(n, 1)])
def test_each_parameter_of_a_lazy_module_has_one_row_a_step_under_the_class_it_became(lazy, place):
    put, path = PLACES[place]
    layer = lazy(4)
    model = put(layer)
    with probe.watch(model, live=False) as run:
        for _ in range(2):
            model(torch.randn(3, 5, 5)).sum().backward()
            run.step()
    rows = run.frame(module=path)
    assert set(rows["type"]) == {type(layer).__name__}
    parameters = rows[rows["role"] == "param"]
    found = [(int(r.step), str(r.leaf), r.absmax) for r in parameters.itertuples()]
    largest = {
        name: oracle.expected(p.detach()).statistics["absmax"]
        for name, p in layer.named_parameters()
    }
    assert found == [(step, name, largest[name]) for step in range(2) for name in largest]


def test_a_lazy_root_that_was_built_in_a_step_that_was_not_recorded_is_named_rightly():
    model = nn.LazyLinear(4)
    with probe.watch(model, live=False, steps="1") as run:
        for _ in range(2):
            model(torch.randn(3, 5)).sum().backward()
            run.step()
    assert set(run.df["type"]) == {"Linear"}
    assert list(run.frame(role="param")["leaf"]) == ["weight", "bias"]
