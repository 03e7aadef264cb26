"""Parameters, buffers, modes and chance: a verdict is given only where they are those of the step."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

import probe_nb as probe
from tests.unit.replay.replaying import steps, watched, wide

X = steps(6, 4)


def trained(roles="input, output"):
    """Train for two steps; return the run, the model, and its state before each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    states = []
    with probe.watch(model, keep=probe.Keep("*", roles=roles), live=False) as run:
        for _ in range(2):
            states.append(copy.deepcopy(model.state_dict()))
            model(X).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return run, model, states


def test_parameters_that_moved_since_give_no_verdict():
    run, model, _ = trained()
    found = run.replay("0", model)
    assert found.verdict == "not_judged"
    assert "the parameters weight, bias are not those of step 1" in found.sentence
    assert found.df["error"].isna().all()
    assert found.amplification is None


@pytest.mark.parametrize("step", [0, 1])
def test_a_state_of_the_step_gives_one(step):
    run, model, states = trained()
    found = run.replay("2", model, step, state=states[step])
    truth = wide(run.tensor("2", step=step)) @ wide(states[step]["2.weight"]).T
    truth += wide(states[step]["2.bias"])
    np.testing.assert_allclose(found.truth().numpy(), truth, rtol=1e-13)
    assert found.verdict == "within"
    own = {name[2:]: value for name, value in states[step].items() if name.startswith("2.")}
    assert run.replay("2", model, step, state=own).verdict == "within"
    assert run.replay("2", model, step, state=states[1 - step]).verdict == "not_judged"


def test_parameters_that_were_kept_are_taken():
    run, model, states = trained("input, output, param, buffer")
    for step in range(2):
        found = run.replay("2", model, step)
        assert found.verdict == "within"
        truth = wide(run.tensor("2", step=step)) @ wide(states[step]["2.weight"]).T
        np.testing.assert_allclose(found.truth().numpy(), truth + wide(states[step]["2.bias"]))


def test_a_checksum_tells_what_statistics_do_not():
    model = nn.Linear(4, 4, bias=False)
    keep = probe.Keep("*", roles="input, output")
    runs = {}
    for checksum in (None, "crc32", "xor"):
        with probe.watch(model, keep=keep, checksum=checksum, live=False) as runs[checksum]:
            model(X)
        assert runs[checksum].replay("(root)", model).verdict == "within"
    with torch.no_grad():
        model.weight.copy_(model.weight.flip(0))
    assert runs[None].replay("(root)", model).verdict == "above"
    for checksum in ("crc32", "xor"):
        assert runs[checksum].replay("(root)", model).verdict == "not_judged"


def test_running_statistics_that_moved_do_not_matter_in_training():
    model = nn.Sequential(nn.BatchNorm1d(4))
    run = watched(model, X)
    found = run.replay("0", model)
    a = wide(X)
    truth = (a - a.mean(0)) / np.sqrt(a.var(0) + 1e-5)
    np.testing.assert_allclose(found.truth().numpy(), truth, rtol=1e-12)
    assert found.verdict == "within"


def test_and_do_in_evaluation():
    model = nn.Sequential(nn.BatchNorm1d(4)).eval()
    run = watched(model, X)
    assert run.replay("0", model).verdict == "within"
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model[0].running_mean += 1
    found = run.replay("0", model)
    assert found.verdict == "not_judged"
    assert "the buffers running_mean" in found.sentence
    assert run.replay("0", model, state=before).verdict == "within"


def test_modes_are_those_of_the_call():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4)))
    model.eval()
    model[0].train()
    run = watched(model, X)
    model.train()
    assert run.replay("1", model).verdict == "within"
    assert run.replay("(root)", model).verdict == "within"
    assert all(each.training for each in model.modules())


class Noisy(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        return x + self.draw(x)


@pytest.mark.parametrize(
    ("module", "named"),
    [
        (nn.Dropout(0.5), "bernoulli_"),
        (Noisy(torch.randn_like), "randn_like"),
        (Noisy(lambda x: float(np.random.rand())), "two replays of it differ"),  # noqa: NPY002
        (Noisy(lambda x: random.random()), "two replays of it differ"),
    ],
)
def test_chance_is_told_and_gives_no_verdict(module, named):
    model = nn.Sequential(module)
    found = watched(model, X).replay("0", model)
    assert found.verdict == "not_judged"
    assert named in found.sentence
    assert found.df["error"].isna().all()


def test_dropout_that_is_off_is_no_chance():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    assert watched(model, X).replay("(root)", model).verdict == "within"


def test_what_float64_cannot_do_is_said():
    class Refuses(nn.Module):
        def forward(self, x):
            if x.dtype == torch.float64:
                raise NotImplementedError("this kernel has no float64")
            return x

    class Bits(nn.Module):
        def forward(self, x):
            return (x.view(torch.int32) & -2).view(torch.float32)

    for module, why in ((Refuses(), "has no float64"), (Bits(), "reads the bits")):
        found = watched(module, X).replay("(root)", module)
        assert found.verdict == "not_judged"
        assert why in found.sentence


def test_a_module_that_cannot_be_copied_is_said():
    class Rigid(nn.Linear):
        def __deepcopy__(self, memo):
            raise RuntimeError("not me")

    model = Rigid(4, 4)
    found = watched(model, X).replay("(root)", model)
    assert found.verdict == "not_judged"
    assert "cannot be copied (RuntimeError: not me)" in found.sentence


def test_a_module_that_holds_its_last_result_can_be():
    class Holds(nn.Linear):
        def forward(self, x):
            self.last = [super().forward(x)]
            return self.last[0]

    model = Holds(4, 4)
    assert watched(model, X).replay("(root)", model).verdict == "within"


def test_a_module_that_writes_its_input_is_given_what_was_there_before():
    model = nn.Sequential(nn.ReLU(inplace=True))
    found = watched(model, X.clone(), backward=False).replay("0", model)
    np.testing.assert_array_equal(found.truth().numpy(), np.maximum(wide(X), 0))
    assert found.verdict == "within"


def test_choices_that_fall_otherwise_are_no_fault():
    class Chosen(nn.Module):
        def forward(self, x):
            values, places = x.topk(2, dim=-1)
            return values, places, places > 1

    model = Chosen()
    run = watched(model, X)
    found = run.replay("(root)", model)
    assert found.df["mismatched"].tolist() == [0, 0, 0]
    assert found.verdict == "within"

    class Other(Chosen):
        def forward(self, x):
            values, places = x.topk(2, dim=-1)
            return values, places.flip(-1), places > 1

    found = watched(Other(), X).replay("(root)", model)
    assert found.df["verdict"].tolist() == ["within", "not_judged", "within"]
    assert found.df["mismatched"].iloc[1] == 12
    assert "may fall otherwise" in found.df["reason"].iloc[1]


@pytest.mark.parametrize("kind", ["weight_norm", "parametrized", "pruned"])
def test_parameters_that_are_computed_by_hooks_of_torch_are(kind):
    model = nn.Sequential(nn.Linear(4, 4))
    if kind == "weight_norm":
        with pytest.warns(FutureWarning):
            nn.utils.weight_norm(model[0])
    elif kind == "parametrized":
        nn.utils.parametrizations.weight_norm(model[0])
    else:
        from torch.nn.utils import prune

        prune.l1_unstructured(model[0], "weight", amount=0.5)
    with torch.no_grad():
        model(X)  # the weight is there
        truth = wide(X) @ wide(model[0].weight).T + wide(model[0].bias)
    found = watched(model, X).replay("0", model)
    np.testing.assert_allclose(found.truth().numpy(), truth, rtol=1e-6, atol=1e-7)
    assert found.verdict == "within", found


def test_parameters_of_another_shape_are_those_of_another_module():
    run = watched(nn.Linear(4, 3), X)
    found = run.replay("(root)", nn.Linear(4, 5))
    assert found.verdict == "not_judged"
    assert "weight is (5, 4), and was (3, 4): this is another module" in found.sentence
    assert "state=" not in found.sentence
