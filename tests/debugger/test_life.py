"""Steps end by `step()` alone; `stop` and `start` go on within one; a cell begins anew."""

from __future__ import annotations

import contextlib
import doctest
import gc
import importlib
import json
import os
import shutil
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import probe_nb as probe
from probe_nb.debugger import PrecisionDebugger, module_dump, module_dump_end, random_save, seed_all
from probe_nb.errors import ConfigError, ModelError, ProbeWarning, SessionStateError
from probe_nb.session import sessions
from tests.debugger.conftest import dumped, folders
from tests.models import hooks_of_probe_nb, no_faults


def x(rows=2):
    return torch.linspace(-1, 1, 3 * rows).reshape(rows, 3)


def forwards(data):
    return [key for key in data if ".forward" in key]


def test_a_step_ends_by_step_and_by_nothing_else(make, net, tmp_path):
    debugger = make()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with no_faults():
        for _ in range(2):
            debugger.start(net)
            for _ in range(3):
                net(x()).sum().backward()
                optimizer.step()
            debugger.stop()
            debugger.step()
    assert folders(tmp_path) == ["step0/proc", "step1/proc"]
    for step in (0, 1):
        numbers = [int(key[-1]) for key in dumped(tmp_path, step) if "0.Linear.forward" in key]
        assert numbers == [0, 1, 2]
    assert debugger.run.df["step"].unique().tolist() == [0, 1]
    assert debugger.run.info.steps == 2


def test_stop_and_start_within_a_step_go_on_with_it(make, net, tmp_path):
    debugger = make()
    debugger.start(net)
    net(x())
    debugger.stop()
    assert forwards(dumped(tmp_path)) == [
        f"Module.{m}.forward.0" for m in ("0.Linear", "1.ReLU", "2.Linear")
    ]
    net(x())
    debugger.start(net)
    net(x(5))
    debugger.stop()
    debugger.step()
    data = dumped(tmp_path)
    linears = {key: data[key]["input_args"][0]["shape"] for key in data if "0.Linear" in key}
    assert linears == {"Module.0.Linear.forward.0": [2, 3], "Module.0.Linear.forward.1": [5, 3]}


def test_the_backward_is_collected_until_the_step_ends(make, net, tmp_path):
    debugger = make()
    debugger.start(net)
    loss = net(x()).square().sum()
    debugger.stop()
    assert not any("backward" in key for key in dumped(tmp_path))
    loss.backward()
    debugger.step()
    data = dumped(tmp_path)
    grads = {key for key in data if "grad" in key}
    assert grads == {"Module.0.Linear.parameters_grad.0", "Module.2.Linear.parameters_grad.0"}
    mine = data["Module.2.Linear.parameters_grad.0"]["weight"][0]
    assert mine["Max"] == pytest.approx(net[2].weight.grad.max().item(), rel=1e-6)
    arrived = data["Module.2.Linear.backward.0"]["input"][0]
    assert arrived["Max"] == pytest.approx((2 * net(x())).max().item(), rel=1e-6)


def test_what_comes_after_the_step_is_not_collected(make, net, tmp_path):
    debugger = make()
    debugger.start(net)
    loss = net(x()).sum()
    debugger.stop()
    debugger.step()
    loss.backward()
    net(x())
    assert not any("backward" in key for key in dumped(tmp_path))
    assert len(debugger.run.frame(direction="backward")) == 0


def test_nothing_is_left_after_a_step(make, net):
    debugger = make("mix")
    debugger.start(net)
    net(x()).sum().backward()
    debugger.stop()
    assert torch.overrides._get_current_function_mode_stack() == []
    assert sessions() != ()
    debugger.step()
    assert sessions() == ()
    assert hooks_of_probe_nb() == []


def test_the_observed_is_unchanged(make, net):
    def train():
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.ReLU(inplace=True), torch.nn.Linear(4, 2)
        )
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        for _ in range(3):
            yield model
            optimizer.zero_grad()
            F.dropout(model(x())).square().mean().backward()
            optimizer.step()
        yield [p.detach().clone() for p in model.parameters()] + [torch.rand(3)]

    *_, bare = train()
    debugger = make("mix")
    for each in train():
        if isinstance(each, list):
            break
        debugger.stop()
        debugger.step()
        debugger.start(each)
    assert all(torch.equal(a, b) for a, b in zip(bare, each, strict=True))


def test_steps_are_chosen_and_counted_from_any_number(make, net, tmp_path):
    debugger = make(step=[6, "8-9"])
    debugger.set_init_step(5)
    for _ in range(6):
        debugger.start(net)
        assert len(sessions()) == (debugger._life.number in (6, 8, 9))
        net(x())
        debugger.stop()
        debugger.step()
    assert folders(tmp_path) == ["step6/proc", "step8/proc", "step9/proc"]
    assert debugger.run.df["step"].unique().tolist() == [6, 8, 9]
    with pytest.raises(ConfigError, match="`step` is -1"):
        debugger.set_init_step(-1)


def test_the_run_has_what_the_folders_have(make, net, tmp_path):
    debugger = make()
    for scale in (1.0, 3.0):
        debugger.start(net)
        net(x() * scale)
        debugger.stop()
        debugger.step()
    inputs = debugger.run.history("0", "input", "max")
    assert inputs.tolist() == [1.0, 3.0]
    assert [
        dumped(tmp_path, s)["Module.0.Linear.forward.0"]["input_args"][0]["Max"] for s in (0, 1)
    ] == [1.0, 3.0]
    orders = debugger.run.df["order"]
    assert orders.is_unique
    assert orders.is_monotonic_increasing


def test_calls_and_values_of_earlier_steps_make_room(make, net, tmp_path, monkeypatch):
    monkeypatch.setattr("probe_nb.debugger.collecting._ROWS", 3)
    debugger = make("mix")
    for _ in range(3):
        debugger.start(net)
        torch.sum(net(x()), dim=1)
        debugger.stop()
        debugger.step()
    assert debugger.run.calls()["step"].unique().tolist() == [2]
    for step in range(3):
        assert dumped(tmp_path, step)["Torch.sum.0.forward"]["input_kwargs"] == {
            "dim": {"type": "int", "value": 1}
        }
        assert len(dumped(tmp_path, step)) == 7


def test_the_run_is_live(make, net):
    debugger = make()
    debugger.start(net)
    assert debugger.run.is_open
    net(x())
    assert len(debugger.run.frame(role="output")) == 4
    debugger.step()
    assert not debugger.run.is_open
    assert debugger.run.info.ended == "finished"


def test_functions_are_collected_where_they_are_called(make, tmp_path):
    debugger = make("L1")

    def of_a_module(value):
        PrecisionDebugger.start()
        value = F.relu(value)
        PrecisionDebugger.stop()
        return torch.tanh(value)

    of_a_module(x())
    of_a_module(x())
    debugger.step()
    assert forwards(dumped(tmp_path)) == ["Functional.relu.0.forward", "Functional.relu.1.forward"]


def test_one_module_alone_is_a_black_box(make, net, tmp_path):
    debugger = make("L1")
    debugger.start()
    first = torch.tanh(x())
    module_dump(net, "Box")
    out = net(first)
    module_dump_end()
    torch.sigmoid(out)
    debugger.stop()
    debugger.step()
    names = ["Torch.tanh.0.forward", "Module.Box.Sequential.forward.0", "Torch.sigmoid.0.forward"]
    assert forwards(dumped(tmp_path)) == names


def test_a_module_that_was_asked_for_alone_is_not_kept_alive(make):
    make("L1")
    model = torch.nn.Linear(2, 2)
    alive = weakref.ref(model)
    module_dump(model, "Box")
    del model
    gc.collect()
    assert alive() is None
    module_dump_end()


def test_one_module_alone_may_be_asked_for_before_the_start(make, net, tmp_path):
    debugger = make("L1")
    module_dump(net, "Box")
    for _ in range(2):
        debugger.start()
        net(torch.tanh(x()))
        debugger.stop()
        debugger.step()
    module_dump_end()
    for step in (0, 1):
        assert forwards(dumped(tmp_path, step)) == ["Module.Box.Sequential.forward.0"]
    with pytest.raises(ConfigError, match="`module` is a int"):
        module_dump(3, "Box")
    with pytest.raises(ConfigError, match="`module_name` is 3"):
        module_dump(net, 3)


def test_tokens_are_counted_from_each_start(make, tmp_path):
    model = torch.nn.Sequential(torch.nn.Embedding(5, 3))
    debugger = make()

    def generate():
        for number in range(6):
            model(torch.full((1, 1), min(number, 4)))

    debugger.start(model, token_range=[1, 3])
    generate()
    debugger.stop()
    debugger.start(model, token_range=(0, 0))
    generate()
    debugger.stop()
    debugger.step()
    tokens = [
        dumped(tmp_path)[f"Module.0.Embedding.forward.{n}"]["input_args"][0]["Max"]
        for n in range(4)
    ]
    assert tokens == [1, 2, 3, 0]


@pytest.mark.parametrize("tokens", [[1], [3, 1], [-1, 2], "1,2", [1, 2, 3], [0.5, 1], 4])
def test_other_tokens_are_refused(make, net, tokens):
    with pytest.raises(ConfigError, match="`token_range` is"):
        make().start(net, token_range=tokens)


def test_a_model_is_needed_where_modules_are_asked_for(make, net):
    debugger = make("mix")
    with pytest.raises(ConfigError, match=r"The level mix needs a model: `start\(model\)`"):
        debugger.start()
    with pytest.raises(ModelError, match=r"must be a `torch\.nn\.Module`"):
        debugger.start(F.relu)
    debugger.start(net)
    debugger.step()
    debugger.start()  # as before
    net(x())
    debugger.step()
    assert "0" in set(debugger.run.frame(step=1)["module"])


def test_a_model_is_not_kept_alive(make):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    ref = weakref.ref(model)
    debugger = make()
    for _ in range(2):
        debugger.start(model)
        model(x()).sum().backward()
        debugger.stop()
        debugger.step()
    del model
    gc.collect()
    assert ref() is None


def test_another_model_in_the_middle_of_a_step_is_told(make, net):
    other = torch.nn.Sequential(torch.nn.Linear(3, 3))
    debugger = make()
    debugger.start(net)
    with pytest.warns(ProbeWarning, match="another model in the middle of a step"):
        debugger.start(other)
    debugger.step()
    debugger.start(other)
    other(x())
    debugger.step()
    assert debugger.run.frame(step=1, role="output")["type"].tolist() == ["Linear", "Sequential"]


def test_the_rank_is_in_the_name_of_the_folder(make, net, tmp_path):
    debugger = make()
    debugger.start(net, rank_id=3)
    net(x())
    debugger.stop()
    debugger.step()
    assert folders(tmp_path) == ["step0/rank3"]
    assert debugger.run.df["rank"].unique().tolist() == [3]
    with pytest.raises(ConfigError, match="`rank_id` is -1"):
        debugger.start(net, rank_id=-1)


def test_without_a_rank_it_is_the_process(make, net, tmp_path):
    debugger = make()
    debugger.start(net)
    net(x())
    debugger.step()
    assert (tmp_path / f"out/step0/proc{os.getpid()}/dump.json").is_file()


def config(tmp_path, **values):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"dump_path": str(tmp_path / "out"), "level": "L0"} | values))
    return str(path)


def test_ranks_are_chosen(net, tmp_path, make):
    debugger = PrecisionDebugger(config(tmp_path, rank=[1, "4-5"]))
    with pytest.warns(ProbeWarning, match="this process has none: nothing is collected"):
        debugger.start(net)
    for rank in range(6):
        debugger.start(net, rank_id=rank)
        net(x())
        debugger.step()
    assert folders(tmp_path) == ["step1/rank1", "step4/rank4", "step5/rank5"]


def test_a_folder_moves_when_the_rank_becomes_known(make, net, tmp_path, monkeypatch):
    debugger = make()
    debugger.start(net)
    net(x())
    debugger.stop()
    assert folders(tmp_path) == ["step0/proc"]
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 7)
    debugger.step()
    assert folders(tmp_path) == ["step0/rank7"]
    assert forwards(dumped(tmp_path, process="rank7")) != []


# -- a file that changes --------------------------------------------------------------------------


def rewritten(tmp_path, **values):
    before = (tmp_path / "config.json").stat().st_mtime_ns
    path = config(tmp_path, **values)
    os.utime(path, ns=(before + 10**9, before + 10**9))


def test_dumping_is_switched_on_and_off_while_it_runs(net, tmp_path, make):
    debugger = PrecisionDebugger(config(tmp_path, dump_enable=False))

    def step():
        debugger.start(net)
        net(x())
        debugger.stop()
        debugger.step()

    step()
    rewritten(tmp_path, dump_enable=True)
    step()
    rewritten(tmp_path)  # without the key it stays as it was
    step()
    rewritten(tmp_path, dump_enable=False)
    step()
    assert folders(tmp_path) == ["step1/proc", "step2/proc"]


def test_any_key_may_change_from_one_step_to_the_next(net, tmp_path, make):
    debugger = PrecisionDebugger(config(tmp_path, dump_enable=True))
    debugger.start(net)
    rewritten(tmp_path, dump_enable=True, level="L1", dump_path=str(tmp_path / "out/elsewhere"))
    net(x())
    debugger.stop()
    debugger.step()
    debugger.start(net)
    F.relu(net(x()))
    debugger.stop()
    debugger.step()
    assert folders(tmp_path) == ["elsewhere/step1/proc", "step0/proc"]
    assert "Module.0.Linear.forward.0" in dumped(tmp_path)


def test_a_file_that_became_wrong_switches_it_off_with_a_word(net, tmp_path, make):
    debugger = PrecisionDebugger(config(tmp_path, dump_enable=True))
    rewritten(tmp_path, dump_enable=True, level="L7")
    with pytest.warns(
        ProbeWarning, match="nothing is collected until it is right: `level` is 'L7'"
    ):
        debugger.start(net)
    net(x())
    debugger.step()
    rewritten(tmp_path, dump_enable=True, step=[1])
    debugger.start(net)
    net(x())
    debugger.step()
    assert folders(tmp_path) == ["step1/proc"]


def test_a_file_without_the_switch_is_read_once(net, tmp_path, make):
    debugger = PrecisionDebugger(config(tmp_path))
    rewritten(tmp_path, dump_enable=False)
    debugger.start(net)
    net(x())
    debugger.step()
    assert folders(tmp_path) == ["step0/proc"]


# -- made again -----------------------------------------------------------------------------------


def test_made_again_in_a_script_it_goes_on(make, net, tmp_path):
    for _ in range(2):  # msProbe's guide advises against it, and it works there
        debugger = make()
        debugger.start(net)
        net(x())
        debugger.stop()
        debugger.step()
    assert folders(tmp_path) == ["step0/proc", "step1/proc"]
    assert make().run is debugger.run


def test_made_with_other_arguments_it_begins_anew_and_the_one_before_is_whole(make, net, tmp_path):
    before = make()
    before.start(net)
    net(x())
    debugger = make("L1")
    assert sessions() == ()
    assert folders(tmp_path) == ["step0/proc"]
    assert debugger.run is not before.run
    assert len(before.run.frame(role="output")) == 4
    before.start()  # on whichever object it is called, it acts on the one that was made last
    torch.tanh(x())
    debugger.stop()
    assert debugger.run.df["api"].unique().tolist() == ["Torch.tanh"]


def test_a_second_one_in_the_same_place_says_that_it_closed_the_first(make, net, monkeypatch):
    first = make()
    with pytest.warns(ProbeWarning, match="one PrecisionDebugger at a time") as told:
        second = make("L1")
    assert str(first.settings.dump_path) in str(told[0].message)
    assert any("at a time" in text for text in second.run.info.notices)
    monkeypatch.setattr("probe_nb.debugger.door._cell", lambda: 7)
    with no_faults():  # a later cell is meant to begin anew
        make("mix")
    PrecisionDebugger.close()
    with no_faults():
        make("L0")


def test_made_again_with_a_file_that_was_changed_it_begins_anew(net, tmp_path, make):
    first = PrecisionDebugger(config(tmp_path))
    assert PrecisionDebugger(str(tmp_path / "config.json")).run is first.run
    rewritten(tmp_path, level="L1")
    later = PrecisionDebugger(str(tmp_path / "config.json"))
    assert later.run is not first.run
    assert later.settings.level == "L1"


def test_made_again_with_a_file_that_may_change_it_goes_on(net, tmp_path, make):
    first = PrecisionDebugger(config(tmp_path, dump_enable=True))
    rewritten(tmp_path, level="L1", dump_enable=True)
    assert PrecisionDebugger(str(tmp_path / "config.json")).run is first.run


def test_made_again_in_a_later_cell_it_begins_anew(make, net, monkeypatch):
    cells = iter([1, 1, 2])
    monkeypatch.setattr("probe_nb.debugger.door._cell", lambda: next(cells))
    first, same = make(), make()
    assert same.run is first.run
    first.start(net)
    net(x())
    first.step()
    later = make()
    assert later.run is not first.run
    assert len(later.run) == 0


def test_there_must_be_a_debugger(net):
    for call in (
        PrecisionDebugger.start,
        PrecisionDebugger.stop,
        PrecisionDebugger.step,
        module_dump_end,
    ):
        with pytest.raises(SessionStateError, match="There is no PrecisionDebugger"):
            call()
    PrecisionDebugger.close()


def test_a_watch_on_the_same_model_ends_the_step_and_the_script_goes_on(make, net, tmp_path):
    debugger = make()
    debugger.start(net)
    net(x())
    with pytest.warns(ProbeWarning, match="already watched"):
        run = probe.start(net)
    net(x())
    debugger.stop()
    probe.stop(run)
    debugger.step()
    assert len(run.frame(role="output")) == 4
    assert forwards(dumped(tmp_path))[-1] == "Module.2.Linear.forward.0"


def test_a_forked_child_writes_nothing_and_the_parent_goes_on(make, net, tmp_path):
    debugger = make()
    debugger.start(net)
    net(x())
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException):
            net(x())
            debugger.stop()
            PrecisionDebugger.close()
            code = 0 if folders(tmp_path) == [] else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    net(x())
    debugger.step()
    assert folders(tmp_path) == ["step0/proc"]
    assert "Module.0.Linear.forward.1" in dumped(tmp_path)


SCRIPT = """
import os, signal, torch
from probe_nb.debugger import PrecisionDebugger
debugger = PrecisionDebugger(dump_path={folder!r}, level="L0", task="tensor")
model = torch.nn.Sequential(torch.nn.Linear(3, 2))
for step in range(2):
    debugger.start(model)
    loss = model(torch.ones(2, 3)).sum()
    debugger.stop()
    loss.backward()
    if step:
        {end}
    debugger.step()
"""


WRITTEN = """
        import pathlib, time
        last = "step1/proc*/dump_tensor_data/Module.0.Linear.parameters_grad.0.weight.pt"
        while not list(pathlib.Path({folder!r}).glob(last)):
            time.sleep(0.01)
        """
"""Wait for the thread that writes tensors: what is killed before it has done so loses the last."""


@pytest.mark.parametrize(
    ("end", "code"),
    [("raise ValueError('of the user')", 1), ("os.kill(os.getpid(), signal.SIGKILL)", -9)],
)
def test_a_script_that_ends_midway_leaves_what_was_seen(tmp_path, end, code):
    folder = str(tmp_path / "out")
    wait = WRITTEN.format(folder=folder) if code < 0 else ""
    script = SCRIPT.format(folder=folder, end=wait + end)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == code, done.stderr
    for step in (0, 1):
        (folder,) = (tmp_path / "out").glob(f"step{step}/proc*")
        data = json.loads((folder / "dump.json").read_text())["data"]
        assert "Module.0.Linear.forward.0" in data
        assert ("Module.0.Linear.parameters_grad.0" in data) is (step == 0 or code > 0)
        grad = folder / "dump_tensor_data/Module.0.Linear.parameters_grad.0.weight.pt"
        added = torch.full((2, 3), 2.0 * (step + 1))  # nobody sets gradients to zero
        assert torch.equal(torch.load(grad, weights_only=True), added)


def test_an_error_of_the_users_leaves_what_was_seen(make, net, tmp_path):
    debugger = make()
    debugger.start(net)
    with pytest.raises(RuntimeError):
        net(torch.ones(2, 7))
    net(x())
    debugger.stop()
    debugger.step()
    assert "Module.2.Linear.forward.0" in dumped(tmp_path)


# -- level debug ----------------------------------------------------------------------------------


def test_values_are_saved_with_their_gradients(make, tmp_path):
    debugger = make("debug")
    for _ in range(2):
        value = torch.tensor([1.0, 2.0], requires_grad=True)
        debugger.start()
        debugger.save({"a": value * 3, "b": [7, "text"]}, "mine")
        square = value.square()
        debugger.save(square, "square")
        square.sum().backward()
        debugger.stop()
        debugger.step()
    for step in (0, 1):
        data = dumped(tmp_path, step, file="debug")
        assert data["mine.0.debug"]["a"]["Max"] == 6.0
        assert data["mine.0.debug"]["b"] == [
            {"type": "int", "value": 7},
            {"type": "str", "value": "text"},
        ]
        assert data["square_grad.0.debug"]["Min"] == 1.0
    assert sessions() == ()


def test_nothing_is_saved_at_another_level_and_that_is_told(make):
    debugger = make("L1")
    with pytest.warns(ProbeWarning, match="`save` collects at the level debug alone"):
        debugger.save(torch.ones(1), "x")
    debugger.save(torch.ones(1), "x")  # once
    assert len(debugger.run) == 0


# -- functions of the user's ----------------------------------------------------------------------


def test_a_function_of_the_users_is_collected_in_every_step_until_it_is_restored(make, tmp_path):
    debugger = make("L1")
    mine = sys.modules[__name__]
    original = mine.x
    debugger.register_custom_api(mine, "x", "Mine")
    for step in range(2):
        debugger.start()
        mine.x()
        if step:
            debugger.restore_custom_api(mine, "x")
            mine.x()
        debugger.stop()
        debugger.step()
        assert mine.x is original
    debugger.start()
    mine.x()
    debugger.step()
    assert [len([k for k in dumped(tmp_path, s) if "Mine.x" in k]) for s in range(3)] == [1, 1, 0]
    with pytest.raises(ConfigError, match="has no 'nothing'"):
        debugger.register_custom_api(mine, "nothing")


# -- files ----------------------------------------------------------------------------------------


def test_tensors_are_written_as_they_were(make, net, tmp_path):
    debugger = make(task="tensor")
    debugger.start(net)
    value = x()
    net(value).sum().backward()
    debugger.stop()
    debugger.step()
    (folder,) = (tmp_path / "out").glob("step0/*/dump_tensor_data")
    read = torch.load(folder / "Module.0.Linear.forward.0.input.0.pt", weights_only=True)
    assert torch.equal(read, value)
    grad = torch.load(folder / "Module.2.Linear.parameters_grad.0.weight.pt", weights_only=True)
    assert torch.equal(grad, net[2].weight.grad)
    names = {each.name for each in folder.iterdir()}
    entries = dumped(tmp_path)
    assert entries["Module.0.Linear.forward.0"]["input_args"][0]["data_name"] in names


def test_a_folder_that_cannot_be_made_is_told_at_the_start(net, make):
    debugger = PrecisionDebugger(dump_path="zero\0inside", level="L0")
    with pytest.raises(ConfigError, match="in which no folder can be made"):
        debugger.start(net)
    assert sessions() == ()


def test_a_folder_that_cannot_be_written_is_told_and_harms_nothing(make, net, tmp_path):
    debugger = make()
    debugger.start(net)
    net(x())
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").write_text("a file")
    with pytest.warns(ProbeWarning, match="files of step 0 could not be written"):
        debugger.stop()
    debugger.step()  # what was told is not told again
    debugger.start(net)
    net(x())
    debugger.stop()
    debugger.step()
    assert len(debugger.run.frame(role="output")) == 8
    lost = [each for each in debugger.run.info.notices if "could not be written" in each]
    assert [each.split(" could")[0] for each in lost] == [
        "the files of step 0",
        "the files of step 1",
    ]


@pytest.mark.parametrize("room", ["probe_nb.debugger", "probe_nb.debugger.door"])
def test_the_examples_of_its_documentation_run(room):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testmod(importlib.import_module(room), optionflags=flags)
    assert (failed, tried > 0) == (0, True)


def test_what_it_writes_can_be_read_back(make, net, tmp_path):
    debugger = make("mix")
    for _ in range(2):
        debugger.start(net)
        net(x()).square().mean().backward()
        debugger.stop()
        debugger.step()
    read = probe.read_dump(tmp_path / "out")
    for step in (0, 1):
        for role in ("output", "grad_output"):
            mine, theirs = (
                run.frame(step=step, role=role, module="2").set_index("api")["max"].to_dict()
                for run in (debugger.run, read)
            )
            assert mine == theirs != {}


def test_it_says_what_it_is(make, tmp_path):
    said = repr(make())
    assert said.startswith("PrecisionDebugger: task statistics, level L0, at step 0, files in ")
    assert str(tmp_path) in said


def test_the_other_names_are_there(tmp_path):
    with seed_all(seed=3):
        a = np.random.rand()  # noqa: NPY002
    with seed_all(seed=3):
        assert np.random.rand() == a  # noqa: NPY002
    with random_save(str(tmp_path)):
        torch.rand(1)
    assert len(list(tmp_path.glob("random_*.csv"))) == 1


@pytest.mark.parametrize(
    ("level", "step", "awaited"),
    [
        ("debug", None, "waiting for a tensor that `save` is given"),
        ("L0", [50], "waiting for a forward of the model; only steps 50 were asked for"),
        ("L0", None, "waiting for a forward of the model"),
    ],
)
def test_a_debugger_says_what_it_waits_for(make, net, level, step, awaited):
    debugger = make(level=level, step=step)
    if step or level == "debug":
        for _ in range(2):
            debugger.start(net)
            net(x())
            debugger.stop()
            debugger.step()
    assert repr(debugger.run).splitlines()[0].endswith(awaited)
