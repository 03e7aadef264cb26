"""Rows of an optimizer's step, as every view shows them."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.view import html, text
from probe_nb.view.frame import FrameBuilder
from probe_nb.view.rows import rows_of


@pytest.fixture
def trained():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    optimizers = [
        torch.optim.Adam(model[0].parameters(), lr=0.1),
        torch.optim.SGD(model[2].parameters(), lr=0.1),
    ]
    with probe.watch(model, optimizer=optimizers, select="0,2", live=False) as run:
        for _ in range(60):  # so that the count of steps is larger than every value
            model(torch.ones(2, 4)).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    return run


def builder_of(run):
    builder = FrameBuilder(run.columns, run.info)
    builder.update()
    return builder


def test_they_stand_under_their_module_and_an_optimizers_own_under_its_name(trained):
    builder = builder_of(trained)
    rows = rows_of(builder, range(builder.tally.sites))
    about = builder.tally.columns.tables.sites.values
    shown = {
        (row.module, row.tensor)
        for row, site in zip(rows, about, strict=True)
        if site.direction == "optimizer"
    }
    assert ("0", "gradient of weight that the optimizer saw") in shown
    assert ("0", "parameter weight after the step") in shown
    assert ("0", "update of the parameter weight") in shown
    assert ("0", "optimizer state weight.exp_avg") in shown
    assert ("optimizer (Adam)", "optimizer state group0.lr") in shown
    assert ("optimizer.1 (SGD)", "optimizer state skipped") in shown
    assert len({(row.module, row.tensor) for row in rows}) == len(rows)


def test_the_inspector_is_told_the_same(trained):
    sites = json.loads(builder_of(trained).sites())["rows"]
    own = {(s["module"], s["type"]) for s in sites if s["leaf"] == "group0.lr"}
    assert own == {("optimizer", "Adam"), ("optimizer.1", "SGD")}


def test_they_count_as_no_modules_and_their_numbers_as_no_values(trained):
    builder = builder_of(trained)
    assert "2 modules" in html.summary_line(builder)
    assert json.loads(builder.status())["modules"] == 2
    sentence = builder.verdict().sentence
    assert "optimizer" not in sentence
    assert "2 modules" in text.lines_of(builder)
    assert trained.info.modules == 4
    assert set(trained.coverage()["module"]) == {"", "1"}


def test_a_history_does_not_join_what_the_optimizer_saw_with_what_came_before(trained):
    for role in ("param", "param_grad"):
        rows = trained.frame(module="0", role=role, leaf="weight")
        before = rows[rows["direction"] != "optimizer"]
        assert len(before) == 60
        assert len(rows) == 120
        histories = trained.history("0", role, "l2", leaf="weight")
        assert histories.tolist() == before["l2"].tolist()
    assert trained.histogram("0", "param", leaf="weight").total == 12


def test_a_nan_that_an_optimizer_makes_is_placed_at_its_step():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.inf)
    with probe.watch(model, optimizer=optimizer, live=False) as run:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    finding = builder_of(run).verdict()
    assert finding.kind == "bad"
    site = run.columns.tables.sites.values[finding.site]
    assert site.direction == "optimizer"
