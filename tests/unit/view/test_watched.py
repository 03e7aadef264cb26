"""Views of runs that were really watched."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import probe_nb as probe
from probe_nb.analysis.verdict import verdict
from probe_nb.view import report
from probe_nb.view.frame import FrameBuilder
from tests.unit.view.test_frame import check_against_df


class Block(nn.Module):
    """A residual block whose last normalisation begins at zero."""

    def __init__(self, width):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        nn.init.zeros_(self.norm2.weight)

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(x + y)


class Decoder(nn.Module):
    """A small causal transformer: its mask holds -inf on purpose."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.embed, self.layers, self.head = (
            nn.Embedding(20, 16),
            nn.TransformerEncoder(layer, 2),
            nn.Linear(16, 20),
        )

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.layers(self.embed(x), mask=mask, is_causal=True))


def digits():
    conv = [
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
    ]
    return nn.Sequential(*conv, nn.Linear(36, 10)), torch.rand(32, 1, 8, 8), torch.arange(32) % 10


def resnet():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), *(Block(8) for _ in range(3)), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    return model, torch.randn(8, 3, 8, 8), torch.arange(8)


def decoder():
    tokens = torch.randint(0, 20, (4, 8))
    return Decoder(), tokens, tokens.roll(1, 1)


def train(model, x, y, steps, **options):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with probe.watch(model, optimizer=optimizer, **options) as run:
        for _ in range(steps):
            scores = model(x)
            loss = F.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return run


@pytest.mark.parametrize("make", [digits, resnet, decoder])
def test_a_healthy_model_raises_no_alarm(make):
    torch.manual_seed(0)
    run = train(*make(), steps=40)
    found = verdict(run.columns, run.info)
    assert found.kind == "ok", found
    assert found.sentence.startswith("40 steps,")


def test_every_number_of_the_frame_is_in_the_dataframe():
    run = train(*digits(), steps=3)
    builder = FrameBuilder(run.columns, run.info)
    builder.update()
    check_against_df(builder, run)
    assert builder.tally.rows == len(run)


def test_a_nan_is_found_where_it_was_born():
    class Log(nn.Module):
        def forward(self, x):
            return torch.log(x)

    model = nn.Sequential(nn.Linear(4, 4), Log(), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].weight.fill_(1.0)  # what goes into the logarithm is negative, whatever the seed
    with probe.watch(model) as run:
        model(torch.ones(3, 4) * torch.tensor([-100.0, 1.0, 1.0, 1.0]))
    found = verdict(run.columns, run.info)
    assert found.sentence == "NaN first appeared at step 0 in 1 (forward output)"
    assert "the inputs of this call were finite, so it was born here" in found.detail
    assert "NaN first appeared" in report.bundle(run)["text/html"]


def test_an_exception_of_the_users_is_told_in_the_report():
    class Bug(nn.Module):
        def forward(self, x):
            raise ValueError("user bug")

    model = nn.Sequential(nn.Linear(4, 4), Bug())
    watched = []
    with pytest.raises(ValueError, match="user bug"), probe.watch(model) as run:  # noqa: PT012
        watched.append(run)
        model(torch.ones(1, 4))
    assert "ValueError" in report.bundle(watched[0])["text/plain"]


def test_a_watch_in_which_nothing_ran_says_so():
    with probe.watch(nn.Linear(2, 2)) as run:
        pass
    assert verdict(run.columns, run.info).kind == "empty"
    assert "never called" in repr(run)


def calls_of(action):
    """Count the calls of Python functions while it runs."""
    made = []
    sys.setprofile(lambda frame, event, arg: made.append(1) if event == "call" else None)
    try:
        action()
    finally:
        sys.setprofile(None)
    return len(made)


def test_a_summary_of_many_records_takes_hardly_more_than_that_of_few():
    """Each record is looked at by numpy, and none by a function of its own."""
    model, x, y = digits()
    few, many = (train(model, x, y, steps=steps) for steps in (10, 60))
    assert calls_of(lambda: repr(many)) < 2 * calls_of(lambda: repr(few))
