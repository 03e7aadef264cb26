"""Gradients of single traps, each expected value found by hand or by `torch.autograd.grad`."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import probe_nb as probe
from tests.models import no_faults
from tests.museum.containers import Gives, Packs, SelfAttention
from tests.museum.graphs import Branches, Tied
from tests.museum.inplace import StaleArguments


def rows(run, role, module=None):
    """Return {(module, leaf): [mean, ...]} of one role, None where there is no number."""
    found: dict[tuple[str, str], list] = {}
    for row in run.df[run.df["role"] == role].to_dict("records"):
        mean = row["mean"] if row["status"] == "ok" else row["status"]
        found.setdefault((row["module"], row["leaf"]), []).append(mean)
    return (
        {leaf: v for (m, leaf), v in found.items() if m == module} if module is not None else found
    )


def watched(model, *args, loss=torch.sum, **kwargs):
    with no_faults(), probe.watch(model, live=False) as run:
        loss(model(*args, **kwargs)).backward()
    return run


class Weighs(nn.Module):
    """Sends 2 to its first argument, 3 to its second."""

    def forward(self, a, b):
        return 2 * a + 3 * b


def test_an_in_place_network_has_the_gradients_of_its_twin():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    x = torch.randn(2, 4)
    run = watched(model, x, loss=lambda y: y.square().sum())
    first = model[0](x)
    second = first.relu()
    third = model[2](second)
    truth = torch.autograd.grad(third.square().sum(), (first, second, third))
    for module, gradient in zip("012", truth, strict=True):
        (found,) = rows(run, "grad_output", module)["0"]
        assert found == pytest.approx(gradient.double().mean().item(), rel=1e-5)


def test_each_consumer_of_a_tensor_has_its_own_share():
    class Fans(nn.Module):
        """Hands one tensor to two children."""

        def __init__(self):
            super().__init__()
            self.a, self.b = Weighs(), Weighs()

        def forward(self, x):
            return self.a(x, x.detach()) + self.b(x.detach(), x)

    run = watched(Fans(), torch.ones(2, 2, requires_grad=True))
    assert rows(run, "grad_input") == {("a", "0"): [2.0], ("b", "1"): [3.0], ("", "0"): [5.0]}


def test_one_tensor_passed_twice_has_one_row_that_names_both_places():
    x = torch.ones(2, 2, requires_grad=True)
    run = watched(Weighs(), x, x)
    assert rows(run, "grad_input") == {("", "0+1"): [5.0]}
    run = watched(Weighs(), a=x, b=x)
    assert rows(run, "grad_input") == {("", "kwargs.a+kwargs.b"): [5.0]}


def test_attention_over_one_tensor_has_the_whole_gradient_in_one_row():
    torch.manual_seed(0)
    model = SelfAttention()
    x = torch.randn(2, 3, 4, requires_grad=True)
    run = watched(model, x, loss=lambda y: y[0].square().sum())
    assert rows(run, "grad_input", "mha").keys() == {"0+1+2"}
    found = run.frame(role="grad_input", module="mha")["l2"].item()
    assert found == pytest.approx(x.grad.norm().item(), rel=1e-5)


def test_what_goes_through_unchanged_is_said_to():
    model = nn.Sequential(nn.Identity(), nn.Dropout(0.5), nn.Linear(2, 2)).eval()
    run = watched(model, torch.ones(1, 2, requires_grad=True))
    for role in ("grad_output", "grad_input"):
        assert rows(run, role, "0") == {"0": ["passthrough"]}
        assert rows(run, role, "1") == {"0": ["passthrough"]}
    assert rows(run, "grad_output", "2") == {"0": [1.0]}


def test_an_input_that_needs_no_gradient_has_no_row():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2))
    run = watched(model, torch.tensor([1, 2]))
    assert rows(run, "grad_output").keys() == {("0", "0"), ("1", "0"), ("", "0")}
    assert rows(run, "grad_input").keys() == {("1", "0")}


def test_an_output_that_is_not_used_has_no_row():
    run = watched(
        Gives(lambda y, h: {"logits": y, "aux": [h * 2]}),
        torch.ones(1, 4),
        loss=lambda o: o["logits"].sum(),
    )
    assert rows(run, "grad_output", "") == {"logits": [1.0]}
    run = watched(Branches(), torch.ones(1, 4))
    assert rows(run, "grad_output").keys() == {("student", "0"), ("", "0")}
    assert {m for m, _ in rows(run, "param_grad")} == {"student"}


def test_outputs_of_an_lstm_have_a_row_each():
    run = watched(
        nn.LSTM(3, 4),
        torch.ones(2, 1, 3),
        loss=lambda o: o[0].sum() + 2 * o[1][0].sum() + 3 * o[1][1].sum(),
    )
    assert rows(run, "grad_output", "") == {"0": [1.0], "1.0": [2.0], "1.1": [3.0]}


def test_a_packed_sequence_is_measured_over_its_real_steps():
    run = watched(Packs(), torch.randn(2, 5, 3), loss=lambda o: o[0].data.sum())
    row = run.frame(module="lstm", role="grad_output", leaf="0.data").iloc[0]
    assert (row["numel"], row["mean"]) == (32, 1.0)
    assert row["l2"] == pytest.approx(32**0.5)
    assert set(run.frame(module="lstm", role="output")["leaf"]) == {"0.data", "1.0", "1.1"}


def test_a_tied_weight_has_one_row_with_the_whole_gradient():
    model = Tied()
    run = watched(model, torch.tensor([[1, 2, 3]]), loss=lambda y: y.square().sum())
    assert rows(run, "param_grad").keys() == {("embed", "weight")}
    found = run.frame(role="param_grad")["l2"].item()
    assert found == pytest.approx(model.embed.weight.grad.norm().item(), rel=1e-5)


def test_param_grad_is_what_this_backward_adds():
    model = nn.Linear(1, 1, bias=False)
    with probe.watch(model, micro_batches=2, live=False) as run:
        for value in (2.0, 5.0):
            model(torch.tensor([[value]])).backward()
    assert model.weight.grad.item() == 7.0
    assert rows(run, "param_grad") == {("", "weight"): [2.0, 5.0], ("", "weight.grad"): [7.0]}
    assert run.frame(role="param_grad", leaf="weight")["micro_step"].tolist() == [0, 1]


def test_backwards_through_one_graph_are_numbered():
    model = nn.Linear(1, 1, bias=False)
    with probe.watch(model, live=False) as run:
        y = model(torch.ones(1, 1, requires_grad=True))
        for factor in (1.0, 2.0, 4.0):
            (y * factor).backward(retain_graph=True)
    for role, leaf in (("grad_output", "0"), ("grad_input", "0"), ("param_grad", "weight")):
        found = run.frame(role=role, leaf=leaf)
        assert found["backward"].tolist() == [0, 1, 2]
    assert run.frame(role="param_grad", leaf="weight.grad")["backward"].tolist() == [1, 2]
    assert rows(run, "grad_output") == {("", "0"): [1.0, 2.0, 4.0]}
    assert run.frame(role="output")["backward"].isna().all()


def test_a_gradient_of_a_gradient_is_seen_as_a_second_backward():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    x = torch.ones(1, 2, requires_grad=True)
    with probe.watch(model, live=False) as run:
        y = model(x).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        g.square().sum().backward()
    found = run.frame(role="grad_output", module="1")
    assert found["backward"].tolist()[0] == 0
    assert found["mean"].tolist()[0] == 1.0
    assert run.frame(role="grad_input", module="(root)")["l2"].tolist()[0] == pytest.approx(
        g.norm().item(), rel=1e-5
    )


def test_a_part_of_a_share_is_handed_over_where_the_backward_reaches_no_more():
    class Splits(nn.Module):
        """Two results from one argument."""

        def forward(self, x):
            return 2 * x, 3 * x

    x = torch.ones(2, requires_grad=True)
    model = Splits()
    with probe.watch(model, live=False) as run:
        a, b = model(x)
        a.sum().backward(retain_graph=True)
        b.sum().backward(retain_graph=True)
        (a + b).sum().backward()
    assert rows(run, "grad_input") == {("", "0"): [2.0, 3.0, 5.0]}


@pytest.mark.parametrize("where", ["inputs=", "autograd.grad"])
def test_a_backward_to_chosen_tensors_shows_what_ran(where):
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 3.0)
    x = torch.ones(1, 1, requires_grad=True)
    with probe.watch(model, live=False) as run:
        y = model(x)
        if where == "inputs=":
            y.backward(inputs=[x])
        else:
            torch.autograd.grad(y, x)
    assert rows(run, "grad_input") == {("", "0"): [3.0]}
    assert rows(run, "param_grad") == {}


def test_a_stale_view_has_its_gradient_once_somebody_used_it():
    torch.manual_seed(0)
    model = StaleArguments()
    x = torch.randn(2, 4, requires_grad=True)
    run = watched(model, x, loss=lambda o: sum(t.square().sum() for t in o))
    y = model.qkv(x) * 0.5
    q, k = y[..., :4].clone(), y[..., 4:].clone()
    arrived = q.clone()  # the root gives q out after the child has used it
    result = model.child(arrived, k)
    loss = result.square().sum() + arrived.square().sum() + y.sum().square()
    both, key = torch.autograd.grad(loss, (arrived, k), retain_graph=True)
    (share,) = torch.autograd.grad(result.square().sum(), arrived)
    found = run.df[run.df["direction"] == "backward"].set_index(["module", "role", "leaf"])["l2"]
    assert found["", "grad_output", "1"] == pytest.approx(both.norm().item(), rel=1e-5)
    assert found["child", "grad_input", "0"] == pytest.approx(share.norm().item(), rel=1e-5)
    assert found["child", "grad_input", "1"] == pytest.approx(key.norm().item(), rel=1e-5)


class GivesStale(nn.Module):
    """Gives out a view that was made before a write and not used since."""

    def forward(self, x):
        y = x * 3
        q = y[:1]
        y.mul_(2)
        return q, y.sum()


def test_a_stale_view_that_nobody_used_is_said_to_be_stale_and_its_source_is_read():
    x = torch.ones(2, 4, requires_grad=True)
    run = watched(GivesStale(), x, loss=lambda o: 5 * o[0].sum() + o[1])
    assert rows(run, "grad_output", "") == {"0": ["stale_view"], "1": [1.0]}
    assert x.grad.tolist() == [[36.0] * 4, [6.0] * 4]
    assert rows(run, "grad_input", "") == {"0": [21.0]}


class SlicesItsInput(nn.Module):
    """Gives out a view of its own argument, made before somebody wrote it."""

    def forward(self, y, q):
        return y * 2, q


def test_what_a_view_without_a_node_will_send_later_belongs_to_who_made_it():
    class Writes(nn.Module):
        """Writes after slicing, and hands both on."""

        def __init__(self):
            super().__init__()
            self.child = SlicesItsInput()

        def forward(self, x):
            y = x * 1
            q = y[:1]
            y.mul_(2)
            a, q = self.child(y, q)
            return a.sum() + q.sum()

    run = watched(Writes(), torch.ones(2, 4, requires_grad=True))
    assert rows(run, "grad_input", "child") == {"0": [2.0], "1": ["passthrough"]}
    assert rows(run, "grad_output", "child") == {"0": [1.0], "1": ["passthrough"]}


class ReadsAndWrites(nn.Module):
    """Reads its argument, writes it, and reads it again; gives it out or not."""

    def __init__(self, *, gives):
        super().__init__()
        self.gives = gives

    def forward(self, v):
        before = v * 3
        v.mul_(2)
        return before + 5 * v, (v if self.gives else None)


@pytest.mark.parametrize("gives", [True, False], ids=["given out", "kept"])
@pytest.mark.parametrize("view", ["no view", "view", "stale view"])
def test_the_share_of_a_module_that_reads_and_writes_is_whole(view, gives):
    class Parent(nn.Module):
        """Hands a tensor to the child, and uses it afterwards."""

        def __init__(self):
            super().__init__()
            self.child = ReadsAndWrites(gives=gives)

        def forward(self, x):
            y = x * 1
            v = y if view == "no view" else y[:1]
            if view == "stale view":
                y.mul_(1)
            result, _ = self.child(v)
            return result.sum() + 7 * y.sum()

    x = torch.full((2, 2), 2.0, requires_grad=True)
    run = watched(Parent(), x)
    assert x.grad[0, 0] == 3 + 2 * 5 + 2 * 7
    (found,) = rows(run, "grad_input", "child")["0"]
    assert found == ("stale_view" if view == "stale view" else 27.0)


def test_a_relu_that_writes_a_flattened_view_has_its_share():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.ReLU(inplace=True), nn.Linear(8, 3))
    x = torch.randn(2, 1, 4, 4)
    run = watched(model, x, loss=lambda y: y.square().sum())
    flat = model[0](x).flatten(1)
    passed = flat.relu()
    before, after = torch.autograd.grad(model[3](passed).square().sum(), (flat, passed))
    (found,) = run.frame(role="grad_input", module="2")["l2"]
    assert found == pytest.approx(before.norm().item(), rel=1e-5)
    (found,) = run.frame(role="grad_output", module="2")["l2"]
    assert found == pytest.approx(after.norm().item(), rel=1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputed_call_counts_once_and_has_its_gradients_once(reentrant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    x = torch.randn(2, 4, requires_grad=True)
    with probe.watch(model, optimizer=torch.optim.SGD(model.parameters()), live=False) as run:
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
        recorded = x.grad.clone()
        model(x).sum().backward()
    for module in ("(root)", "0", "1", "2"):
        for role in ("input", "output", "grad_output"):
            found = run.frame(module=module, role=role)
            assert found["call"].tolist() == [0, 1], (module, role)
    first, second = run.frame(module="(root)", role="grad_input")["l2"]
    assert first == second == pytest.approx(recorded.norm().item(), rel=1e-5)
    assert set(run.df["module"]) == {"", "0", "1", "2"}
    assert not run.df[run.df["direction"] == "forward"]["recompute"].any()


def test_no_gradient_is_looked_for_where_there_is_none():
    model = nn.Linear(2, 2)
    with probe.watch(model, live=False) as run:
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                model(torch.ones(1, 2))
    assert set(run.df["role"]) == {"param", "input", "output"}
    assert set(run.df["status"]) == {"ok"}
