"""A Ctrl-C at any line of what sees functions leaves no mode, no hook and no replaced name."""

from __future__ import annotations

import sys
import types

import torch
import torch.nn.functional as F
from torch import nn

import probe_nb as probe
from probe_nb import session
from tests.contract.test_functions_given_back import Listener, modes

LINES = 60
"""So many lines are tried, evenly spread over all that run."""
_OURS = ("/observe/functions", "/observe/attach")


def work(mine):
    given = torch.ones(2)
    with Listener(), probe.watch(level="api", live=False) as run:
        run.register_custom_api(mine, "double")
        mine.double(given)
        F.relu(given)
        run.step()
        given + 1


def interrupted(mine, at):
    """Run with an interrupt at one line of ours; return how many lines ran."""
    count = 0

    def on_line(_, event, __):
        nonlocal count
        count += event == "line"
        if count == at and event == "line":
            raise KeyboardInterrupt
        return on_line

    def on_call(frame, _, __):
        return on_line if any(part in frame.f_code.co_filename for part in _OURS) else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        work(mine)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return count


def test_a_ctrl_c_at_any_line_leaves_nothing():
    mine = types.ModuleType("mine")
    mine.double = before = lambda given: given + given
    lines = interrupted(mine, -1)
    assert lines > LINES
    for at in range(1, lines, lines // LINES):
        interrupted(mine, at)
        for _ in session.sessions():
            probe.stop()
        assert modes() == [], at
        assert mine.double is before, at


def test_modules_that_are_not_fused_now_are_listed():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
    with torch.no_grad(), probe.watch(layer, level="api", live=False) as run:
        layer(torch.ones(1, 3, 4))
    reasons = dict(zip(run.coverage()["module"], run.coverage()["reason"], strict=True))
    assert reasons[""] == "not fused at API level"
    assert "not fused" not in repr(run)  # nothing is missing


def test_one_module_alone_is_recorded_at_api_level_without_a_model():
    block, given = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2)
    with probe.watch(level="api", live=False) as run:
        F.relu(given)
        with run.only(block, "Mine"):
            F.gelu(block(given))
        F.silu(given)
    rows = run.frame(role="output")
    assert list(zip(rows["module"], rows["api"], strict=True)) == [
        ("", "Functional.relu"),
        ("Mine", ""),
        ("", "Functional.silu"),
    ]
