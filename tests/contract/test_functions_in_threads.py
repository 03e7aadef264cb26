"""At API level functions of a watched model are seen in whatever thread it runs; threads are left as they were."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import probe_nb as probe
from tests.models import no_faults


class Net(nn.Module):
    """Tells which modes were there while it ran, and fails where it is told to."""

    def __init__(self):
        super().__init__()
        self.fc, self.inside = nn.Linear(1, 1, bias=False), []
        nn.init.constant_(self.fc.weight, 3.0)

    def forward(self, x):
        self.inside.append(len(modes()))
        if x.item() < 0:
            raise ValueError("negative")
        return F.relu(self.fc(x)) + 1


def modes():
    return torch.overrides._get_current_function_mode_stack()


def watched(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return probe.watch(model, optimizer=optimizer, level="api", live=False)


def test_each_call_in_two_threads_has_a_number_of_its_own_and_its_own_output():
    model, left = Net(), []

    def run(first):
        for number in range(first, first + 20):
            model(torch.tensor([[float(number)]]))
        left.append(modes())

    with no_faults(), watched(model) as recorded:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(run, (0, 20)))
        model(torch.tensor([[40.0]]))
    assert left == [[], []]
    rows = recorded.frame(api="Functional.linear")
    fed = rows[(rows["role"] == "input") & (rows["leaf"] == "0")].set_index("call")["mean"]
    gave = rows[rows["role"] == "output"].set_index("call")["mean"]
    assert sorted(fed.index) == sorted(gave.index) == list(range(41))
    assert sorted(fed) == list(range(41))
    assert (gave.sort_index() == 3 * fed.sort_index()).all()
    assert set(rows["module"]) == {"fc"}


def test_what_a_thread_calls_outside_of_the_model_is_its_own_business():
    model = Net()

    def run():
        torch.ones(2).exp()
        model(torch.ones(1, 1))
        torch.ones(2).exp()

    with no_faults(), watched(model) as recorded:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert recorded.frame(role="output")["api"].tolist() == [
        *("Functional.linear", "Functional.relu", "Tensor.__add__"),
    ]


def test_a_forward_that_raises_in_a_thread_leaves_nothing_there():
    model = Net()

    def run():
        with pytest.raises(ValueError, match="negative"):
            model(torch.tensor([[-1.0]]))
        left = len(modes())
        model(torch.ones(1, 1))
        return left, len(modes())

    with no_faults(), watched(model), ThreadPoolExecutor(1) as pool:
        assert pool.submit(run).result() == (0, 0)
    assert model.inside == [1, 1]


def test_gradients_of_functions_in_a_thread_are_right():
    model = Net()

    def run(number):
        model(torch.tensor([[number]], requires_grad=True)).backward()

    with no_faults(), watched(model) as recorded, ThreadPoolExecutor(2) as pool:
        list(pool.map(run, (1.0, 2.0, 3.0)))
    rows = recorded.frame(api="Functional.linear", role="grad_input")
    weights = rows[rows["leaf"] == "1"]
    assert sorted(weights["mean"]) == [1.0, 2.0, 3.0]
    assert set(rows[rows["leaf"] == "0"]["mean"]) == {3.0}
