"""What the front end is told of findings: which, of which rows, and when it is written anew."""

from __future__ import annotations

import json
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.analysis.finding import KINDS, Finding
from probe_nb.view import found
from probe_nb.view.frame import FrameBuilder
from tests.unit.view.make_runs import hundred_layers


class Times(nn.Module):
    """Multiplies."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x


LARGE = [("body.1.0", "output"), ("body.1.1", "input")]
LOW = [("body.2", "output"), ("body", "output"), ("head", "input")]


def alarmed():
    """A run of which two rules of one's own are broken, each in the rows named above; no badge bit says so."""
    inner = nn.Sequential(Times(4.0), Times(0.5))
    body = nn.Sequential(Times(1.0), inner, Times(-10.0))
    model = nn.Sequential(OrderedDict(stem=Times(1.0), body=body, head=Times(-0.1)))
    alerts = {"large": "max > 3", "low": "min < -9"}
    with probe.watch(model, live=False, alerts=alerts) as run:
        for _ in range(3):
            model(torch.tensor([1.0, 0.5]))
    return run


@pytest.fixture(scope="module")
def found_two():
    """Such a run, with its builder."""
    run = alarmed()
    builder = FrameBuilder(run.columns, run.info)
    builder.update()
    return run, builder


def named(row, sites):
    return sites[row]["module"], sites[row]["role"]


def test_the_findings_are_those_of_the_run_and_name_the_same_rows(found_two):
    run, builder = found_two
    status, sites = json.loads(builder.status()), json.loads(builder.sites())["rows"]
    want, got = run.findings(), status["findings"]
    for name, column in (("text", "sentence"), ("severity",) * 2, ("advice",) * 2, ("step",) * 2):
        assert [each[name] for each in got] == want[column].tolist()
    assert [named(each["row"], sites) for each in got] == [LARGE[0], LOW[0]]
    assert [{named(row, sites) for row in each["others"]} for each in got] == [
        set(LARGE[1:]),
        set(LOW[1:]),
    ]
    assert [(each["sign"], each["word"]) for each in got] == [("!", "alert")] * 2
    assert got[0]["row"] == status["headline"]["row"]
    assert (status["further"], status["left"]) == ([1], 0)


def test_rows_count_in_those_that_are_chosen(found_two):
    _, builder = found_two
    first = json.loads(builder.status())["findings"][0]
    chosen = np.array([first["others"][0], first["row"]])
    again = json.loads(builder.status(chosen))["findings"][0]
    assert (again["row"], again["others"]) == (1, [0])
    left = json.loads(builder.status(chosen[:1]))["findings"][0]
    assert (left["row"], left["others"]) == (None, [0])
    assert left["text"] == first["text"]


def test_the_row_says_the_word_that_the_plain_table_says(found_two):
    run, builder = found_two
    first = json.loads(builder.status())["findings"][0]
    assert f"{first['sign']}&nbsp;{first['word']}</td>" in run._repr_mimebundle_()["text/html"]


def test_it_is_written_anew_only_when_the_rules_were_asked_again(monkeypatch):
    run = hundred_layers(bad=50, steps=2)
    builder = FrameBuilder(run.columns, run.info)
    builder.update()
    before = builder.status()
    monkeypatch.setattr(found, "told", None)
    assert builder.status() == before


def made(severity, kind="stuck", number=0):
    place = ("model", "a", "param", "w")
    return Finding(severity, kind, f"{kind} {number}", "", "", *place, 0, 1.0, 1.0, number, 0, (0,))


@pytest.mark.parametrize(
    ("findings", "further", "left"),
    [
        ([], [], 0),
        ([made("error")], [], 0),
        ([made("error"), made("warning", number=1), made("note", number=2)], [1], 0),
        ([made("warning", number=each) for each in range(5)], [1, 2], 2),
        # all is well, says the headline: notes are no worse than others
        ([made("note"), made("note", "loss_scale", 1), made("note", number=2)], [0, 2], 0),
        ([made("warning", number=each) for each in range(150)], [1, 2], 147),
    ],
)
def test_two_more_are_said_and_the_rest_is_counted(findings, further, left):
    told = found.told(findings)
    assert (told["further"], told["left"]) == (further, left)
    assert [each["row"] for each in told["findings"]] == [each.site for each in findings[:100]]


def test_every_kind_but_what_is_not_finite_has_a_sign_and_a_word():
    words = {kind: found.said(made("warning", kind)) for kind in KINDS}
    assert words.pop("non_finite") == ""
    assert all(len(said.split(" ", 1)) == 2 for said in words.values())
    # a badge and a finding that say the same are said once
    assert {
        words[kind] for kind in ("dead", "exploding", "vanishing", "overflow_risk", "saturated")
    } == {said for _, said in found.BADGED}
