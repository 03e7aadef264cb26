"""A replay changes nothing: module, optimizer, inputs, generators, settings, a watch that is open."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

import probe_nb as probe
from tests.models import no_faults


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.drop, self.act = nn.BatchNorm1d(6), nn.Dropout(0.5), nn.ReLU(inplace=True)
        self.linear = nn.Linear(6, 6)
        self.count = 0

    def forward(self, x):
        self.count += 1
        return self.act(self.drop(self.norm(self.linear(x)))) + torch.randn(())


def state(model, optimizer):
    held = {
        name: (t.clone(), t._version, id(t)) for name, t in model.state_dict(keep_vars=True).items()
    }
    return (
        held,
        {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
        copy.deepcopy(optimizer.state_dict()),
        [(each.training, len(each._forward_hooks)) for each in model.modules()],
        [each.count for each in model.modules() if isinstance(each, Block)],
        torch.get_rng_state(),
        random.getstate(),
        np.random.get_state(),  # noqa: NPY002
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.backends.mha.get_fastpath_enabled(),
        torch.are_deterministic_algorithms_enabled(),
    )


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.numpy().tobytes() == other.numpy().tobytes()
    if isinstance(one, np.ndarray):
        return bool((one == other).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def held(model, optimizer):
    with torch.no_grad():
        return state(model, optimizer)


@pytest.mark.parametrize("path", ["(root)", "0.norm", "0.drop", "0.act", "0.linear"])
def test_nothing_is_changed_and_no_hook_of_the_users_runs(path):
    torch.manual_seed(0)
    model = nn.Sequential(Block(), nn.Linear(6, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    seen = []
    for each in model.modules():
        each.register_forward_hook(lambda *_: seen.append("forward"))
        each.register_forward_pre_hook(lambda *_: seen.append("before"))
    model[0].linear.register_full_backward_pre_hook(lambda *_: seen.append("backward"))
    roles = "input, output, grad_output, grad_input, param, buffer"
    with probe.watch(model, keep=probe.Keep("*", roles=roles), live=False) as run:
        model(torch.randn(8, 6, requires_grad=True)).square().sum().backward()
        optimizer.step()
    seen.clear()
    before = held(model, optimizer)
    with no_faults():
        found = run.replay(path, model)
    assert same(before, held(model, optimizer))
    assert seen == []
    assert found.df["run"].eq("run").all()
    assert found.verdict == ("not_judged" if path in ("(root)", "0.drop") else "within")


def test_hooks_that_stayed_behind_are_counted():
    model = nn.Linear(2, 2)
    with probe.watch(model, keep=probe.Keep("*", roles="input, output"), live=False) as run:
        model(torch.ones(1, 2))
    model.register_forward_hook(lambda *_: None)
    model.register_forward_pre_hook(lambda *_: None, with_kwargs=False)
    found = run.replay("(root)", model)
    assert found.notices == ("2 hooks of yours on it stayed behind and did not run",)


@pytest.mark.parametrize("level", ["module", "api", "mix"])
def test_a_watch_that_is_open_records_nothing_of_it(level):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    keep = probe.Keep("*", roles="input, output")
    with probe.watch(model, level=level, keep=keep, values=True, live=False) as run:
        model(torch.ones(3, 4))
        before = len(run)
        found = run.replay("0", model) if level != "api" else run.replay(api="Functional.linear")
        assert found.verdict == "within"
        assert len(run) == before
        model(torch.ones(3, 4))
    assert set(run.df["step"]) == {0, 1}


def test_modes_of_the_users_do_not_reach_it():
    class Makes(nn.Linear):
        def forward(self, x):
            return super().forward(x) + torch.arange(4, device=x.device) + torch.zeros(4)

    model = Makes(4, 4)
    with probe.watch(model, keep=probe.Keep("*", roles="input, output"), live=False) as run:
        model(torch.ones(3, 4))
    plain = run.replay("(root)", model)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"), torch.inference_mode():
        found = run.replay("(root)", model)
    assert found.truth().equal(plain.truth())
    assert found.verdict == "within"


def test_it_gives_the_same_each_time_whatever_the_seeds_are():
    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16))
    with probe.watch(model, keep=probe.Keep("*", roles="input, output"), live=False) as run:
        model(torch.randn(4, 16))
    torch.manual_seed(1)
    one = run.replay("(root)", model)
    torch.manual_seed(2)
    other = run.replay("(root)", model)
    assert one.df.equals(other.df)
