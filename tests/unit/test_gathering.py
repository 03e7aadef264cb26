"""What comes from other processes is bytes, and may be anything."""

from __future__ import annotations

import json
import struct

import pytest
import torch

import probe_nb as probe
from probe_nb import distributed
from probe_nb.errors import ConfigError, ProbeWarning, SelectionError
from probe_nb.run import merge


@pytest.fixture
def run():
    model = torch.nn.Linear(2, 1)
    with probe.watch(model, live=False, keep="(root)") as run:
        model(torch.ones(2, 2))
    return run


def gathered(*answers):
    found = distributed._Gathered("engine", len(answers), None)
    for number, data in enumerate(answers):
        found.take(number, data)
    return found.run()


def framed(head, body=b""):
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + body


def test_what_is_packed_comes_out_as_it_was(run):
    data = distributed._packed(lambda: run)
    both = gathered(data, data)
    assert both.df["rank"].tolist() == [0, 1] * len(run)
    assert torch.equal(both.tensor("(root)", rank=1), torch.ones(2, 2))
    assert both.info.notices == []


BAD = {
    "nothing": b"",
    "too short": b"\0" * 7,
    "a length beyond the end": b"\xff" * 64,
    "no text": framed(b"\xff\xfe"),
    "text of something else": framed([1, 2]),
    "text without end": framed(b"[" * 100_000),
    "another file": framed({"files": [["../../evil", 1]]}, b"x"),
    "less than nothing": framed({"files": [["run.parquet", -5]]}, b"x"),
    "more than there is": framed({"files": [["run.parquet", 10**9]]}, b"x"),
    "no run": framed({"files": [["run.parquet", 1]]}, b"x"),
    "no file": framed({"files": []}),
}


@pytest.mark.parametrize("kind", BAD)
def test_bytes_that_are_no_run_are_said_and_the_others_come(run, kind):
    data = distributed._packed(lambda: run)
    with pytest.warns(ProbeWarning, match="Engine 1 gave no run: what came is damaged"):
        found = gathered(data, BAD[kind])
    assert set(found.df["rank"]) == {0}
    with pytest.raises(SelectionError, match="nothing to gather"):
        gathered(BAD[kind])


def test_a_run_that_was_cut_short_is_none(run):
    data = distributed._packed(lambda: run)
    with pytest.warns(ProbeWarning, match="Engine 1 gave no run"):
        assert set(gathered(data, data[:-50]).df["rank"]) == {0}


def test_a_reason_is_handed_on():
    def fails():
        raise OSError("no room")

    with pytest.raises(SelectionError, match=r"Engine 0 gave no run: OSError\('no room'\)"):
        gathered(distributed._packed(fails))


def test_the_runs_that_are_merged_stay_as_they_are(run):
    both = merge([run, run])
    assert torch.equal(both.tensor("(root)", rank=0), both.tensor("(root)", rank=1))
    assert run.kept()["rank"].isna().all()
    assert run.df["rank"].isna().all()


def test_a_process_alone_has_its_own_run(run):
    assert probe.gather(run) is run
    with pytest.raises(ConfigError, match="has joined no others"):
        probe.gather(None)
