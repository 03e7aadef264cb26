"""Copies, pickles and saved files of a watched model carry nothing of the watch."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

import probe_nb as probe
from tests.models import hook_tables, pieces

PIECES = pieces()
PICKLED = [
    p for n, p in PIECES.items() if n not in {"scripted_child", "weight_norm", "spectral_norm"}
]
"""Torch itself refuses to pickle a parametrised or scripted module."""

LOADS = """
import sys, torch
sys.modules["probe_nb"] = None
model = torch.load(sys.argv[1], weights_only=False)
print(model(torch.ones(2, 4)).sum().item())
"""


def in_use(piece):
    """Return a model and arguments after a forward and backward under an open watch."""
    torch.manual_seed(0)
    model = piece.build()
    args, kwargs = piece.inputs()
    probe.start(model, live=False)
    try:
        model(*args, **kwargs)
    except ValueError:
        assert piece.raises
    return model


def hooks(model):
    return [
        (name, table, type(hook).__name__)
        for name, module in model.named_modules()
        for table, found in hook_tables(module).items()
        for hook in found.values()
    ]


@pytest.fixture(autouse=True)
def stopped():
    yield
    probe.stop()


@pytest.mark.parametrize("piece", PIECES.values(), ids=repr)
def test_a_deep_copy_has_the_hooks_that_the_model_has_without_a_watch(piece):
    model = in_use(piece)
    copied = copy.deepcopy(model)
    probe.stop()
    assert hooks(copied) == hooks(model)
    assert copied.__dict__.keys() == model.__dict__.keys()


@pytest.mark.parametrize("piece", PICKLED, ids=repr)
def test_a_pickle_does_not_name_probe_nb(piece):
    model = in_use(piece)
    for value in serialized(model):
        assert b"probe_nb" not in value


def serialized(model):
    """Return the model pickled and saved, without the lambdas of the museum."""
    for module in model.modules():
        module.__dict__.pop("wrap", None)
    file = io.BytesIO()
    torch.save(model, file)
    return pickle.dumps(model), file.getvalue()


@pytest.mark.parametrize("piece", PIECES.values(), ids=repr)
def test_a_state_dict_has_the_same_keys_and_no_hooks(piece):
    torch.manual_seed(0)
    bare = list(piece.build().state_dict()) if piece.name != "lazy" else None
    state = in_use(piece).state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    assert bare is None or list(state) == bare
    assert b"probe_nb" not in file.getvalue()
    assert not any(value._backward_hooks for value in state.values())


def test_a_saved_model_loads_where_probe_nb_is_not_installed(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].register_forward_hook(passes)
    del model[0]._forward_hooks[next(iter(model[0]._forward_hooks))]
    with probe.watch(model, live=False):
        expected = model(torch.ones(2, 4)).sum().item()
        torch.save(model, tmp_path / "model.pt")
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(tmp_path / "model.pt")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert float(done.stdout) == expected


def passes(_, __, output):
    return output


def test_a_model_with_hooks_of_its_own_loads_where_probe_nb_is_not_installed(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].register_forward_hook(print)
    with probe.watch(model, live=False):
        torch.save(model, tmp_path / "model.pt")
        expected = model(torch.ones(2, 4)).sum().item()
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(tmp_path / "model.pt")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert float(done.stdout.splitlines()[-1]) == expected


def test_a_copy_of_a_watched_model_adds_no_rows():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[1].register_forward_hook(passes)
    with probe.watch(model, live=False) as run:
        copied = copy.deepcopy(model)
        loaded = pickle.loads(pickle.dumps(model))
        for other in (copied, loaded, copy.copy(model)):
            other(torch.ones(2, 4, requires_grad=True)).sum().backward()
    assert run.df[run.df["module"] == ""].empty


def test_an_output_with_gradient_hooks_is_saved_without_a_warning():
    model = nn.Linear(4, 4)
    with probe.watch(model, live=False):
        y = model(torch.ones(2, 4, requires_grad=True))
        file = io.BytesIO()
        torch.save(y, file)
        pickle.dumps(model.weight)
    assert b"probe_nb" not in file.getvalue()


def test_averaged_models_can_be_made_and_updated_under_the_watch():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with probe.watch(model, live=False) as run:
        average = torch.optim.swa_utils.AveragedModel(model)
        model(torch.ones(2, 4)).sum().backward()
        average.update_parameters(model)
        average(torch.ones(2, 4))
    assert run.df[run.df["role"] == "output"].groupby("module", observed=True).size().to_dict() == {
        "": 1,
        "0": 1,
        "1": 1,
    }
