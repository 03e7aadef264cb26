"""A model that is one module has nothing inside, so its dump has no entry: that is said."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.errors import ProbeWarning
from tests.debugger.conftest import dumped


@pytest.mark.parametrize("wrap", [lambda m: m, nn.DataParallel])
def test_a_debugger_says_once_that_its_dump_has_no_entry(make, tmp_path, wrap):
    model = wrap(nn.Linear(3, 2))
    debugger = make()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            debugger.start(model)
            model(torch.ones(2, 3)).sum().backward()
            debugger.stop()
            debugger.step()
    assert [str(each.message).split(":")[0] for each in told if each.category is ProbeWarning] == [
        "the dump has no entry"
    ]
    assert dumped(tmp_path) == {}


def test_a_run_that_is_written_says_so_and_one_with_something_inside_does_not(tmp_path):
    model = nn.Linear(3, 2)
    for net in (model, nn.Sequential(model)):
        with probe.watch(net) as run:
            net(torch.ones(2, 3)).sum().backward()
        if net is model:
            with pytest.warns(ProbeWarning, match=r"a single module. `torch.nn.Sequential\(model"):
                run.write_dump(tmp_path / "single")
            continue
        read = probe.read_dump(run.write_dump(tmp_path / "inside"))
        assert set(read.df["module"]) == {"0"}
