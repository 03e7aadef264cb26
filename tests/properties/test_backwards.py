"""Each backward through a graph has its own rows, each with the gradient of that backward."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import functional

import probe_nb as probe
from tests.models import no_faults
from tests.museum.machines import Program
from tests.museum.programs import plan, sweep
from tests.museum.pure import Pure
from tests.properties.test_gradients import ALLOWED, EXAMPLES, weighted


def rows_by_task(run, ends):
    """Return the backward rows of each task: {(module, call, role, leaf): row}."""
    rows = run.df[run.df["direction"] == "backward"]
    rows = rows[~rows["leaf"].str.endswith(".grad")]  # what has been accumulated since
    tasks = []
    for low, high in itertools.pairwise([-1, *ends]):
        mine = rows[(rows["order"] > low) & (rows["order"] <= high)]
        keys = zip(mine["module"], mine["call"], mine["role"], mine["leaf"], strict=True)
        tasks.append(dict(zip(keys, mine.to_dict("records"), strict=True)))
        assert len(tasks[-1]) == len(mine), "two rows for one gradient"
    return tasks


def wanted(pure, model):
    """Return by the same keys what stands for a gradient, and how its row may come out."""
    found = {}
    for call in pure.calls:
        where = (f"parts.{call.kind}", call.number)
        for leaf, (t, verdict) in call.outputs.items():
            found[(*where, "grad_output", leaf)] = ([t], verdict)
        for leaf, (copies, verdict) in call.inputs.items():
            found[(*where, "grad_input", leaf)] = (copies, verdict)
    for name, parameter in model.named_parameters():
        module, leaf = name.rsplit(".", 1)
        found[module, 0, "param_grad", leaf] = ([parameter], "exact")
    return found


def gradients(loss, wanted):
    """Return the true gradients of a loss; those of one row are added up."""
    every = {key: [t for t in ts if t.requires_grad] for key, (ts, _) in wanted.items()}
    flat = [t for ts in every.values() for t in ts]
    found = iter(torch.autograd.grad(loss, flat, retain_graph=True, allow_unused=True))
    parts = {key: [g for _ in ts if (g := next(found)) is not None] for key, ts in every.items()}
    return {key: sum(gs).detach().numpy() for key, gs in parts.items() if gs}


def compare(rows, truth, wanted, *, whole, zeros=False, also=()):
    """Hold the rows of one task against the truth; `whole` says that no gradient may be missing."""
    for key in truth.keys() if whole else truth.keys() & rows.keys():
        status = rows[key]["status"] if key in rows else "none"
        if status == "none" and zeros and not truth[key].any():
            continue  # one of the two has a zero where the other has nothing
        assert status in ALLOWED[wanted[key][1]] | set(also), key
        if status == "ok":
            size = max(np.abs(truth[key]).max(), 1e-30)
            assert rows[key]["absmax"] == pytest.approx(size, rel=1e-5), key
            assert rows[key]["mean"] == pytest.approx(truth[key].mean(), rel=1e-5, abs=1e-6 * size)
    more = {key: row for key, row in rows.items() if key[0] and key not in truth}
    invented = {k for k, row in more.items() if row["status"] == "ok"}
    assert invented == ({k for k in invented if more[k]["absmax"] == 0} if zeros else set())


def prepared(wishes):
    torch.manual_seed(0)
    model = Program(plan(wishes))
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    return model, x, torch.randn(4, 3, dtype=torch.float64)


def examine_repeated(wishes):
    model, x, z = prepared(wishes)
    ends = []
    with no_faults(), probe.watch(model, live=False) as run:
        outputs = model(x, z=z.clone())
        for chosen in (outputs, outputs[:1], outputs):
            if (loss := weighted(chosen)) is not None:
                loss.backward(retain_graph=True)
            ends.append(run.df["order"].max())
    pure = Pure(model, x, z)
    wants = wanted(pure, model)
    results = [thing.peek() for thing in pure.results]
    for rows, chosen in zip(rows_by_task(run, ends), (results, results[:1], results), strict=True):
        loss = weighted(chosen)
        compare(rows, {} if loss is None else gradients(loss, wants), wants, whole=True)
    assert_numbered(run)


def assert_numbered(run):
    """Hold that the backwards of each call, in the order they came, are 0, 1, 2 ..."""
    rows = run.df[(run.df["direction"] == "backward") & (run.df["role"] != "param_grad")]
    for _, mine in rows.groupby(["module", "call"], observed=True):
        numbers = mine.sort_values("order")["backward"].tolist()
        if mine["backward"].isna().all():  # nothing of the call's could be read, nor be told of
            continue
        assert sorted(set(numbers)) == list(range(max(numbers) + 1))
        assert numbers == sorted(numbers)


def examine_second_order(wishes):
    model, x, z = prepared(wishes)
    pure = Pure(model, x, z)
    loss = weighted([thing.peek() for thing in pure.results])
    first = None if loss is None else penalty(loss, x)
    if first is None:
        return 0
    wants = wanted(pure, model)
    truths = gradients(loss, wants), gradients(first, wants)
    ends = []
    with no_faults(), probe.watch(model, live=False) as run:
        again = penalty(weighted(model(x, z=z.clone())), x)
        ends.append(run.df["order"].max())
        again.backward()
        ends.append(run.df["order"].max())
    rows = rows_by_task(run, ends)
    compare(rows[0], truths[0], wants, whole=False)
    compare(rows[1], truths[1], wants, whole=True, zeros=True, also=("unsupported",))
    assert_numbered(run)
    assert all(len(wants[k][0]) == 2 for k, r in rows[1].items() if r["status"] == "unsupported")
    return sum(row["status"] == "ok" for row in rows[1].values())


def penalty(loss, x):
    """Return the squared norm of the gradient, None if it depends on nothing."""
    (g,) = torch.autograd.grad(loss, x, create_graph=True, allow_unused=True)
    return g.square().sum() if g is not None and g.requires_grad else None


def test_every_backward_through_a_random_program_has_its_own_rows():
    sweep(examine_repeated, EXAMPLES // 4)


def test_a_gradient_of_a_gradient_of_a_random_program_is_read():
    read = []
    sweep(lambda wishes: read.append(examine_second_order(wishes)), EXAMPLES // 2)
    assert sum(n > 0 for n in read) > EXAMPLES // 20


class Squares(nn.Module):
    """Its gradient depends on its argument: the second backward reaches it past the forward."""

    def forward(self, x):
        return x * x * x


def watched_penalty(model, x):
    """Return the run of a gradient penalty, and the gradients of both backwards at the input."""
    with no_faults(), probe.watch(model, live=False) as run:
        (g,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (g.norm() ** 2).backward()
    return run, g.detach(), x.grad


def test_a_gradient_penalty_has_rows_of_both_backwards():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    run, first, second = watched_penalty(nn.Sequential(Squares()), x)
    assert first.tolist() == [3.0, 12.0]  # 3 x^2
    assert second.tolist() == pytest.approx([36.0, 288.0])  # of 9 x^4: 36 x^3
    for module in ("(root)", "0"):
        found = run.frame(role="grad_input", module=module)
        assert found["backward"].tolist() == [0, 1]
        assert found["mean"].tolist() == pytest.approx([7.5, 162.0])
    assert run.frame(role="grad_output", module="0")["mean"].tolist() == [1.0]


def test_what_arrives_at_an_output_in_the_second_backward_is_read():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    x = torch.randn(4, 3, requires_grad=True)
    run, _, _ = watched_penalty(model, x)
    hidden = model[0](x)
    passed = hidden.tanh()
    (g,) = torch.autograd.grad(model[2](passed).sum(), x, create_graph=True)
    truth = torch.autograd.grad(g.norm() ** 2, (hidden, passed, model[0].weight))
    places = (("grad_output", "0"), ("grad_output", "1"), ("param_grad", "0"))
    for (role, module), gradient in zip(places, truth, strict=True):
        rows = run.frame(role=role, module=module)
        row = rows[(rows["backward"] == 1) & rows["leaf"].isin(["0", "weight"])]
        assert row["l2"].item() == pytest.approx(gradient.norm().item(), rel=1e-4)


def test_a_parameters_backward_has_the_number_of_its_modules():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    x = torch.ones(1, 2, requires_grad=True)
    run, _, _ = watched_penalty(model, x)
    found = run.frame(role="param_grad", direction="backward", module="0", leaf="weight")
    assert found["backward"].tolist() == [1]  # the first backward went to the input alone
    assert run.frame(role="grad_output", module="0")["backward"].tolist() == [0, 1]


def test_two_losses_over_one_trunk_have_a_backward_each():
    trunk, heads = nn.Linear(2, 2, bias=False), (nn.Linear(2, 1, bias=False), nn.Linear(2, 1))
    model = nn.ModuleDict({"trunk": trunk, "a": heads[0], "b": heads[1]})
    x = torch.ones(1, 2)
    with no_faults(), probe.watch(model, live=False) as run:
        h = trunk(x)
        losses = [head(h).sum() * factor for head, factor in zip(heads, (2.0, 3.0), strict=True)]
        for loss in losses:
            loss.backward(retain_graph=True)
    found = run.frame(role="grad_output", module="trunk")
    assert found["backward"].tolist() == [0, 1]
    truth = [heads[0].weight * 2, heads[1].weight * 3]
    assert found["l2"].tolist() == pytest.approx([t.norm().item() for t in truth])
    weights = run.frame(role="param_grad", direction="backward", module="trunk", leaf="weight")
    assert weights["backward"].tolist() == [0, 1]
    assert run.frame(role="grad_output", module="b")["backward"].tolist() == [0]


@pytest.mark.parametrize("first", ["autograd.grad", "inputs="])
def test_a_backward_to_some_inputs_and_a_whole_one_are_two(first):
    model = nn.Linear(2, 2, bias=False)
    x = torch.ones(1, 2, requires_grad=True)
    with no_faults(), probe.watch(model, live=False) as run:
        loss = model(x).sum()
        if first == "inputs=":
            loss.backward(inputs=[x], retain_graph=True)
        else:
            torch.autograd.grad(loss, x, retain_graph=True)
        loss.backward()
    for role in ("grad_output", "grad_input"):
        assert run.frame(role=role)["backward"].tolist() == [0, 1]
    assert run.frame(role="param_grad", direction="backward", leaf="weight")[
        "backward"
    ].tolist() == [1]


@pytest.mark.parametrize("name", ["vjp", "jacobian", "hvp", "hessian", "vhp"])
def test_functional_derivatives_are_the_same_and_make_no_fault(name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    x, v = torch.randn(3).double(), torch.randn(3).double()
    given = {"vjp": (x,), "hvp": (x, v), "vhp": (x, v)}.get(name, (x,))

    def compute():
        return getattr(functional, name)(lambda t: model(t).sum(), *given)

    bare = compute()
    with no_faults(), probe.watch(model, live=False) as run:
        found = compute()
    pairs = zip(*((t if isinstance(t, tuple) else (t,)) for t in (bare, found)), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert "grad_output" in set(run.df["role"])


def test_a_product_with_the_hessian_arrives_at_the_input():
    x, v = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([1.0, 10.0])
    model = nn.Sequential(Squares())
    with no_faults(), probe.watch(model, live=False) as run:
        (g,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (product,) = torch.autograd.grad(g, x, v, create_graph=True)
        torch.autograd.grad(product.sum(), x)
    assert product.tolist() == [6.0, 120.0]  # 6 x v
    rows = run.frame(role="grad_input", module="0")
    assert rows["mean"].tolist() == [7.5, 63.0, 33.0]  # the last is the third derivative, 6 v
    assert rows["backward"].tolist() == [0, 1, 2]
