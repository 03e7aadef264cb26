"""What the inspector is told of two runs: held against `comparison.df` and the layout in `wire`."""

from __future__ import annotations

import json
import struct
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.terms import COUNTS, STATISTICS
from probe_nb.view import report, wire
from probe_nb.view.comparing import Comparing
from tests.unit.view.make_runs import Book

STEPS = 3


class Scale(nn.Module):
    """Multiplies, and may have a module of its own."""

    def __init__(self, *, more: bool):
        super().__init__()
        self.by = 1.0
        self.more = nn.Identity() if more else None

    def forward(self, x):
        x = x * self.by
        return x if self.more is None else self.more(x)


def watched(fault=0.0, *, more=False, lost=""):
    """Run a chain of four modules; the second one is wrong by a factor that grows."""
    parts = {"a": nn.Tanh(), "b": Scale(more=more), "c": nn.Tanh(), "d": nn.Tanh()}
    model = nn.Sequential(OrderedDict((n, m) for n, m in parts.items() if n != lost))
    generator = torch.Generator().manual_seed(0)
    with probe.watch(model, live=False) as run:
        for step in range(STEPS):
            parts["b"].by = 1.0 + fault * (step + 1)
            model(torch.randn(8, 8, generator=generator))
    return run


@pytest.fixture
def parted():
    return Comparing(probe.compare(watched(), watched(0.01, more=True)))


def frame_at(data: bytes, at: int) -> tuple[dict, int]:
    """Read a frame of a run by its description."""
    magic, version, rows, columns, steps, entries, *_ = struct.unpack_from("<8I", data, at)
    assert (magic, version, columns) == (wire.MAGIC, 1, len(wire.COLUMNS))
    at += 32
    found = {}
    blocks = (
        *(("table", "<f8", columns * rows), ("spark", "<f8", rows * steps)),
        *(("offsets", "<u4", rows + 1), ("bins", "<u2", entries), ("counts", "<f4", entries)),
    )
    for name, kind, number in blocks:
        assert at % 8 == 0
        found[name] = np.frombuffer(data, kind, number, at)
        at += -(-found[name].nbytes // 8) * 8
    table = dict(zip(wire.COLUMNS, found.pop("table").reshape(columns, rows), strict=True))
    return table | found | {"spark": found["spark"].reshape(rows, steps)}, at


def decoded(data: bytes) -> tuple[dict, dict, dict]:
    """Read pairs, candidate and baseline by the description in `wire`."""
    magic, version, rows, columns, *rest = struct.unpack_from("<8I", data)
    assert (magic, version, columns, rest) == (wire.MAGIC, 2, len(wire.PAIRS), [0] * 4)
    found = np.frombuffer(data, "<f8", columns * rows, 32).reshape(columns, rows)
    candidate, at = frame_at(data, 32 + 8 * columns * rows)
    baseline, end = frame_at(data, at)
    assert end == len(data)
    return dict(zip(wire.PAIRS, found, strict=True)), candidate, baseline


def told(frames: Comparing) -> list[tuple[dict, int]]:
    sites = json.loads(frames.sites())["rows"]
    return list(zip(sites, range(len(sites)), strict=True))


def test_a_row_shows_a_pair_of_its_site_and_the_numbers_of_both_runs(parted):
    pairs, candidate, baseline = decoded(parted.frame())
    df = parted.comparison.df
    verdicts = json.loads(parted.status())["comparison"]["verdicts"]
    for site, row in told(parted):
        mine = df[(df["module"] == site["module"]) & (df["role"] == site["role"])]
        step = np.fmax(candidate["step"][row], baseline["step"][row])
        (want,) = mine[mine["step"] == step].to_dict("records")
        assert verdicts[int(pairs["verdict"][row])] == want["verdict"]
        assert pairs["diverged"][row] == (mine["verdict"] == "diverged").sum()
        assert pairs["pairs"][row] + pairs["one_sided"][row] == len(mine) == STEPS
        for side, table in (("baseline", baseline), ("candidate", candidate)):
            for name in (*STATISTICS, *COUNTS):
                number = want[f"{name}_{side}"]
                number = np.nan if not isinstance(number, (int, float)) else number
                np.testing.assert_equal(table[name][row], float(number))


def test_a_diverged_row_shows_the_step_in_which_it_first_did(parted):
    pairs, candidate, _ = decoded(parted.frame())
    status = json.loads(parted.status())
    at = {(site["module"], site["role"]): row for site, row in told(parted)}
    origin = at["b", "output"]
    assert status["headline"]["row"] == origin
    assert status["headline"]["kind"] == "bad"
    assert pairs["origin"][origin] == 1
    assert candidate["step"][origin] == 0
    assert pairs["diverged"][origin] == STEPS
    assert pairs["follows"][at["c", "input"]] == 1
    assert pairs["follows"][at["a", "output"]] == 0
    assert candidate["badges"][at["c", "input"]] == 256


def test_rows_stand_in_the_order_of_execution_those_of_one_side_at_their_place(parted):
    names = [(site["module"], site["role"]) for site, _ in told(parted)]
    assert names == [
        *(("", "input"), ("a", "input"), ("a", "output"), ("b", "input")),
        *(("b.more", "input"), ("b.more", "output"), ("b", "output"), ("c", "input")),
        *(("c", "output"), ("d", "input"), ("d", "output"), ("", "output")),
    ]
    pairs, candidate, baseline = decoded(parted.frame())
    verdicts = json.loads(parted.status())["comparison"]["verdicts"]
    assert verdicts[int(pairs["verdict"][5])] == "only_in_candidate"
    assert np.isnan(baseline["l2"][5])
    assert candidate["l2"][5] > 0
    assert pairs["one_sided"][5] == STEPS


def test_histograms_and_trends_are_those_of_each_run(parted):
    _, candidate, baseline = decoded(parted.frame())
    row = next(r for s, r in told(parted) if (s["module"], s["role"]) == ("b", "output"))
    for side, table in (("baseline", baseline), ("candidate", candidate)):
        run = getattr(parted.comparison, side)
        df = run.df[(run.df["module"] == "b") & (run.df["role"] == "output")]
        np.testing.assert_array_equal(table["spark"][row], df["absmax"].to_numpy(float))
        want = run.columns.histogram(int(df.index[df["step"] == 0][0]))
        cut = slice(table["offsets"][row], table["offsets"][row + 1])
        np.testing.assert_array_equal(table["bins"][cut], want.bins)
        np.testing.assert_array_equal(table["counts"][cut], want.counts)


def test_what_is_alone_in_every_row_is_never_the_same():
    frames = Comparing(probe.compare(watched(), watched(lost="c")))
    pairs, candidate, _ = decoded(frames.frame())
    verdicts = json.loads(frames.status())["comparison"]["verdicts"]
    for site, row in told(frames):
        alone = site["module"] == "c"
        assert (verdicts[int(pairs["verdict"][row])] == "only_in_baseline") == alone
        assert np.isnan(candidate["l2"][row]) == alone


def test_chosen_rows_keep_their_numbers_and_the_headline_its_row(parted):
    rows = np.array([6, 8])
    pairs, candidate, baseline = decoded(parted.frame(rows))
    whole = decoded(parted.frame())
    for part, full in zip((pairs, candidate, baseline), whole, strict=True):
        for name in part.keys() - {"offsets", "bins", "counts"}:
            want = rows if name == "order" else full[name][rows]
            np.testing.assert_array_equal(part[name], want)
    assert json.loads(parted.status(rows))["headline"]["row"] == 0
    assert json.loads(parted.status(rows[1:]))["headline"]["row"] is None


def test_equal_runs_and_empty_ones_have_a_report():
    same = probe.compare(watched(), watched())
    assert json.loads(Comparing(same).status())["headline"]["kind"] == "ok"
    nothing = probe.compare(Book().run(), Book().run())
    assert decoded(Comparing(nothing).frame())[0]["verdict"].size == 0
    for each in (same, nothing):
        data = each._repr_mimebundle_()
        assert set(data) == {"text/html", "text/plain"}


def test_a_report_of_many_rows_stays_small_and_says_what_is_left_out():
    big = [Book(), Book()]
    rng = np.random.default_rng(1)
    for number in range(500):
        x = rng.standard_normal(256) * 2.0 ** rng.integers(-9, 9)
        for run, scale in zip(big, (1.0, 1.5 if number >= 300 else 1.0), strict=True):
            run.add(f"layers.{number}", x * scale)
    frames = Comparing(probe.compare(*(each.run() for each in big)))
    page = report.compared(frames)["text/html"]
    assert len(page) < report.LIMIT
    assert "layers.300" in page
