"""What is recorded of functions beside modules changes nothing of what is said of the modules."""

import pytest
import torch
from torch import nn

import probe_nb as probe
from benchmarks.faults import blocks, planted, unseen  # noqa: F401 - they fill the collections
from benchmarks.faults.case import PLANTED, UNSEEN

blocks.digits(1, 1)  # scikit-learn, when it is imported, changes the filters of warnings for good


def stack(third=1.0):
    torch.manual_seed(0)
    linear = [nn.Linear(32, 32) for _ in range(3)]
    with torch.no_grad():
        linear[1].weight.mul_(third)
    return nn.Sequential(linear[0], nn.ReLU(), linear[1], nn.ReLU(), linear[2], nn.ReLU())


def trained(model, level, scale=1.0, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with probe.watch(model, optimizer=optimizer, level=level, live=False) as run:
        for _ in range(steps):
            optimizer.zero_grad()
            (model(torch.randn(16, 32) * scale)).square().mean().backward()
            optimizer.step()
    return run


def said(run, kind):
    found = run.findings()
    return found.loc[found["kind"] == kind, ["severity", "module", "sentence"]].values.tolist()


def test_a_layer_that_blows_values_up_is_named_at_both_levels():
    alone, beside = (trained(stack(300.0), level) for level in ("module", "mix"))
    (found,) = said(alone, "growing")
    assert found[1] == "2"
    assert said(beside, "growing") == [found]


def test_only_the_models_own_input_is_what_it_is_fed():
    loud = trained(stack(300.0), "mix")
    mean = loud.df[(loud.df["api"] == "Tensor.mean") & (loud.df["role"] == "input")]
    assert mean["absmax"].max() > 1000  # the loss is fed so much, and the model is not
    assert said(loud, "input_scale") == []
    fed = trained(stack(), "mix", scale=100.0)
    ((severity, module, sentence),) = said(fed, "input_scale")
    assert (severity, module) == ("note", "")
    assert sentence.endswith("(root) (forward input)")


def case(name):
    every = (PLANTED.faults, PLANTED.healthy, UNSEEN.faults, UNSEEN.healthy)
    return next(each for group in every for each in group if each.name == name)


def kinds(name, level):
    program = case(name).program()
    watch = probe.watch(
        program.model,
        optimizer=program.optimizer,
        scaler=program.scaler,
        level=level,
        live=False,
    )
    with watch as run:
        program.run()
    found = run.findings()
    return set(zip(found["severity"], found["kind"], strict=True))


@pytest.mark.parametrize(
    "name",
    ["bias_before_batchnorm", "scale_found", "hinge", "experts", "loss_scale_too_high"],
)
def test_functions_beside_modules_neither_hide_a_finding_nor_make_one(name):
    assert kinds(name, "mix") == kinds(name, "module")
