"""Whatever was taken as seen has the numbers that reducing it again would have given.

The same training is watched twice, with and without looking tensors up: every row must agree.
"""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import probe_nb as probe
from tests import measuring


class Block(nn.Module):
    """A transformer layer with what makes tensors hard to tell apart."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.attention = nn.MultiheadAttention(d, 2, dropout=0.1, batch_first=True)
        self.first, self.second = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.act = nn.ReLU(inplace=True)
        self.pass_on = nn.Identity()
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        h, _ = self.attention(h, h, h)
        x = x + h
        h = self.act(self.first(self.pass_on(x)))
        h = self.drop(self.second(h))
        h += x  # in place on what the dropout returned
        return h


class Transformer(nn.Module):
    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(3))
        self.head = nn.Linear(d, 20, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for number, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if number == 1 else block(x)
        return self.head(x)


def trained(*, reduce_once: bool) -> probe.Run:
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with probe.watch(model, optimizer=optimizer, reduce_once=reduce_once) as run:
        for _ in range(4):
            for _ in range(2):  # two micro steps
                ids = torch.randint(0, 20, (2, 7))
                logits = model(ids[:, :-1])
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return run


@pytest.fixture(scope="module")
def runs():
    measuring.compiled()  # so that no other kernel takes over between the two
    return trained(reduce_once=True), trained(reduce_once=False)


def test_every_reused_row_equals_a_fresh_reduction(runs):
    reused, fresh = runs
    both = [run.df.drop(columns="reused") for run in runs]
    pd.testing.assert_frame_equal(*both, check_exact=True)
    for row in range(len(reused)):
        assert reused.columns.histogram(row) == fresh.columns.histogram(row), both[0].iloc[row]


def test_the_audit_has_something_to_say(runs):
    reused, fresh = runs
    seen = reused.df[reused.df["direction"] != "optimizer"]
    assert seen["reused"].sum() > len(seen) / 5
    assert not fresh.df["reused"].any()
    roles = set(reused.df[reused.df["reused"]]["role"])
    assert {"input", "output", "grad_output"} <= roles


def test_parameters_are_never_reused(runs):
    frame = runs[0].frame(role="param")
    assert len(frame)
    assert not frame["reused"].any()
