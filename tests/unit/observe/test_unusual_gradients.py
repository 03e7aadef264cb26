"""Gradients where modules and autograd are used in unusual ways."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch.autograd import graph
from torch.func import functional_call

import probe_nb as probe
from tests.models import no_faults


class Calls(nn.Module):
    """Calls a function with itself."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args):
        return self.function(self, *args)


def l2(run, role, module="(root)"):
    """Return the norms of one role, None where there is no number."""
    rows = run.frame(role=role, module=module).to_dict("records")
    rows = [row for row in rows if not row["leaf"].endswith(".grad")]
    return [row["l2"] if row["status"] == "ok" else row["status"] for row in rows]


def test_an_output_that_is_a_parameter_has_the_gradient_of_the_parameter():
    model = Calls(lambda self: self.w, w=nn.Parameter(torch.ones(2, 2)))
    with no_faults(), probe.watch(model, live=False) as run:
        (model() * 3).sum().backward()
    assert l2(run, "grad_output") == l2(run, "param_grad") == [6.0]
    assert model.w.grad.tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_an_expanded_output_has_a_gradient_for_each_element():
    model = Calls(lambda self: self.w.expand(5, 2), w=nn.Parameter(torch.ones(2)))
    with no_faults(), probe.watch(model, live=False) as run:
        (model() * torch.arange(10.0).reshape(5, 2)).sum().backward()
    row = run.frame(role="grad_output").iloc[0]
    assert (row["numel"], row["max"], row["mean"]) == (10, 9.0, 4.5)


@pytest.mark.filterwarnings("ignore:Complex modules")
def test_a_complex_output_has_the_modulus_of_its_gradient():
    torch.manual_seed(0)
    model = nn.Linear(3, 2).to(torch.cfloat)
    x = torch.randn(4, 3, dtype=torch.cfloat, requires_grad=True)
    with no_faults(), probe.watch(model, live=False) as run:
        y = model(x)
        y.abs().square().sum().backward()
    assert l2(run, "grad_output") == [pytest.approx(2 * y.abs().norm().item(), rel=1e-5)]
    assert l2(run, "grad_input") == [pytest.approx(x.grad.abs().norm().item(), rel=1e-5)]


def test_a_sparse_gradient_is_measured_as_the_sum_it_stands_for():
    model = nn.Embedding(6, 2, sparse=True)
    with no_faults(), probe.watch(model, live=False) as run:
        model(torch.tensor([1, 1, 4])).sum().backward()
    assert model.weight.grad.is_sparse
    row = run.frame(role="param_grad", leaf="weight").iloc[0]
    assert (row["numel"], row["max"], row["l2"]) == (12, 2.0, pytest.approx(10**0.5))


@pytest.mark.parametrize("when", ["in the forward", "afterwards"])
def test_a_hook_of_the_users_that_came_first_is_seen_and_a_later_one_is_not(when):
    def forward(self, x):
        y = self.inner(x)
        if when == "in the forward":
            y.register_hook(lambda g: g * 10)
        return y

    model = Calls(forward, inner=nn.Identity(), outer=nn.Identity())
    model.inner.forward = lambda x: x * 2
    x = torch.ones(2, requires_grad=True)
    with no_faults(), probe.watch(model, live=False) as run:
        y = model(x)
        if when == "afterwards":
            y.register_hook(lambda g: g * 10)
        y.backward(torch.tensor([3.0, 4.0]))
    assert x.grad.tolist() == [60.0, 80.0]
    assert l2(run, "grad_output", "inner") == [
        pytest.approx(5)
    ]  # at the module's end there was none yet
    assert l2(run, "grad_output") == [pytest.approx(50 if when == "in the forward" else 5)]
    assert l2(run, "grad_input") == l2(run, "grad_input", "inner") == [pytest.approx(100)]


def trained(settings, *, watched):
    """Return the gradients of a step and what `settings` noted."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 1))
    x = torch.randn(4, 3, requires_grad=True)
    noted: list = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(settings(noted))
        if watched:
            stack.enter_context(no_faults())
            run = stack.enter_context(probe.watch(model, live=False))
        hidden = model[0](x)
        hidden.retain_grad()
        model[2](model[1](hidden)).sum().backward()
    if watched:
        assert l2(run, "grad_input", "0") == [pytest.approx(x.grad.norm().item(), rel=1e-5)]
    tensors = [hidden.grad, x.grad, *(p.grad for p in model.parameters())]
    return [None if t is None else t.tolist() for t in tensors], noted


def packing(noted):
    def pack(t):
        noted.append((tuple(t.shape), t._version))
        return t.clone()

    return graph.saved_tensors_hooks(pack, lambda t: t)


@pytest.mark.parametrize(
    "settings",
    [
        packing,
        lambda _: graph.save_on_cpu(),
        lambda _: torch.autograd.set_detect_anomaly(mode=True, check_nan=True),
        lambda _: torch.autograd.set_multithreading_enabled(False),
        lambda _: graph.allow_mutation_on_saved_tensors(),
    ],
    ids=["saved_tensors_hooks", "save_on_cpu", "anomaly", "one thread", "mutation"],
)
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_settings_of_autograd_stay_in_force_and_see_nothing_of_ours(settings):
    assert trained(settings, watched=True) == trained(settings, watched=False)


def adapted(*, watched, create_graph=True):
    """Return the gradients of a meta-learning step: a backward inside of a forward."""

    def forward(self, x, y):
        weights = dict(self.net.named_parameters())
        for _ in range(2):
            loss = (functional_call(self.net, weights, (x,)) - y).square().mean()
            found = torch.autograd.grad(loss, list(weights.values()), create_graph=create_graph)
            pairs = zip(weights.items(), found, strict=True)
            weights = {name: w - 0.1 * g for (name, w), g in pairs}
        return functional_call(self.net, weights, (x,))

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    model = Calls(forward, net=net)
    x, y = torch.randn(4, 2, requires_grad=True), torch.randn(4, 1)
    run = None
    with contextlib.ExitStack() as stack:
        if watched:
            stack.enter_context(no_faults())
            run = stack.enter_context(probe.watch(model, live=False))
        model(x, y).sum().backward()
    return [p.grad.tolist() for p in model.parameters()], x.grad, run


def test_a_backward_inside_of_a_forward_has_rows_and_changes_nothing():
    bits, whole, run = adapted(watched=True)
    assert bits == adapted(watched=False)[0]
    inner = run.frame(role="grad_output", module="net.2")
    assert sorted(set(inner["call"])) == [0, 1, 2]
    for call in (0, 1):  # its own backward, and the one of the outer loss through it
        assert inner[inner["call"] == call]["backward"].tolist() == [0, 1]
    assert inner[inner["call"] == 2]["backward"].tolist() == [0]
    assert l2(run, "grad_input") == [pytest.approx(whole.norm().item(), rel=1e-5)]


def test_the_inner_shares_of_a_meta_learning_step_add_up_to_the_gradient():
    """The input is used by the three calls of `net` alone, so their shares are all of it."""
    _, whole, run = adapted(watched=True)
    rows = run.frame(role="grad_input", module="net.0")
    last = [rows[rows["call"] == call].iloc[-1] for call in range(3)]
    assert sum(row["mean"] for row in last) == pytest.approx(whole.mean().item(), rel=1e-4)
