"""Which lines led to a call, against lines that are found in this very file."""

from __future__ import annotations

import gc
import sysconfig
import threading
import types
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import probe_nb as probe
from probe_nb.observe import stacks
from tests.models import no_faults

SOURCE = Path(__file__).read_text(encoding="utf-8").splitlines()


def line(mark: str) -> tuple[int, str]:
    """Return where a line of this file with a mark stands, and the line."""
    [found] = [n for n, each in enumerate(SOURCE, 1) if each.endswith(f"  # at {mark}")]
    return found, SOURCE[found - 1].strip()


def entries(run: probe.Run, **chosen: Any) -> list[list[tuple[str, int, str, str]]]:
    """Return the stack of each call that is chosen: file, line, function, source."""
    frame = run.calls()
    for name, value in chosen.items():
        frame = frame[frame[name] == value]
    table = run.call_table
    codes = table.columns()["stack"][frame.index]
    return [[tuple(each) for each in table.stacks.values[code]] for code in codes]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)  # at body
        for _ in range(3):
            x = x * 2  # at times
        return self.head(self.scaled(x))  # at head

    def scaled(self, x: Tensor) -> Tensor:
        return x.mul(2)  # at scaled


def call(model: nn.Module, x: Tensor) -> Tensor:
    return model(x)  # at call


def test_a_stack_has_the_users_lines_and_no_others():
    model = Net()
    with no_faults(), probe.watch(model, level="mix", stacks=True) as run:
        call(model, torch.ones(1, 4))  # at test
    me = test_a_stack_has_the_users_lines_and_no_others.__name__

    def stack(*marks: str) -> list[tuple[str, int, str, str]]:
        names = {"call": "call", "test": me, "scaled": "scaled"}
        return [(__file__, line(m)[0], names.get(m, "forward"), line(m)[1]) for m in marks]

    root = stack("call", "test")
    assert entries(run, module="", api="") == [root]
    body = stack("body") + root
    assert entries(run, module="body") == [body]
    assert entries(run, module="body.0") == [body, body]  # torch's own container says nothing
    assert entries(run, module="head", api="") == [stack("head") + root]
    assert entries(run, api="Tensor.__mul__") == [stack("times") + root] * 3
    assert entries(run, api="Tensor.mul") == [stack("scaled", "head") + root]


def test_the_frame_shows_a_stack_as_python_does():
    model = Net()
    with probe.watch(model, stacks=True) as run:
        call(model, torch.ones(1, 4))
    shown = run.calls().set_index("module")["stack"]["head"].splitlines()
    number, source = line("head")
    assert shown[0] == f"File {__file__}, line {number}, in forward"
    assert shown[1] == f"    {source}"
    assert shown[2] == f"File {__file__}, line {line('call')[0]}, in call"


def test_every_place_that_calls_has_a_stack_of_its_own_and_loops_one():
    layer = nn.Linear(4, 4)
    x = torch.ones(1, 4)
    with no_faults(), probe.watch(layer, stacks=True) as run:
        for _ in range(50):
            layer(x)  # at one
        torch.cat([layer(x), layer(x)])  # at two
    found = entries(run)
    assert len(found) == 52
    assert [each[0][1] for each in found] == [line("one")[0]] * 50 + [line("two")[0]] * 2
    assert len(run.call_table.stacks.values) == 2
    assert len(set(run.calls()["stack"])) == 2


def test_nobody_asked_and_there_is_none():
    model = Net()
    with no_faults(), probe.watch(model, level="mix") as run:
        model(torch.ones(1, 4))
    assert run.calls()["stack"].isna().all()
    assert run.call_table.stacks.values == []


def test_a_library_between_two_lines_of_the_users_is_kept_and_what_starts_them_is_not():
    folder = sysconfig.get_path("purelib")
    made: dict[str, Any] = {}
    for name, code in {
        f"{folder}/somelib/model.py": "def lib(f, x):\n    return f(x)",
        f"{folder}/IPython/core/shell.py": "def shell(f, x):\n    return f(x)",
        "<frozen runpy>": "def frozen(f, x):\n    return f(x)",
        f"{sysconfig.get_path('stdlib')}/runpy.py": "def standard(f, x):\n    return f(x)",
        f"{Path(torch.__file__).parent}/nn/x.py": "def torchs(f, x):\n    return f(x)",
        "<string>": "def command(f, x):\n    return f(x)",
    }.items():
        exec(compile(code, name, "exec"), made)
    layer = nn.Linear(4, 4)

    def inner(x: Tensor) -> Tensor:
        for between in ("lib", "shell", "frozen", "standard", "torchs"):
            made[between](layer, x)
        return x

    def around(x: Tensor) -> None:
        for name in ("frozen", "standard", "shell", "lib", "command"):
            outer = threading.Thread(target=made[name], args=(inner, x))
            outer.start()
            outer.join()

    with no_faults(), probe.watch(layer, stacks=True, micro_batches=1000) as run:
        around(torch.ones(1, 4))
    found = [[each[2] for each in stack] for stack in entries(run)]
    plain = [["lib", "inner"], *[["inner"]] * 4]
    assert found == plain * 5


def test_what_has_no_line_of_the_users_has_what_is_there():
    folder = sysconfig.get_path("purelib")
    made: dict[str, Any] = {}
    exec(compile("def train(f, x):\n    return f(x)", f"{folder}/trainer/a.py", "exec"), made)
    layer = nn.Linear(4, 4)
    with no_faults(), probe.watch(layer, stacks=True) as run:
        thread = threading.Thread(target=made["train"], args=(layer, torch.ones(1, 4)))
        thread.start()
        thread.join()
    assert [[each[2] for each in stack] for stack in entries(run)] == [["train"]]


def test_a_call_that_checkpointing_repeats_adds_no_stack():
    model = Net()
    with no_faults(), probe.watch(model, stacks=True) as run:
        x = torch.ones(1, 4, requires_grad=True)
        y = checkpoint(model, x, use_reentrant=False)
        before = run.calls()
        y.backward(torch.ones(1, 2))
    assert len(before) == 5
    assert run.calls().equals(before)
    assert len(run.call_table.stacks.values) == 3  # of the model, of its body, of its head


def test_a_registered_function_has_the_line_that_calls_it():
    mine = types.SimpleNamespace(__name__="mine", twice=lambda x: x + x)
    with no_faults(), probe.watch(level="api", stacks=True) as run:
        run.register_custom_api(mine, "twice")
        mine.twice(torch.ones(1))  # at twice
    [stack] = entries(run, api="mine.twice")
    assert [each[1] for each in stack] == [line("twice")[0]]


def test_code_that_is_made_anew_all_the_time_does_not_pile_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stacks, "_ROOM", 8)
    layer = nn.Linear(4, 4)
    x, alive = torch.ones(1, 4), []
    with no_faults(), probe.watch(layer, stacks=True) as run:
        for _ in range(40):
            made: dict[str, Any] = {}
            exec(compile("def again(f, x):\n    return f(x)", "<made>", "exec"), made)
            made["again"](layer, x)
            alive.append(weakref.ref(made["again"].__code__))
            made.clear()
        gc.collect()
        assert sum(each() is not None for each in alive) <= 9
        assert len(run.call_table.stacks.values) == 1
    gc.collect()
    assert not any(each() is not None for each in alive)


def test_the_source_of_a_line_that_is_nowhere_is_left_out():
    made: dict[str, Any] = {}
    exec(compile("def hidden(f, x):\n    return f(x)", "<made>", "exec"), made)
    layer = nn.Linear(4, 4)
    with no_faults(), probe.watch(layer, stacks=True) as run:
        made["hidden"](layer, torch.ones(1, 4))
    assert entries(run)[0][0] == ("<made>", 2, "hidden", "")
    assert run.calls()["stack"][0].startswith("File <made>, line 2, in hidden\nFile ")
