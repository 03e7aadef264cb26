"""Forwards that run twice, compiled, scripted, unbuilt or inside a transform."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import probe_nb as probe
from tests.cases.watching import norm, numbers, watched
from tests.models import no_faults


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("inner", [False, True], ids=["whole model", "one layer"])
def test_a_checkpointed_call_has_the_rows_of_a_plain_one_and_the_next_call_its_own(
    reentrant, inner
):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.on = layers(), True

        def forward(self, x):
            if self.on and inner:
                return checkpoint(self.body, x, use_reentrant=reentrant)
            return self.body(x)

    model = Outer()
    x = torch.randn(2, 4, requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with no_faults(), probe.watch(model, optimizer=optimizer, live=False) as run:
        if inner:
            model(x).sum().backward()
        else:
            checkpoint(model, x, use_reentrant=reentrant).sum().backward()
        model.on = False
        model(x).sum().backward()
    flowing = ["input", "output", "grad_output", "grad_input"]
    for path in ("", "body", "body.0", "body.1", "body.2"):
        for role in flowing:
            rows = run.frame(module=path, role=[role])
            assert rows["call"].tolist() == [0, 1], (path, role)
            first, second = rows["l2"]
            assert first == pytest.approx(second, rel=1e-5), (path, role)
    assert set(run.df["module"]) == {"", "body", "body.0", "body.1", "body.2"}


@pytest.fixture
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def by_function(model, backend):
    return torch.compile(model, backend=backend)


def in_place(model, backend):
    model.compile(backend=backend)
    return model


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("way", [by_function, in_place])
def test_a_model_that_was_compiled_before_the_watch_is_never_a_silent_empty_table(way, backend):
    model = way(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend)
    x = torch.ones(2, 4)
    model(x)
    with no_faults(), probe.watch(model, live=False) as run:
        model(x).sum().backward()
    seen = set(run.frame(role="output")["module"])
    missed = run.coverage().set_index("module")["reason"].to_dict()
    assert seen | missed.keys() == {"", "0", "1"}
    assert {missed[path] for path in {"0", "1"} - seen} <= {"compiled"}
    assert {"0", "1"} - seen == set() or "compiled" in repr(run)
    rows = len(run)
    model(x).sum().backward()
    assert len(run) == rows
    with no_faults(), probe.watch(model, compiled="eager", live=False) as again:
        model(x).sum().backward()
    assert set(again.frame(role="output")["module"]) == {"", "0", "1"}
    assert "_orig_mod" not in again.df.to_csv()


@pytest.mark.usefixtures("fresh")
def test_one_compiled_layer_hides_nothing_else():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].compile(backend="aot_eager")
    x = torch.ones(2, 4)
    model(x)
    run = watched(model, x)
    inner = model[0](x)
    middle = model[1](inner)
    last = model[2](middle)
    gradients = torch.autograd.grad(last.square().sum(), (inner, middle, last))
    found = numbers(run, "grad_output")
    assert found["0", "0"] == norm(gradients[0])
    assert found["2", "0"] == norm(gradients[2])
    assert {"0", "2", ""} <= set(run.frame(role="output")["module"])
    assert "1" in set(run.coverage()["module"]) | set(run.frame(role="output")["module"])


SCRIPTED = {
    "scripted": lambda: torch.jit.script(nn.Linear(2, 2)),
    "traced": lambda: torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)),
    "scripted block": lambda: torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU())),
}


@pytest.mark.parametrize("kind", SCRIPTED)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_scripted_child_anywhere_stops_nobody(kind, place):
    children = [nn.Linear(2, 2), nn.LazyLinear(2)]
    children.insert(place, SCRIPTED[kind]())
    model = nn.Sequential(*children)
    run = watched(model, torch.ones(1, 2), loss=torch.sum)
    outputs = set(run.frame(role="output")["module"])
    listed = set(run.coverage()["module"])
    assert {"", "0", "1", "2"} <= outputs | listed
    assert {"", *(str(n) for n in range(3) if n != place)} <= outputs
    rows = run.frame(role="param_grad", direction="backward").to_dict("records")
    assert {r["module"] for r in rows} >= {str(n) for n in range(3) if n != place}
    assert "LazyLinear" not in set(run.df["type"])
    assert model[1 if place == 0 else 0]._forward_hooks == {}


LAZY = {
    "LazyLinear": (lambda: nn.LazyLinear(3), (2, 4), "Linear"),
    "LazyConv2d": (lambda: nn.LazyConv2d(3, 2), (2, 4, 5, 5), "Conv2d"),
    "LazyBatchNorm1d": (nn.LazyBatchNorm1d, (3, 4), "BatchNorm1d"),
}


@pytest.mark.parametrize("name", LAZY)
def test_a_module_without_parameters_yet_has_those_of_its_first_step(name):
    make, shape, became = LAZY[name]
    model = nn.Sequential(nn.Tanh(), make())
    run = watched(model, torch.randn(*shape))
    rows = run.frame(module="1")
    assert set(rows["type"]) == {became}
    found = numbers(run, "param_grad")
    assert found == {("1", n): norm(p.grad) for n, p in model[1].named_parameters()}
    assert {r["leaf"] for r in rows[rows["role"] == "param"].to_dict("records")} == {
        n for n, _ in model[1].named_parameters()
    }


def test_on_the_meta_device_shapes_are_told_and_numbers_are_not():
    model = nn.Sequential(nn.Linear(2, 3, device="meta"), nn.ReLU(inplace=True))
    run = watched(model, torch.empty(1, 2, device="meta"))
    assert set(run.df["status"]) == {"meta"}
    assert run.frame(module="0", role="grad_output")["shape"].tolist() == [(1, 3)]
    statistics = ["min", "max", "mean", "std", "l2", "absmax", "nan_count"]
    assert run.df[statistics].isna().all(axis=None)


def mapped(model, x):
    return torch.vmap(model)(x)


def ensemble(model, x):
    weights, buffers = torch.func.stack_module_state([model, model])
    return torch.vmap(lambda w, b: torch.func.functional_call(model, (w, b), (x,)), in_dims=(0, 0))(
        weights, buffers
    )


def per_sample(model, x):
    weights = dict(model.named_parameters())

    def loss(w, sample):
        return torch.func.functional_call(model, w, (sample,)).sum()

    return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)


def functional(model, x):
    weights = dict(model.named_parameters())
    return torch.func.grad(lambda w: torch.func.functional_call(model, w, (x,)).sum())(weights)


TRANSFORMS = {
    "vmap": mapped,
    "an ensemble": ensemble,
    "a gradient per sample": per_sample,
    "grad": functional,
    "jacrev": lambda model, x: torch.func.jacrev(model)(x),
    "jacfwd": lambda model, x: torch.func.jacfwd(model)(x),
    "jvp": lambda model, x: torch.func.jvp(model, (x,), (torch.ones_like(x),)),
    "vjp": lambda model, x: torch.func.vjp(model, x)[1](torch.ones(3, 4)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_gives_what_it_gives_without_a_watch_and_rows_say_why_they_have_no_number(name):
    model, x = layers(), torch.linspace(-1, 1, 12).reshape(3, 4)
    expected = torch.utils._pytree.tree_leaves(TRANSFORMS[name](model, x))
    with no_faults(), probe.watch(model, live=False) as run:
        found = torch.utils._pytree.tree_leaves(TRANSFORMS[name](model, x))
    assert len(found) == len(expected) > 0
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    outputs = run.frame(role="output")
    assert set(outputs["module"]) == {"", "0", "1", "2"}
    assert set(outputs["status"]) <= {"ok", "vmapped"}
    measured = outputs[(outputs["status"] == "ok") & (outputs["module"] == "")]
    assert all(value == norm(model(x)) for value in measured["l2"])
    if name in ("grad", "vjp", "jvp"):
        assert len(measured) == 1
    if name in ("vmap", "an ensemble", "a gradient per sample"):
        assert set(outputs["status"]) == {"vmapped"}


@pytest.mark.parametrize("level", ["api", "mix"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_functions_inside_a_transform_have_their_rows_though_parameters_are_not_of_it(name, level):
    model, x = layers(), torch.linspace(-1, 1, 12).reshape(3, 4)
    expected = torch.utils._pytree.tree_leaves(TRANSFORMS[name](model, x))
    with no_faults(), probe.watch(model, level=level, values=True, live=False) as run:
        found = torch.utils._pytree.tree_leaves(TRANSFORMS[name](model, x))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    linear = run.frame(api="Functional.linear", direction="forward")
    assert {"failed"}.isdisjoint(run.df["status"])
    assert len(linear[linear["role"] == "input"]) == 2 * 3  # x, weight, bias
    outputs = linear[linear["role"] == "output"]
    assert len(outputs) == 2
    if name in ("grad", "vjp", "jvp"):
        assert outputs["l2"].iloc[0] == norm(model[0](x))
        assert outputs["l2"].iloc[1] == norm(model(x))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_without_gradients_there_are_forward_rows_and_inference_tensors_can_be_written(mode):
    model, x = layers(), torch.ones(2, 4)
    with no_faults(), probe.watch(model, live=False) as run, mode():
        y = model(x)
        expected = y.clone()
        y.add_(1)
        model(y)
    assert set(run.df["role"]) == {"param", "input", "output"}
    assert run.frame(module="(root)", role="output")["l2"].tolist()[0] == norm(expected)
    assert run.frame(module="(root)", role="input")["l2"].tolist()[1] == norm(expected + 1)
