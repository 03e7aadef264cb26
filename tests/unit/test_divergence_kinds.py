"""Kinds of divergence that planted cases brought to light, each by a model of its own."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import probe_nb as probe


class Between(nn.Module):
    """Two layers, and something of its own between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.factor = nn.Linear(8, 8), nn.Linear(8, 8), 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)) * self.factor)


def trained(model: nn.Module, batches: list[Any], optimizer: Any = None, **options: Any) -> Any:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    with probe.watch(model, optimizer=optimizer, **options) as run:
        for batch in batches:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    return run


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def dumped(run: Any, path: Any) -> Any:
    return run.write_dump(path, task="statistics", extras=False)


def test_whole_numbers_in_another_order_are_the_same():
    model = nn.Sequential(nn.Embedding(5_000, 4))
    ids = torch.randint(0, 5_000, (4_097,))
    with probe.watch(model) as one:
        model(ids)
    with probe.watch(model) as two:
        model(ids.sort().values)
    found = probe.compare(one, two)
    assert found.fed_same
    assert found.divergences == []


def test_a_whole_number_that_differs_is_told_even_where_sums_hardly_see_it():
    model = nn.Sequential(nn.Embedding(5_000, 4))
    ids = torch.randint(1, 4_000, (4_097,))
    other = ids.clone()
    ids[17], other[17] = 4_001, 4_002
    with probe.watch(model) as one:
        model(ids)
    with probe.watch(model) as two:
        model(other)
    found = probe.compare(one, two)
    assert not found.fed_same
    first = found.first_divergence()
    assert (first.phase, first.role, first.measure) == ("fed", "input", "exact")


@pytest.mark.parametrize("way", ["dump", "select"])
def test_the_code_around_two_calls_is_named_where_its_own_call_was_not_recorded(tmp_path, way):
    model, x = Between(), torch.randn(16, 8)
    other = copy.deepcopy(model)
    other.factor = 1.5
    if way == "select":
        runs: Any = [trained(m, [x], select=["first", "second"]) for m in (model, other)]
    else:
        runs = [dumped(trained(m, [x]), tmp_path / n) for m, n in ((model, "a"), (other, "b"))]
    first = probe.compare(*runs).first_divergence()
    assert (first.module, first.between, first.phase) == ("", ("first", "second"), "forward")
    assert "in the code of (root)" in first.sentence
    assert "between first and second" in first.sentence


def test_the_code_is_that_of_the_path_that_both_calls_have_in_common():
    model, x = nn.Sequential(nn.Linear(8, 8), Between()), torch.randn(16, 8)
    other = copy.deepcopy(model)
    other[1].factor = 1.5
    runs = [trained(m, [x], select="type:Linear") for m in (model, other)]
    first = probe.compare(*runs).first_divergence()
    assert (first.module, first.between) == ("1", ("1.first", "1.second"))


def test_what_lies_between_two_modules_of_a_list_is_the_code_of_what_holds_the_list():
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.factor = nn.ModuleList(nn.Linear(8, 8) for _ in range(2)), 1.0

        def forward(self, x: Tensor) -> Tensor:
            return self.layers[1](self.layers[0](x) * self.factor)

    model, x = nn.ModuleDict({"inner": Listed()}), torch.randn(16, 8)
    other = copy.deepcopy(model)
    other["inner"].factor = 1.5
    runs = []
    for each in (model, other):
        with probe.watch(each, select="type:Linear") as run:
            each["inner"](x)
        runs.append(run)
    first = probe.compare(*runs).first_divergence()
    assert (first.module, first.between) == ("inner", ("inner.layers.0", "inner.layers.1"))


def test_a_later_batch_that_differs_is_what_was_fed():
    model, batches = nn.Sequential(nn.Linear(8, 8)), [torch.randn(16, 8) for _ in range(3)]
    other = copy.deepcopy(model)
    changed = [batches[0], batches[1] * 1.1, batches[2]]
    found = probe.compare(trained(model, batches), trained(other, changed))
    first = found.first_divergence()
    assert (first.phase, first.step, first.module, first.role) == ("fed", 1, "", "input")
    assert first.sentence.startswith("not fed the same at step 1")
    assert not found.fed_same
    assert "inputs: 1 of " in found.fed_same.sentence


def test_what_a_second_forward_of_a_step_is_given_is_fed_too():
    model, x = nn.Sequential(nn.Linear(8, 8)), torch.randn(16, 8)
    runs = []
    for factor in (1.0, 1.1):
        with probe.watch(model) as run:
            model(x)
            model(x * factor)
        runs.append(run)
    first = probe.compare(*runs).first_divergence()
    assert (first.phase, first.role) == ("fed", "input")


def test_nan_that_an_optimizer_makes_on_one_side_is_told():
    model, x = nn.Sequential(nn.Linear(8, 8)), torch.randn(16, 8)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for each in (model, other):
            each[0].weight[0], each[0].bias[0] = 0, 0  # outputs 0, whose square has gradient 0
    one = trained(model, [x], torch.optim.Adam(model.parameters(), 0.1))
    two = trained(other, [x], torch.optim.Adam(other.parameters(), 0.1, eps=0.0))
    assert math.isnan(other[0].bias[0].item())
    assert not math.isnan(model[0].bias[0].item())
    found = probe.compare(one, two)
    first = found.first_divergence()
    assert (first.phase, first.step) == ("optimizer", 0)
    rows = first.rows[first.rows["role"] == "update"]
    assert "NaN in the candidate alone" in set(rows["reason"])


class Attention(nn.Module):
    """Queries, keys and values of one layer, the bias of which begins with 0."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.parts = nn.Linear(32, 96), 1
        nn.init.zeros_(self.qkv.bias)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        pieces = zip(k.chunk(self.parts, -1), q.chunk(self.parts, -1), strict=True)
        scores = sum(b @ a.transpose(-1, -2) for a, b in pieces)
        return 100 * (scores / 32**0.5).softmax(-1) @ v


def test_parameters_of_a_dump_that_moved_by_noise_are_no_divergence(tmp_path):
    """The bias of the keys has a gradient of 0, of which rounding leaves a sign by chance."""
    model, batches = Attention(), [torch.randn(4, 12, 32) for _ in range(2)]
    other = copy.deepcopy(model)
    other.parts = 2  # the same sums in another order
    runs = [trained(m, batches, torch.optim.Adam(m.parameters(), 0.01)) for m in (model, other)]
    apart = (model.qkv.bias - other.qkv.bias).detach().abs()
    assert apart[32:64].max() > 0.001  # a tenth of a step, by sign
    assert probe.compare(*runs).divergences == []
    paths = [dumped(run, tmp_path / name) for run, name in zip(runs, "ab", strict=True)]
    assert probe.compare(*paths).divergences == []


def test_parameters_of_a_dump_that_the_same_gradients_moved_otherwise_are(tmp_path):
    model, batches = nn.Sequential(nn.Linear(8, 8)), [torch.randn(16, 8) for _ in range(2)]
    other = copy.deepcopy(model)
    runs = [
        trained(m, batches, torch.optim.Adam(m.parameters(), rate))
        for m, rate in ((model, 0.01), (other, 0.011))
    ]
    paths = [dumped(run, tmp_path / name) for run, name in zip(runs, "ab", strict=True)]
    first = probe.compare(*paths).first_divergence()
    assert (first.phase, first.step, first.role, first.module) == ("optimizer", 1, "param", "0")


class Later(nn.Module):
    """A curve that is one percent higher in one of its calls."""

    def __init__(self, wrong: int) -> None:
        super().__init__()
        self.calls, self.wrong = 0, wrong

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return nn.functional.softplus(x) * (1.01 if self.calls == self.wrong else 1.0)


def stepped(wrong: int, first: nn.Module, batches: list[Tensor], **options: Any) -> Any:
    model = nn.Sequential(first, Later(wrong), nn.Tanh())
    with probe.watch(model, **options) as run:
        for batch in batches:
            model(batch)
    return run


@pytest.mark.parametrize("wrong", [1, 2, 3])
@pytest.mark.parametrize("way", ["", "saved"])
def test_without_parameters_a_fault_of_a_later_step_is_named(wrong, way, tmp_path):
    batches = [torch.randn(16, 8) for _ in range(3)]
    one, two = stepped(0, nn.Tanh(), batches), stepped(wrong, nn.Tanh(), batches)
    if way == "saved":
        one = probe.load(one.save(tmp_path / "one.parquet"))
    first = probe.compare(one, two).first_divergence()
    assert (first.phase, first.module, first.step) == ("forward", "1", wrong - 1)
    assert first.came_in == 0
    assert first.difference == pytest.approx(0.01, rel=0.02)


def test_without_parameters_a_batch_that_differs_later_was_not_fed_the_same():
    batches = [torch.randn(16, 8) for _ in range(3)]
    other = [*batches[:2], batches[2] * 1.5]
    found = probe.compare(stepped(0, nn.Tanh(), batches), stepped(0, nn.Tanh(), other))
    assert not found.fed_same
    assert [(d.phase, d.step) for d in found.divergences] == [("fed", 2)]


class Hidden(nn.Module):
    """A layer that an optimizer moves, whose parameters nobody records, and curves behind it."""

    def __init__(self, wrong: int) -> None:
        super().__init__()
        self.layer, self.curves = nn.Linear(8, 8), nn.Sequential(nn.Tanh(), Later(wrong))

    def forward(self, x: Tensor) -> Tensor:
        return self.curves(self.layer(x))


def unseen(wrong: int, rate: float) -> Any:
    torch.manual_seed(1)
    model = Hidden(wrong)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    with probe.watch(model, roles="input, output") as run:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()
    return run


def test_where_parameters_are_not_recorded_what_has_none_is_judged_all_the_same():
    first = probe.compare(unseen(0, 1e-2), unseen(3, 1e-2)).first_divergence()
    assert (first.module, first.step) == ("curves.1", 2)


def test_where_parameters_are_not_recorded_what_they_go_into_is_not_to_blame():
    found = probe.compare(unseen(0, 1e-2), unseen(0, 2e-2))
    assert (found.df["verdict"] == "diverged").any()
    assert found.divergences == []
