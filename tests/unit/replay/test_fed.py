"""What a call was given is put together again; what is missing is asked for by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.errors import ConfigError, ModelError, SelectionError
from tests.unit.replay.replaying import steps, watched, wide


class Many(nn.Module):
    def forward(self, x, factor, pair, *, mode="plus", mask=None, where=None):
        out = x * factor + pair[0] - pair[1]["deep"]
        out = out if mode == "plus" else -out
        out = out if mask is None else out.masked_fill(mask, 0.0)
        return {"out": out, "inner": (out * 2, None, 3), "none": None}


X, A, B = steps(2, 3), steps(2, 3, high=4.0), steps(2, 3, low=0.0)
MASK = torch.tensor([[True, False, False], [False, True, False]])


def test_numbers_texts_none_and_nested_arguments_are_those_that_were_recorded():
    model = Many()
    run = watched(model, X, 3, (A, {"deep": B}), mode="minus", mask=MASK)
    found = run.replay("(root)", model)
    truth = -(wide(X) * 3 + wide(A) - wide(B)) * ~MASK.numpy()
    np.testing.assert_allclose(found.truth("out").numpy(), truth, rtol=1e-14)
    np.testing.assert_allclose(found.truth("inner.0").numpy(), truth * 2, rtol=1e-14)
    assert found.verdict == "within"
    assert found.df["leaf"].tolist() == ["out", "inner.0"]


def test_what_was_not_recorded_is_asked_for_and_can_be_given():
    model = Many()
    run = watched(model, X, 3, (A, {"deep": B}), mode="minus", values=False)
    with pytest.raises(SelectionError, match=r"Argument 1 was not recorded.*`inputs=\{'1': …\}`"):
        run.replay("(root)", model)
    found = run.replay("(root)", model, inputs={"1": 3, "kwargs.mode": "minus"})
    np.testing.assert_allclose(found.truth("out").numpy(), -(wide(X) * 3 + wide(A) - wide(B)))
    assert found.notices == (
        "mask, where left to the default: `watch(values=True)` records arguments that are no tensors",
    )


def test_arguments_that_are_given_go_before_what_was_recorded_also_whole_containers():
    model = Many()
    run = watched(model, X, 3, (A, {"deep": B}))
    found = run.replay("(root)", model, inputs={"2": (B, {"deep": A})})
    np.testing.assert_allclose(found.truth("out").numpy(), wide(X) * 3 + wide(B) - wide(A))


def test_of_an_object_only_the_class_is_known():
    class Config:
        pass

    model = Many()
    run = watched(model, X, 3, (A, {"deep": B}), where=Config())
    with pytest.raises(SelectionError, match=r"`kwargs.where` was a `Config`.*inputs="):
        run.replay("(root)", model)
    assert run.replay("(root)", model, inputs={"kwargs.where": None}).verdict == "within"


def test_a_required_argument_that_is_missing_at_the_end_is_named():
    class Two(nn.Module):
        def forward(self, x, factor):
            return x * factor

    model = Two()
    run = watched(model, X, 2.0, values=False)
    with pytest.raises(SelectionError, match="missing a required argument: 'factor'"):
        run.replay("(root)", model)


def test_an_input_that_was_not_kept_is_said():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with probe.watch(model, keep=probe.Keep("0", memory=8), live=False) as run:
        model(X)
    with pytest.raises(SelectionError, match="not kept: budget"):
        run.replay("0", model)
    with pytest.raises(SelectionError, match="No tensor of `1` was to be kept"):
        run.replay("1", model)


def test_without_an_output_there_is_no_verdict_but_a_truth():
    model = nn.Linear(3, 3)
    run = watched(model, X, roles="input")
    found = run.replay("(root)", model)
    assert found.verdict == "not_judged"
    assert "no output of it was kept" in found.sentence
    truth = wide(X) @ wide(model.weight).T + wide(model.bias)
    np.testing.assert_allclose(found.truth().numpy(), truth, rtol=1e-13)
    assert found.amplification is not None


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.Tanh()

    def forward(self, x, step):
        return self.act(x + step) * self.act(x - step)


def test_the_step_and_the_call_that_are_asked_for_are_replayed():
    model = Twice()
    with probe.watch(model, keep=probe.Keep("*", roles="input, output"), live=False) as run:
        for step in range(3):
            model(X, step)
            run.step()
    for step, call, sign in ((2, 0, 1), (1, 1, -1)):
        found = run.replay("act", model, step, call=call)
        truth = np.tanh(wide(X + sign * step))
        np.testing.assert_allclose(found.truth().numpy(), truth, rtol=1e-14)
        assert (found.step, found.call) == (step, call)
    assert run.replay("act", model).step == 2
    with pytest.raises(
        SelectionError, match=r"No input of step 7 of `act` is there.*steps 0, 1, 2"
    ):
        run.replay("act", model, 7)


@pytest.mark.parametrize(
    ("ask", "error", "said"),
    [
        (lambda run, model: run.replay(model), SelectionError, "path of the module first"),
        (lambda run, model: run.replay("0"), SelectionError, "A run has no modules"),
        (lambda run, model: run.replay("0", 3), ModelError, "must be the model"),
        (lambda run, model: run.replay("0", nn.ReLU()), SelectionError, "no Linear itself"),
        (lambda run, model: run.replay("0", model, tolerance="tf33"), ConfigError, "tfloat32"),
        (lambda run, model: run.replay(api="Functional.no"), SelectionError, "was not to be kept"),
        (
            lambda run, model: run.replay("0", model, inputs={"0": X, "0.x": X}),
            ConfigError,
            "and a part of it",
        ),
    ],
)
def test_a_mistake_is_said_in_words(ask, error, said):
    model = nn.Sequential(nn.Linear(3, 3))
    run = watched(model, X)
    with pytest.raises(error, match=said):
        ask(run, model)


def test_the_module_itself_can_be_given_in_place_of_the_model():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    run = watched(model, X)
    assert run.replay("0", model[0]).truth().equal(run.replay("0", model).truth())


def test_wrappers_are_looked_through():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    run = watched(model, X)
    assert run.replay("0", nn.DataParallel(model)).verdict == "within"
    assert run.replay("0", torch.compile(model, backend="eager")).verdict == "within"


def test_a_saved_run_is_as_good(tmp_path):
    model = Many()
    run = watched(model, X, 3, (A, {"deep": B}), mode="minus")
    again = probe.load(run.save(tmp_path / "run.parquet"))
    assert (
        again.replay("(root)", model).truth("out").equal(run.replay("(root)", model).truth("out"))
    )


def test_a_run_of_tensors_alone_says_that_parameters_are_not_known(tmp_path):
    model = nn.Linear(3, 3)
    keep = probe.Keep("*", roles="input, output", folder=tmp_path / "kept")
    with probe.watch(model, keep=keep, live=False):
        model(X)
    found = probe.load(tmp_path / "kept").replay("(root)", model)
    assert found.verdict == "within"
    assert "no parameters of that step were recorded" in found.notices[0]


def test_parts_of_tensors_cannot_be_replayed():
    model = nn.Linear(3, 3)
    with probe.watch(model, keep="*", slices="0:0:1", live=False) as run:
        model(X)
    with pytest.raises(SelectionError, match="a replay needs all"):
        run.replay("(root)", model)


# -- functions -----------------------------------------------------------------------------------


def functions(act, keep="*"):
    with probe.watch(
        level="api", keep=probe.Keep(keep, roles="input, output"), values=True, live=False
    ) as run:
        out = act()
    return run, out


def test_a_function_is_replayed_by_its_name():
    run, _ = functions(lambda: torch.nn.functional.softmax(A, dim=0))
    found = run.replay(api="Functional.softmax")
    a = np.exp(wide(A))
    np.testing.assert_allclose(found.truth().numpy(), a / a.sum(0), rtol=1e-14)
    assert found.verdict == "within"
    assert found.name == "Functional.softmax"


def test_a_function_in_place_is_given_what_was_there_before():
    run, _ = functions(lambda: A.clone().add_(B, alpha=2))
    found = run.replay(api="Tensor.add_")
    np.testing.assert_allclose(found.truth().numpy(), wide(A) + 2 * wide(B), rtol=1e-14)
    assert found.verdict == "within"


def test_operators_and_functions_of_torch_are_found():
    run, _ = functions(lambda: torch.matmul(A, B.T) + torch.linalg.norm(A))
    for name in ("Torch.matmul", "Tensor.__add__", "Torch.linalg_norm", "Torch.norm"):
        if name in set(run.kept()["api"]):
            assert run.replay(api=name).verdict == "within", name
    assert run.replay(api="Torch.matmul").verdict == "within"


def test_a_function_of_ones_own_is_given():
    import types

    mine = types.SimpleNamespace(twice=lambda x: x * 2, __name__="mine")
    with probe.watch(level="api", keep=probe.Keep("*", roles="input, output"), live=False) as run:
        run.register_custom_api(mine, "twice")
        mine.twice(A)
    with pytest.raises(SelectionError, match="Give the function yourself"):
        run.replay(api="mine.twice")
    assert run.replay(api="mine.twice", of=lambda x: x * 2).verdict == "within"
    assert run.replay(api="mine.twice", of=lambda x: x * 3).verdict == "above"


def test_a_run_that_keeps_nothing_says_what_to_keep():
    model = nn.Sequential(nn.Linear(3, 3))
    with probe.watch(model, live=False) as run:
        model(X)
    with pytest.raises(SelectionError, match=r"keeps no tensors.*Keep\('\*', roles='input, output"):
        run.replay("0", model)
