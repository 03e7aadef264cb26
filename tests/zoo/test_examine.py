"""The examination itself can fail: each way to break a law is found, and called by its name."""

from __future__ import annotations

import contextlib
import random
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.errors import ProbeWarning
from probe_nb.store.columns import Columns
from probe_nb.terms import COUNTS, STATISTICS
from tests.zoo import collection, examine
from tests.zoo.specimen import Specimen
from tests.zoo.torch_modules import FAMILY as OF_TORCH
from tests.zoo.traces import leaves


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Linear(4, 2))


def numbers(_):
    return (torch.randn(5, 3, requires_grad=True),), {}


TRAINED = Specimen("trained", "test", network, numbers)
SMALL = Specimen("small", "test", network, numbers, lambda model: model(torch.ones(2, 3)))


def test_a_model_that_a_watch_leaves_alone_has_no_faults_and_its_rows_are_compared():
    verdict = examine.examined(SMALL)
    assert verdict.faults == []
    assert verdict.remarks == []
    inputs_and_outputs, parameters = 2 * 5, 6
    trained = inputs_and_outputs + parameters + parameters + 4  # and what arrives at outputs
    assert verdict.rows == trained + inputs_and_outputs + parameters


# -- 1. unchanged ------------------------------------------------------------------------------


@contextlib.contextmanager
def hooked(module: nn.Module, hook):
    handle = module.register_forward_hook(hook)
    yield
    handle.remove()


@contextlib.contextmanager
def scaled_gradient(model: nn.Module):
    handle = model[0].weight.register_hook(lambda g: g * (1 + 2**-23))
    yield
    handle.remove()


@contextlib.contextmanager
def at_once(act):
    act()
    yield


def add_to(t: torch.Tensor) -> None:
    with torch.no_grad():
        t.add_(2**-20)


def raise_it(*_):
    raise KeyError("ours")


CHANGES = {
    "output 0 differs": lambda m: hooked(m, lambda _, a, o: o * (1 + 2**-23)),
    "gradient of input 0 differs": lambda m: hooked(m[0], lambda _, a, o: o * (1 + 2**-23)),
    "gradient of 0.weight differs": scaled_gradient,
    "parameter 3.bias differs": lambda m: at_once(lambda: add_to(m[3].bias)),
    "buffer 1.running_mean differs": lambda m: at_once(lambda: add_to(m[1].running_mean)),
    "state 0 differs": lambda m: at_once(lambda: add_to(m[0].weight)),
    "torch's random numbers differs": lambda m: at_once(lambda: torch.rand(1)),
    "numpy's random numbers differs": lambda m: at_once(np.random.rand),
    "Python's random numbers differs": lambda m: at_once(random.random),
    "attributes of 2 differs": lambda m: at_once(lambda: setattr(m[2], "seen", True)),
    "mode of 2 differs": lambda m: at_once(m[2].eval),
    "raises (<class 'KeyError'>": lambda m: hooked(m[2], raise_it),
    "version of output 0 differs": lambda m: hooked(m, lambda _, a, o: o.add_(0)),
    "types differs": lambda m: hooked(m, lambda _, a, o: [o]),
    "a warning that comes only with the watch: loud": lambda m: hooked(
        m, lambda *_: warnings.warn("loud", stacklevel=1)
    ),
    "warned: ours": lambda m: hooked(m, lambda *_: warnings.warn("ours", ProbeWarning, 1)),
}


@pytest.mark.parametrize("fault", CHANGES)
def test_a_watch_that_changes_something_is_found(fault, monkeypatch):
    monkeypatch.setattr(examine, "_watched", within(CHANGES[fault]))
    assert [found for found in examine.examine(SMALL) if found.startswith(fault)] != []


def within(change):
    """Return a watch that also does something which it must not."""

    @contextlib.contextmanager
    def watched(model: nn.Module):
        with probe.watch(model, live=False) as run, change(model):
            yield run

    return watched


def test_a_returned_object_that_is_not_the_same_is_found(monkeypatch):
    through = Specimen("through", "test", nn.Identity, numbers)
    assert examine.examine(through) == []
    copied = within(lambda m: hooked(m, lambda _, a, o: o.clone()))
    monkeypatch.setattr(examine, "_watched", copied)
    assert any(fault.startswith("identity differs") for fault in examine.examine(through))


def test_a_bare_model_that_does_not_repeat_itself_is_remarked_not_blamed():
    def noise() -> nn.Module:
        model = network()
        model[0].weight.data += float(np.random.default_rng().random())
        return model

    verdict = examine.examined(Specimen("noise", "test", noise, numbers))
    assert verdict.faults == []
    assert len(verdict.remarks) == 1
    assert verdict.remarks[0].startswith("not the same twice without a watch")


def wrong(family: str) -> Specimen:
    return Specimen("wrong", family, network, lambda _: ((torch.ones(2, 7),), {}))


def test_what_torch_itself_refuses_is_remarked():
    verdict = examine.examined(wrong(OF_TORCH))
    assert verdict.faults == []
    assert verdict.remarks[0].startswith("torch itself raises RuntimeError")


def test_a_recipe_that_does_not_work_is_a_fault():
    faults = examine.examine(wrong("test"))
    assert len(faults) == 1
    assert faults[0].startswith("cannot be used, watched or not: RuntimeError")


# -- 2. given back -----------------------------------------------------------------------------


def test_a_hook_that_stays_on_a_module_is_found(monkeypatch):
    kept = within(lambda m: at_once(lambda: m[0].register_forward_hook(lambda *_: None)))
    monkeypatch.setattr(examine, "_watched", kept)
    assert any(fault.startswith("hooks of 0 differs") for fault in examine.examine(SMALL))


def test_a_hook_that_stays_on_a_parameter_is_found(monkeypatch):
    kept = within(lambda m: at_once(lambda: m[0].weight.register_hook(lambda g: None)))
    monkeypatch.setattr(examine, "_watched", kept)
    assert any(fault.startswith("hooks on 0.weight differs") for fault in examine.examine(SMALL))


def test_a_hook_that_stays_on_every_module_of_the_process_is_found(monkeypatch):
    handles = []
    register = nn.modules.module.register_module_forward_hook
    leak = within(lambda m: at_once(lambda: handles.append(register(lambda *_: None))))
    monkeypatch.setattr(examine, "_watched", leak)
    faults = examine.examine(SMALL)
    for handle in handles:
        handle.remove()
    assert any("left changed" in f and "_global_forward_hooks" in f for f in faults)


def test_a_switch_that_stays_off_is_found(monkeypatch):
    off = within(lambda m: at_once(lambda: torch.backends.mha.set_fastpath_enabled(False)))
    monkeypatch.setattr(examine, "_watched", off)
    faults = examine.examine(SMALL)
    torch.backends.mha.set_fastpath_enabled(True)
    assert "left changed: fast attention" in faults


# -- 3. right numbers --------------------------------------------------------------------------

WRONG = [
    *((name, lambda v: v + max(abs(v), 1.0) / 1000) for name in STATISTICS),
    *((name, lambda v: v + 1) for name in (*COUNTS, "numel")),
    ("dtype", lambda _: "float16"),
    ("shape", lambda v: (*v, 1)),
    ("status", lambda _: "empty"),
]


@pytest.mark.parametrize("role", ["input", "output", "param", "param_grad", "grad_output"])
@pytest.mark.parametrize(("column", "wrong"), WRONG, ids=[name for name, _ in WRONG])
def test_one_wrong_value_in_one_row_is_found(role, column, wrong, monkeypatch):
    def spoil(frame: pd.DataFrame) -> pd.DataFrame:
        row = frame.index[frame["role"] == role][-1]
        values = frame[column].tolist()
        values[row] = wrong(values[row])
        return frame.assign(**{column: pd.Series(values, dtype=object)})

    see_through(monkeypatch, spoil)
    faults = examine.examine(TRAINED)
    assert len(faults) == 1
    assert f" {role} " in faults[0]
    assert f": {column} " in faults[0] or f": {column}: " in faults[0]


def see_through(monkeypatch, change) -> None:
    """Let everybody see the frame of a run as `change` makes it."""
    true = probe.Run.df.fget
    monkeypatch.setattr(probe.Run, "df", property(lambda run: change(true(run))))


def test_a_histogram_that_was_lost_is_found(monkeypatch):
    monkeypatch.setattr(Columns, "histogram", lambda *_: None)
    assert any("bins" in fault for fault in examine.examine(SMALL))


@pytest.mark.parametrize("role", ["input", "output", "param", "param_grad", "grad_output"])
def test_a_row_too_few_is_found(role, monkeypatch):
    see_through(monkeypatch, lambda frame: frame.drop(frame.index[frame["role"] == role][:1]))
    assert any(f" {role} " in f and "0 rows, not 1" in f for f in examine.examine(TRAINED))


@pytest.mark.parametrize("role", ["input", "output", "param", "param_grad", "grad_output"])
def test_a_row_too_many_is_found(role, monkeypatch):
    twice = lambda frame: pd.concat([frame, frame[frame["role"] == role][:1]])  # noqa: E731
    see_through(monkeypatch, twice)
    assert any(f" {role} " in f and "2 rows, not 1" in f for f in examine.examine(TRAINED))


# -- 4. nothing missing ------------------------------------------------------------------------


def test_a_module_without_rows_and_without_a_reason_is_found(monkeypatch):
    see_through(monkeypatch, lambda frame: frame[frame["module"] != "2"])
    assert "`2` was called, no row, no reason" in examine.examine(SMALL)


def test_a_row_that_failed_is_found(monkeypatch):
    def fail(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[frame["module"] == "3", "status"] = "failed"
        return frame

    see_through(monkeypatch, fail)
    assert "failed row: 3 input 0" in examine.examine(SMALL)


def test_a_reason_that_says_nothing_is_found(monkeypatch):
    silent = pd.DataFrame({"model": ["model"], "module": ["2"], "type": ["X"], "reason": [""]})
    monkeypatch.setattr(probe.Run, "coverage", lambda _: silent)
    assert "2: no reason" in examine.examine(SMALL)


# -- what is examined --------------------------------------------------------------------------


def test_leaf_paths_are_those_of_the_glossary():
    t = torch.ones(1)
    nested = ({"hidden": t, "rest": [t, 3]}, t, None)
    assert [path for path, _ in leaves(nested)] == ["0.hidden", "0.rest.0", "1"]
    assert [path for path, _ in leaves(t)] == ["0"]


def test_a_specimen_that_is_too_large_is_refused_before_memory_is_taken():
    large = Specimen("large", "test", lambda: nn.Linear(5_000, 5_000), numbers)
    assert collection.too_large(large) == "25,005,000 parameters, more than 20,000,000"
    assert collection.too_large(SMALL) is None


def test_each_specimen_has_a_name_of_its_own():
    names = [each.name for each in collection.specimens()]
    assert len(names) == len(set(names)) > 10_000
