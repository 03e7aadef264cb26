"""What users do that nobody planned for: each once went wrong."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import probe_nb as probe
from probe_nb.errors import RunFormatError, SelectionError
from tests.models import no_faults

ONE = torch.ones(1, 2)


class Constant(nn.Module):
    """Gives the same number every time: a row with another number is another module's."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x):
        return torch.full((8,), float(self.value)) + 0 * x.sum()


def test_rows_keep_their_own_numbers_while_another_thread_asks_for_the_frame():
    model = nn.Sequential(*[Constant(n) for n in range(20)])
    done = threading.Event()

    def train():
        for _ in range(150):
            model(ONE)
        done.set()

    with probe.watch(model, roles="output") as run:
        thread = threading.Thread(target=train)
        thread.start()
        while not done.wait(0.001):
            run.flush()
        thread.join()
    rows = run.df[run.df["module"] != ""]
    assert len(rows) == 20 * 150
    assert (rows["mean"] == rows["module"].astype(str).astype(float)).all()


def test_tensors_measured_from_many_threads_keep_their_own_numbers():
    models = {str(n): nn.Identity() for n in range(4)}

    def work(name):
        for n in range(20):
            models[name](torch.full((3000,), 1000.0 * int(name) + n))

    with no_faults(), probe.watch(models, roles="input", live=False) as run:
        threads = [threading.Thread(target=work, args=(name,)) for name in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = run.df.groupby("model", observed=True)["max"].apply(sorted).to_dict()
    assert found == {n: [1000.0 * int(n) + i for i in range(20)] for n in models}


def test_a_module_put_in_later_is_seen_from_the_next_step_on():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with no_faults(), probe.watch(model) as run:
        model(ONE)
        model[1] = nn.Linear(2, 3)
        model.append(nn.ReLU())
        model(ONE)
    last = run.frame(step=1, role="output")
    assert last["module"].tolist() == ["0", "1", "2", ""]
    assert last["shape"].tolist() == [(1, 2), (1, 3), (1, 3), (1, 3)]


def test_a_function_mode_of_the_users_sees_only_the_users_calls():
    def calls(watched):
        seen = []

        class Mode(TorchFunctionMode):
            def __torch_function__(self, func, _, args=(), kwargs=None):
                seen.append(func)
                return func(*args, **(kwargs or {}))

        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Flatten())
        x = torch.ones(1, 2, requires_grad=True)
        if watched:
            with probe.watch(model), Mode():
                model(x).sum().backward()
        else:
            with Mode():
                model(x).sum().backward()
        return seen

    assert calls(watched=True) == calls(watched=False)


def test_a_dispatch_mode_of_the_users_sees_only_the_users_operators():
    def calls(watched):
        seen = []

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func, _, args=(), kwargs=None):
                seen.append(str(func))
                return func(*args, **(kwargs or {}))

        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Flatten())
        x = torch.ones(1, 2, requires_grad=True)
        with contextlib.ExitStack() as stack:
            if watched:
                stack.enter_context(probe.watch(model))
            stack.enter_context(Mode())
            y = model(x)
            (y.sum() + x.sum()).backward()
        return seen

    assert calls(watched=True) == calls(watched=False)


def test_a_model_with_its_own_idea_of_parameters_can_be_watched():
    class Own(nn.Linear):
        def parameters(self):
            return iter([self.weight])

        def named_parameters(self):
            raise RuntimeError("not here")

    model = Own(2, 2)
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    with no_faults(), probe.watch(model) as run:
        for _ in range(2):
            model(ONE).sum().backward()
            optimizer.step()
    assert run.info.steps == 2
    assert run.frame(role="param", step=1)["leaf"].tolist() == ["weight", "bias"]


def test_an_exception_without_a_text_is_still_the_users_own():
    class MuteError(Exception):
        def __str__(self):
            raise ValueError("no text")

    error = MuteError()
    with pytest.raises(MuteError) as raised, probe.watch(nn.Linear(2, 2)) as run:
        raise error
    assert raised.value is error
    assert run.info.ended == "MuteError"


def test_a_long_evaluation_does_not_wait_for_an_optimizer(monkeypatch):
    monkeypatch.setattr("probe_nb.pace._WAITING", 10)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer=optimizer, roles="output") as run, torch.no_grad():
        for _ in range(50):
            model(ONE)
        assert len(run.columns) >= 40
    assert run.df["step"].unique().tolist() == [0]
    assert run.df["micro_step"].tolist() == list(range(50))


def test_coverage_tells_what_was_not_asked_for_from_what_was_not_called():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.ReLU(), nn.ReLU()

        def forward(self, x):
            return self.used(x)

    with probe.watch(Half(), steps="9") as run:
        pass
    model = Half()
    with probe.watch(model, steps="9") as run:
        model(ONE)
    reasons = run.coverage().set_index("module")["reason"]
    assert reasons[""] == "called only in steps that were not asked for"
    assert reasons["unused"].startswith("never called")


def test_a_pattern_of_several_modules_has_no_history():
    model = nn.Sequential(nn.ReLU(), nn.ReLU())
    with probe.watch(model) as run:
        model(ONE)
    for ask in (run.history, run.histogram):
        with pytest.raises(SelectionError, match="matches 2 modules"):
            ask("[01]")


def test_steps_are_counted_when_they_begin():
    model = nn.Linear(2, 2)
    with probe.watch(model) as run:
        for _ in range(3):
            model(ONE)
            run.step()
    assert run.info.steps == 3
    with probe.watch(model) as run:
        pass
    assert run.info.steps == 0


def test_many_backwards_through_one_forward_keep_their_rows():
    model = nn.Linear(2, 2)
    with no_faults(), probe.watch(model, roles="grad_output") as run:
        y = model(ONE)
        for _ in range(300):
            torch.autograd.grad(y.sum(), model.weight, retain_graph=True)
    assert run.df["backward"].tolist() == list(range(300))


def test_a_flipped_bit_is_noticed(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with probe.watch(model) as run:
        model(torch.randn(4, 2))
    whole = bytearray(run.save(tmp_path / "run").read_bytes())
    for place in range(0, len(whole), 97):
        damaged = bytearray(whole)
        damaged[place] ^= 4
        (tmp_path / "damaged").write_bytes(damaged)
        try:
            loaded = probe.load(tmp_path / "damaged")
        except RunFormatError:
            continue
        for name, values in run.columns.arrays().items():
            found, floats = loaded.columns.arrays()[name], values.dtype.kind == "f"
            if name not in ("site", "dtype", "shape", "device"):  # codes, compared as text below
                assert np.array_equal(found, values, equal_nan=floats), (place, name)
        pd.testing.assert_frame_equal(loaded.df, run.df)
