"""A model that is one module has nothing inside, so its dump has no entry: that is said."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.errors import ProbeWarning
from tests.debugger.conftest import dumped


def test_a_debugger_says_once_that_its_dump_has_no_entry(make, tmp_path):
    model = nn.Linear(3, 2)
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


def test_what_is_inside_of_a_wrapper_has_its_name_there_and_none_without_it(make, tmp_path):
    model = nn.Linear(3, 2)
    debugger = make(task="tensor")
    for net in (nn.DataParallel(model), nn.Sequential(model)):
        debugger.start(net)
        net(torch.ones(2, 3)).sum().backward()
        debugger.stop()
        debugger.step()
    first, second = (dumped(tmp_path, step) for step in range(2))
    assert {*first} == {
        "Module.module.Linear.forward.0",
        "Module.module.Linear.backward.0",
        "Module.module.Linear.parameters_grad.0",
    }
    weight = first["Module.module.Linear.forward.0"]["parameters"]["weight"]
    assert weight["Max"] == pytest.approx(model.weight.max().item(), rel=1e-7)
    assert {*second} == {each.replace("module", "0", 1) for each in first}
    (folder,) = (tmp_path / "out").glob("step0/*/dump_tensor_data")
    grad = torch.load(folder / "Module.module.Linear.parameters_grad.0.bias.pt", weights_only=True)
    assert grad.tolist() == [2.0, 2.0]
    files = {each.name.removesuffix(".pt") for each in folder.iterdir()}
    assert all(each.startswith("Module.module.Linear.") for each in files)


def test_what_was_read_of_a_wrapped_model_is_the_model_and_is_written_as_it_was(tmp_path):
    model = nn.DataParallel(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))
    with probe.watch(model) as run:
        model(torch.ones(2, 3)).sum().backward()
    first = run.write_dump(tmp_path / "first")
    read = probe.read_dump(first)
    assert set(read.df["module"]) == {"", "0", "1"}
    second = read.write_dump(tmp_path / "second")
    names = [
        [*json.loads(next(each.rglob("dump.json")).read_text())["data"]] for each in (first, second)
    ]
    assert names[0] == names[1]
    assert {each.split(".")[1] for each in names[0]} == {"module"}


@pytest.mark.parametrize("said", ["Module.module.1.ReLU.forward.0", "Module.1.ReLU.forward.0", "1"])
def test_names_with_the_wrapper_and_without_it_choose_the_same(said):
    model = nn.DataParallel(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))
    with probe.watch(model, roles="output", scope=(said, said)) as run:
        model(torch.ones(2, 3))
    assert run.df["module"].tolist() == ["1"]
    with probe.watch(model, roles="output", names=[said]) as run:
        model(torch.ones(2, 3))
    assert "1" in set(run.df["module"])
    assert not [each for each in run.info.notices if "no call that was seen" in each]
