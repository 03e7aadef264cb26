"""What is written as an msProbe folder and read again is the run, in all that a folder can say."""

from __future__ import annotations

import math
import shutil
import tempfile
from pathlib import Path

import pandas as pd
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import probe_nb as probe
from probe_nb.terms import COUNTS, STATISTICS

SITE = ["step", "module", "type", "api", "call", "direction", "role", "leaf"]
SAID = [*SITE, "dtype", "shape", "numel", "requires_grad", "loss_scale", *COUNTS, "status"]
VALUES = [math.nan, math.inf, -math.inf, 0.0, 1e-30, 1e30, -3.0, 65504.0]
TYPES = [torch.float32, torch.bfloat16, torch.float64]


class Many(nn.Module):
    """Gives what it is given in several forms, and values that are no tensors."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, x, *rest, **named):
        forms = {
            "one": lambda: x * 2,
            "pair": lambda: (x * 2, x.mean()),
            "dict": lambda: {"a": x * 2, "b": [x.argmax(), (x > 0, None)]},
            "none": lambda: None,
        }
        return forms[self.form]()


class Net(nn.Module):
    """Layers in a row, some of them called again."""

    def __init__(self, forms, again, dtype):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3, dtype=dtype), *map(Many, forms)])
        self.norm = nn.Sequential(nn.LayerNorm(3, dtype=dtype))
        self.again = again

    def forward(self, x):
        first, *many = self.layers
        for number, layer in enumerate(many):
            layer(first(x), 3, [x, number, "text"], scale=None, mask={"m": x > 0})
        for _ in range(self.again):
            x = self.norm(x)
        return x


@st.composite
def runs(draw):
    """Record a small net: forms, types, levels, steps, and what is not finite."""
    torch.manual_seed(draw(st.integers(0, 99)))
    forms = draw(st.lists(st.sampled_from(["one", "pair", "dict", "none"]), max_size=3))
    dtype = draw(st.sampled_from(TYPES))
    model = Net(forms, draw(st.integers(0, 2)), dtype)
    options = {
        "level": draw(st.sampled_from(["module", "mix"])),
        "values": True,
        "stacks": draw(st.booleans()),
        "checksum": draw(st.sampled_from([None, "crc32", "xor"])),
    }
    if options["level"] == "mix":
        options["apis"] = "all"
    x = torch.randn(2, 3, dtype=dtype)
    for place, value in draw(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(VALUES)))):
        x.view(-1)[place] = value
    with probe.watch(model, **options) as run:
        for _ in range(draw(st.integers(1, 2))):
            out = model(x.clone().requires_grad_())
            if draw(st.booleans()):
                out.float().sum().backward()
            run.step()
    return run


def written(rows):
    """Return the rows that have a place in a dump, sorted by site."""
    rows = rows[(rows["module"].astype(str) != "") | (rows["api"].astype(str) != "")]
    rows = rows[~rows["role"].isin(["buffer", "param", "param_grad"])]
    rows = rows.astype(dict.fromkeys(SITE[1:4] + SITE[5:], "str"))
    rows.loc[rows["api"] != "", "type"] = ""  # that of the module around, if it is known
    return rows.sort_values([*SITE, "order"], kind="stable").reset_index(drop=True)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(run=runs())
def test_a_run_that_was_written_and_read_is_the_run(run):
    place = Path(tempfile.mkdtemp())
    try:
        again = probe.read_dump(run.write_dump(place / "dump"))
        mine, its = written(run.df), written(again.df)
        text = [name for name in SAID if name != "numel"]
        pd.testing.assert_frame_equal(
            mine[text].astype(str), its[text].astype(str), check_dtype=False
        )
        for name in STATISTICS:
            assert mine[name].isna().tolist() == its[name].isna().tolist()
            assert mine[name].dropna().tolist() == its[name].dropna().tolist()
        for row, other in zip(mine.index, its.index, strict=True):
            assert (mine["status"][row]) == (its["status"][other])
        assert held(run) == held(again)
        parents = {key: up for key, up in calls(run).items() if key[0]}
        assert {key: up for key, up in calls(again).items() if key[0]} == parents
    finally:
        shutil.rmtree(place)


def held(run):
    """Return the values that are no tensors, without those of the root."""
    rows = run.values()
    rows = rows[(rows["module"].astype(str) != "") | (rows["api"].astype(str) != "")]
    keys = ["step", "module", "api", "call", "role", "leaf", "kind"]
    found = [
        (*map(str, row), value) for row, value in zip(rows[keys].values, rows["value"], strict=True)
    ]
    return sorted(each for each in found if each[6] not in ("None", "object"))


def calls(run):
    """Return what each call of a module ran inside."""
    rows = run.calls()
    rows = rows[rows["api"].astype(str) == ""]
    named = {label: (row.module, row.call, row.step) for label, row in rows.iterrows()}
    return {named[label]: named.get(row.parent, ("", 0, 0))[0] for label, row in rows.iterrows()}
