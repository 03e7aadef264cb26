"""Tensors of functions can be kept: chosen by name, by the module around them, by parts of names."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import probe_nb as probe
from probe_nb.errors import ConfigError, SelectionError
from tests.models import no_faults


class Net(nn.Module):
    """Two layers around a function."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 2), nn.Linear(2, 1)

    def forward(self, x):
        return self.last(F.relu(self.first(x)) * 3)


X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.25, -4.0]])


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


def watched(net, keep, level="api", **options):
    with no_faults(), probe.watch(net, level=level, keep=keep, live=False, **options) as run:
        net(X).sum().backward()
    return run


def kept(run):
    return {
        (a, m, r)
        for a, m, r in zip(*(run.kept()[c] for c in ("api", "module", "role")), strict=True)
    }


def test_a_function_is_kept_by_its_name_with_its_gradients(net):
    keep = probe.Keep("Functional.relu", roles=["input", "output", "grad_input", "grad_output"])
    run = watched(net, keep)
    hidden = net.first(X)
    assert torch.equal(run.tensor(api="Functional.relu"), hidden)
    assert torch.equal(run.tensor(api="Functional.relu", role="output"), hidden.relu())
    back = (net.last.weight * 3).expand(2, 2)
    assert torch.equal(run.tensor(api="Functional.relu", role="grad_output"), back)
    assert torch.equal(run.tensor(api="Functional.r*", role="grad_input"), back * (hidden > 0))
    assert {api for api, _, _ in kept(run)} == {"Functional.relu"}


def test_each_call_of_a_function_is_told_apart_by_number_and_by_module(net):
    run = watched(net, "Functional.linear")
    relu = net.first(X).relu() * 3
    assert torch.equal(run.tensor(api="Functional.linear", leaf="0"), X)
    assert torch.equal(run.tensor(api="Functional.linear", leaf="0", call=1), relu)
    assert torch.equal(run.tensor("last", api="Functional.linear", leaf="1"), net.last.weight)


def test_patterns_add_and_take_out(net):
    run = watched(net, "Functional.*, !Functional.linear, Tensor.__mul__")
    assert {api for api, _, _ in kept(run)} == {"Functional.relu", "Tensor.__mul__"}


def test_at_api_level_a_module_keeps_the_functions_called_in_it(net):
    assert kept(watched(net, "first")) == {("Functional.linear", "first", "input")}


def test_at_mixed_level_modules_and_functions_are_kept_each_by_their_names(net):
    run = watched(net, "first, Functional.relu", level="mix")
    assert kept(run) == {("", "first", "input"), ("Functional.relu", "", "input")}
    assert torch.equal(run.tensor("first"), X)


def test_a_star_keeps_all_that_is_recorded(net):
    run = watched(net, probe.Keep("*", roles="output"), level="mix")
    names = {api or module for api, module, _ in kept(run)}
    functions = {"Functional.linear", "Functional.relu", "Tensor.__mul__", "Tensor.sum"}
    assert names == {"", "first", "last"} | functions


def test_parts_of_names_choose_single_calls(net):
    keep = probe.Keep(
        "*", names="Functional.linear.1.forward, Module.first", roles="input,grad_input"
    )
    run = watched(net, keep, level="mix")
    assert kept(run) == {("Functional.linear", "last", "input"), ("", "first", "input")}


def test_without_a_model_functions_are_kept():
    with probe.watch(level="api", keep="Torch.add", live=False) as run:
        torch.add(torch.ones(2), 2)
    assert run.tensor(api="Torch.add").tolist() == [1.0, 1.0]
    with probe.watch(level="api", keep="*", live=False) as run:
        torch.add(torch.ones(2), 2)
    assert run.tensor(api="Torch.add").tolist() == [1.0, 1.0]


def test_a_function_of_the_users_is_kept_by_the_name_it_was_given():
    import types

    mine = types.SimpleNamespace(__name__="mine", double=lambda x: x + x)
    with probe.watch(level="api", keep="mine.double", live=False) as run:
        run.register_custom_api(mine, "double")
        mine.double(torch.ones(3))
    assert run.tensor(api="mine.double").tolist() == [1.0, 1.0, 1.0]


def test_what_is_kept_of_functions_is_read_from_a_file(net, tmp_path):
    run = watched(net, "Functional.relu")
    run.save(tmp_path / "run.parquet")
    again = probe.load(tmp_path / "run.parquet")
    assert torch.equal(again.tensor(api="Functional.relu"), net.first(X))


@pytest.mark.parametrize(
    ("keep", "level", "error", "words"),
    [
        ("Functional.rleu", "api", ConfigError, "`Functional.relu`"),
        ("Functional.relu", "module", SelectionError, "Functional.relu"),
        ("frist", "mix", SelectionError, "`first`"),
        ("Tensor.dim", "api", ConfigError, "only asks"),
    ],
)
def test_a_name_that_nothing_has_is_refused(net, keep, level, error, words):
    with pytest.raises(error) as caught:
        probe.watch(net, level=level, keep=keep, live=False).__enter__()
    assert words in str(caught.value)


def test_what_was_not_kept_is_told_in_words(net):
    run = watched(net, "Functional.relu")
    with pytest.raises(SelectionError, match=r"`Functional\.relu`"):
        run.tensor(api="Functional.rleu")
    with pytest.raises(SelectionError, match="No tensor of `first`"):
        run.tensor("first")
    with pytest.raises(SelectionError, match="give it as text"):
        run.tensor()
