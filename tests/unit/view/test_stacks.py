"""The lines of the user's that the inspector tells of a row."""

from __future__ import annotations

import inspect
import json

import torch

import probe_nb as probe
from probe_nb.store.calls import Calls
from probe_nb.terms import Callee, Frame, Site
from probe_nb.view.frame import reading
from probe_nb.view.stacks import Stacks


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.a(x)


LINE = inspect.getsourcelines(Net.forward)[1] + 1


def sites_of(run, rows=None):
    with reading(run) as builder:
        return json.loads(builder.sites(rows))


def recorded(**options):
    model = Net()
    with probe.watch(model, live=False, **options) as run:
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
    return run


def test_rows_of_every_direction_point_at_the_line_that_called_their_module():
    found = sites_of(recorded(stacks=True))
    ways = {"forward", "backward"}
    rows = [row for row in found["rows"] if row["module"] == "a" and row["direction"] in ways]
    assert {row["direction"] for row in rows} == ways
    for row in rows:
        first, second = found["stacks"][row["stack"]].splitlines()[:2]
        assert first == f"File {__file__}, line {LINE}, in forward"
        assert second == "    return self.a(x)"


def test_without_stacks_nothing_is_said_of_any():
    found = sites_of(recorded())
    assert "stacks" not in found
    assert all("stack" not in row for row in found["rows"])


def test_a_report_of_few_rows_has_only_their_stacks():
    run = recorded(stacks=True)
    rows = sites_of(run)["rows"]
    place = next(at for at, row in enumerate(rows) if row["module"] == "a")
    found = sites_of(run, [place])
    used = found["rows"][0]["stack"]
    assert "return self.a(x)" in found["stacks"][used]
    assert [text for at, text in enumerate(found["stacks"]) if at != used and text] == []


def test_stacks_come_back_with_a_saved_run(tmp_path):
    run = recorded(stacks=True)
    run.save(tmp_path / "run.parquet")
    assert sites_of(probe.load(tmp_path / "run.parquet")) == sites_of(run)


def stack(*lines):
    return tuple(Frame("net.py", line, "forward", f"line{line}()") for line in lines)


def site(module):
    return Site("model", module, "Linear", "", "forward", "output", "0")


def called(calls, module, lines):
    code = calls.callee(Callee("model", module, "Linear"))
    calls.add(code, 0, step=0, stack=calls.stack(stack(*lines)))


def test_the_first_three_ways_are_told_and_then_nothing_changes_any_more():
    calls = Calls()
    stacks = Stacks(calls)
    assert not stacks.read()
    for line in (1, 2, 1):
        called(calls, "a", [line])
    assert stacks.read()
    told = stacks.texts[stacks.of(site("a"))]
    assert told == (
        "File net.py, line 1, in forward\n    line1()\n\nFile net.py, line 2, in forward\n    line2()"
    )
    called(calls, "a", [1])
    assert not stacks.read()
    called(calls, "a", [3])
    assert stacks.read()
    called(calls, "a", [4])
    assert not stacks.read()
    assert stacks.texts[stacks.of(site("a"))].count("File") == 3
    assert stacks.of(site("b")) == -1


def test_a_long_stack_is_cut_after_twelve_lines_and_says_so():
    calls = Calls()
    called(calls, "a", range(1, 21))
    stacks = Stacks(calls)
    stacks.read()
    told = stacks.texts[stacks.of(site("a"))]
    assert told.count("File") == 12
    assert told.endswith("    line12()\n… 8 more")
