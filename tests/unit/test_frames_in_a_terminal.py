"""A frame in a terminal of 80 columns shows what was asked for; pandas leaves out the middle."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from torch import nn

import probe_nb as probe


class Net(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.body, self.norm, self.unused = nn.Linear(4, 4), nn.LayerNorm(4, eps), nn.Linear(4, 4)

    def forward(self, x):
        return self.norm(self.body(x))


def recorded(eps=1e-5):
    torch.manual_seed(0)
    net, x = Net(eps), torch.randn(8, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    keep = probe.Keep("*", roles="input, output, param")
    with probe.watch(net, optimizer=optimizer, keep=keep, stacks=True) as run:
        probe.save({"rate": 0.01}, "settings")
        net(x).square().sum().backward()
        optimizer.step()
    return run, net


@pytest.fixture(scope="module")
def frames():
    run, net = recorded()
    other, _ = recorded(eps=0.1)
    comparison = probe.compare(run, other)
    return {
        "coverage": run.coverage(),
        "calls": run.calls(),
        "updates": run.updates(),
        "kept": run.kept(),
        "values": run.values(),
        "replay": run.replay("norm", net).df,
        "df": comparison.df,
        "profile": comparison.profile(),
    }


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("coverage", ["module", "reason"]),
        ("calls", ["module", "api", "step"]),
        ("updates", ["module", "parameter", "step", "ratio"]),
        ("kept", ["module", "role", "leaf", "step"]),
        ("values", ["module", "api", "leaf", "value"]),
        ("replay", ["run", "role", "leaf", "verdict"]),
        ("df", ["module", "role", "verdict"]),
        ("profile", ["module", "difference", "verdict"]),
    ],
)
def test_what_was_asked_for_is_seen_in_80_columns(frames, name, asked):
    with pd.option_context("display.width", 80, "display.max_columns", 0):
        head = str(frames[name]).splitlines()[0].split()
    assert [each for each in head if each in asked] == asked
