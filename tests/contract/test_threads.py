"""Calls of one model from several threads at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import probe_nb as probe


class Triples(nn.Module):
    """A layer that waits for the other thread in the middle of its forward."""

    def __init__(self, meeting):
        super().__init__()
        self.lin = nn.Linear(1, 1, bias=False)
        self.meeting = meeting
        nn.init.constant_(self.lin.weight, 3.0)

    def forward(self, x):
        self.meeting.wait(timeout=200)
        y = self.lin(x)
        self.meeting.wait(timeout=200)
        return y


def test_forty_calls_in_two_threads_pair_each_input_with_its_own_output():
    model = Triples(threading.Barrier(2))
    with probe.watch(model, optimizer=torch.optim.SGD(model.parameters()), live=False) as run:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda n: calls(model, n), range(2)))
        assert len(run) > 0
    for module in ("", "lin"):
        rows = run.df[run.df["module"] == module]
        fed = rows[rows["role"] == "input"].set_index("call")["mean"].sort_index()
        gave = rows[rows["role"] == "output"].set_index("call")["mean"].sort_index()
        assert fed.index.tolist() == gave.index.tolist() == list(range(40))
        assert (gave == 3 * fed).all()
        assert sorted(fed) == list(range(40))


def calls(model, thread):
    for number in range(20):
        model(torch.tensor([[20.0 * thread + number]]))


def test_gradients_of_two_threads_belong_to_their_calls():
    model = Triples(threading.Barrier(2))
    optimizer = torch.optim.SGD(model.parameters())
    with (
        probe.watch(model, optimizer=optimizer, live=False) as run,
        ThreadPoolExecutor(2) as pool,
    ):
        list(pool.map(lambda n: trains(model, n), range(2)))
    rows = run.df[run.df["module"] == "lin"]
    fed = rows[rows["role"] == "input"].set_index("call")["mean"].astype(float)
    for role, factor in (("grad_output", 2.0), ("grad_input", 6.0)):
        gradient = rows[rows["role"] == role].set_index("call")["mean"].astype(float)
        assert gradient.index.is_unique
        assert (gradient.sort_index() == factor * (fed.sort_index() + 1)).all()
    assert len(rows[(rows["role"] == "param_grad") & ~rows["leaf"].str.endswith(".grad")]) == 20


def trains(model, thread):
    for number in range(10):
        x = torch.tensor([[10.0 * thread + number]], requires_grad=True)
        (model(x) * 2 * (x.detach() + 1)).sum().backward()


def test_a_session_opened_in_one_thread_is_closed_in_another():
    model = nn.Linear(2, 2)
    run = probe.start(model, live=False)
    model(torch.ones(1, 2))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(probe.stop).result() is run
    model(torch.ones(1, 2))
    assert len(run.frame(role="output")) == 1
