"""A lone surrogate is a Python string that no file, page or message can hold."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.view import report
from probe_nb.view.frame import FrameBuilder


def test_names_are_written_in_every_form(tmp_path):
    class Leafy(nn.Module):
        def forward(self, x):
            return {"out\ud800": x * self.weight}

    odd = Leafy()
    odd.register_parameter("weight", nn.Parameter(torch.ones(2)))
    model = nn.Sequential()
    model.add_module("x\udfffy", odd)
    error = ValueError("broken \ud800")
    with pytest.raises(ValueError, match="broken"), probe.watch({"m\ud800": model}) as run:
        fails(model, error)
    assert "x\\udfffy" in set(run.df["module"])
    assert set(run.df["model"]) == {"m\\ud800"}
    assert "out\\ud800" in set(run.df["leaf"])
    run.info.notices.append("note \ud800")
    run.info.unobserved.append(
        {"model": "m", "module": "u\ud800", "type": "T", "reason": "r\ud800"}
    )
    shown = [*run._repr_mimebundle_().values(), report.html_page(run), repr(run)]
    shown += FrameBuilder(run.columns, run.info).update()[:2]
    shown += report.line(built(run)).values()
    for each in shown:
        each.encode()
    run.save(tmp_path / "run.parquet")
    loaded = probe.load(tmp_path / "run.parquet")
    assert loaded.df.equals(run.df)
    assert loaded.info.ended == "ValueError at step 0: broken \\ud800"


def fails(model, error):
    model(torch.ones(2))
    raise error


def built(run):
    builder = FrameBuilder(run.columns, run.info)
    builder.update()
    return builder
