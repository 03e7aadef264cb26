"""Models under function transforms, modes, tracers, mixed precision, and in other processes."""

from __future__ import annotations

import copy
import multiprocessing
import os
import sys
import warnings

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrizations, parametrize, stateless
from torch.utils.data import DataLoader, Dataset

import probe_nb as probe
from tests.models import no_faults

X = torch.tensor([[0.5, -1.0], [2.0, 0.25]])


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))


def weights(net):
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value
    return [t for part in parts for t in flat(part)]


def loss_of(net):
    return lambda w, x: torch.func.functional_call(net, w, (x,)).square().sum()


def by_vmap(net):
    return torch.vmap(net)(X)


def by_grad(net):
    return torch.func.grad(loss_of(net))(weights(net), X)


def by_gradients_of_each_sample(net):
    return torch.vmap(torch.func.grad(loss_of(net)), (None, 0))(weights(net), X)


def by_vjp(net):
    y, pull = torch.func.vjp(net, X)
    return y, pull(torch.ones_like(y))


def by_jvp(net):
    return torch.func.jvp(net, (X,), (torch.ones_like(X),))


def by_dual_numbers(net):
    with forward_ad.dual_level():
        y = net(forward_ad.make_dual(X, torch.ones_like(X)))
        return tuple(forward_ad.unpack_dual(y))


def by_jacrev(net):
    return torch.func.jacrev(net)(X)


def by_jacfwd(net):
    return torch.func.jacfwd(net)(X)


def by_hessian(net):
    return torch.func.hessian(lambda x: net(x).square().sum())(X)


def by_old_hessian(net):
    return torch.autograd.functional.hessian(lambda x: net(x).square().sum(), X)


def by_linearize(net):
    y, push = torch.func.linearize(net, X)
    return y, push(torch.ones_like(X))


def by_functional_call(net):
    return stateless._functional_call(net, {n: 2 * p for n, p in weights(net).items()}, (X,))


def by_ensemble(net):
    params, buffers = torch.func.stack_module_state([net, copy.deepcopy(net)])
    return torch.vmap(lambda w, b: torch.func.functional_call(net, (w, b), (X,)))(params, buffers)


def by_functionalize(net):
    return torch.func.functionalize(net)(X)


def by_inference_mode(net):
    with torch.inference_mode():
        return net(X)


def by_autocast(net):
    with torch.autocast("cpu", torch.bfloat16):
        return net(X)


def by_deterministic_algorithms(net):
    torch.use_deterministic_algorithms(mode=True)
    try:
        return net(X)
    finally:
        torch.use_deterministic_algorithms(mode=False)


def by_trace(net):
    return torch.jit.trace(net, X)(X)


def by_script(net):
    return torch.jit.script(net)(X)


def by_export(net):
    return torch.export.export(net, (X,)).module()(X)


def by_symbolic_trace(net):
    return torch.fx.symbolic_trace(net)(X)


def by_make_fx(net):
    return torch.fx.experimental.proxy_tensor.make_fx(net)(X)(X)


WAYS = [each for name, each in sorted(globals().items()) if name.startswith("by_")]


# torch says of some of these that they are on their way out, and `linearize` warns of its own graph
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_whatever_a_model_runs_in_its_results_are_the_same_bits(way):
    expected = flat(way(model()))
    net = model()
    with no_faults(), probe.watch(net, live=False) as run:
        found = flat(way(net))
        rows = len(run)
        y = net(X)  # and it is watched as ever afterwards
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert (a.dtype, a.shape, a.requires_grad) == (b.dtype, b.shape, b.requires_grad)
        assert torch.equal(a, b)
    later = run.df[run.df.index >= rows]
    assert later[later["role"] == "output"]["module"].tolist() == ["0", "1", "2", ""]
    last = later[later["role"] == "output"]["mean"].iloc[-1]
    assert last == pytest.approx(y.double().mean().item(), rel=1e-5)


def test_numbers_under_transforms_are_those_of_the_tensors_inside():
    net = model()
    with no_faults(), probe.watch(net, live=False) as run:
        by_jvp(net)
        by_dual_numbers(net)
        by_grad(net)
    rows = run.frame(role="output", module="(root)")
    assert set(rows["status"]) == {"ok"}
    assert rows["mean"].tolist() == pytest.approx([net(X).mean().item()] * 3, rel=1e-5)


def test_under_vmap_rows_have_a_reason_and_no_numbers():
    net = model()
    with no_faults(), probe.watch(net, live=False) as run:
        by_vmap(net)
        by_gradients_of_each_sample(net)
    rows = run.df[run.df["role"].isin(["input", "output"])]
    assert set(rows[rows["module"] == ""]["status"]) == {"vmapped"}
    assert rows[rows["status"] == "vmapped"]["mean"].isna().all()


class Several(nn.Module):
    """Sends to its input from several nodes, and writes a view in place."""

    def forward(self, x):
        y = (x * 1.5).view(-1)
        return y.relu_().view_as(x) + x.sin() * x


def test_batches_of_gradients_have_a_reason_and_no_numbers():
    """`is_grads_batched` and `vectorize` have a batching of their own, older than `vmap`."""
    net, x = nn.Sequential(nn.Linear(3, 3), Several(), nn.ReLU()), torch.ones(2, 3)
    seeds = torch.eye(6).view(6, 2, 3)

    def jacobians():
        leaf = x.clone().requires_grad_()
        by_batch = torch.autograd.grad(net(leaf), leaf, seeds, is_grads_batched=True)
        return [*by_batch, torch.autograd.functional.jacobian(net, x, vectorize=True)]

    bare = jacobians()
    with no_faults(), probe.watch(net, live=False) as run:
        watched = jacobians()
    assert all(map(torch.equal, bare, watched))
    rows = run.df[run.df["direction"] == "backward"]
    assert set(rows["status"]) == {"vmapped"}
    each = ["", "0", "1", "2"]
    for role in ("grad_output", "grad_input"):
        found = rows[rows["role"] == role].groupby("module", observed=True).size()
        assert found.to_dict() == dict.fromkeys(each, 2)
    assert rows["mean"].isna().all()


@pytest.mark.parametrize("way", [by_trace, by_script, by_export, by_symbolic_trace, by_make_fx])
def test_what_was_made_under_a_watch_carries_nothing_of_it(way, tmp_path):
    net = model()
    made = {}
    with no_faults(), probe.watch(net, live=False):
        maker = {
            by_trace: lambda: torch.jit.trace(net, X),
            by_script: lambda: torch.jit.script(net),
            by_export: lambda: torch.export.export(net, (X,)).module(),
            by_symbolic_trace: lambda: torch.fx.symbolic_trace(net),
            by_make_fx: lambda: torch.fx.experimental.proxy_tensor.make_fx(net)(X),
        }[way]
        made["inside"] = maker()
    made["outside"] = maker()
    code = [getattr(each, "code", "") for each in made.values()]
    assert code[0] == code[1]
    assert torch.equal(made["inside"](X), net(X))


def test_a_traced_graph_is_watched_with_its_submodules():
    net = torch.fx.symbolic_trace(model())
    with no_faults(), probe.watch(net, live=False) as run:
        net(X).sum().backward()
    assert run.frame(role="output")["module"].tolist() == ["0", "1", "2", ""]
    assert set(run.frame(role="grad_output")["module"]) == {"0", "1", "2", ""}


def test_an_exported_program_is_watched_as_a_whole():
    net = torch.export.export(model(), (X,)).module()
    expected = net(X)
    with no_faults(), probe.watch(net, live=False) as run:
        assert torch.equal(net(X), expected)
    rows = run.frame(role="output", module="(root)")
    assert rows["mean"].item() == pytest.approx(expected.mean().item(), rel=1e-5)


def test_fake_tensors_have_shapes_and_no_numbers():
    with FakeTensorMode():
        net = nn.Linear(2, 3)
        with no_faults(), probe.watch(net, live=False) as run:
            net(torch.empty(4, 2)).sum().backward()
    assert set(run.df["status"]) == {"meta"}
    assert run.frame(role="output")["shape"].tolist() == [(4, 3)]


def test_fake_inputs_of_a_real_model_do_not_disturb_the_rows_of_real_ones():
    net = model()
    with no_faults(), probe.watch(net, live=False) as run:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            net(mode.from_tensor(X))
        net(X)
    rows = run.frame(role="output", module="(root)")
    assert rows["status"].tolist() == ["meta", "ok"]


# -- parametrized and normalised layers -----------------------------------------------------------


class Doubles(nn.Module):
    """Makes a weight out of another."""

    def forward(self, weight):
        return 2 * weight


def parametrized(layer):
    parametrize.register_parametrization(layer, "weight", Doubles())
    return layer


PARAMETRIZED = [
    parametrized,
    parametrizations.weight_norm,
    parametrizations.spectral_norm,
    parametrizations.orthogonal,
]


@pytest.mark.parametrize("wrap", PARAMETRIZED, ids=lambda wrap: wrap.__name__)
def test_parametrized_layers_train_to_the_same_bits_and_have_rows(wrap):
    def trained(*, watch):
        torch.manual_seed(0)
        net = nn.Sequential(wrap(nn.Linear(2, 2)), nn.ReLU())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        run = probe.start(net, optimizer=optimizer, live=False) if watch else None
        for _ in range(2):
            net(X).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        probe.stop(run)
        return run, [*net.parameters(), *net.buffers(), torch.get_rng_state()]

    _, expected = trained(watch=False)
    with no_faults():
        run, found = trained(watch=True)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    outputs = run.frame(role="output")
    assert {"0", "1", ""} <= set(outputs["module"])
    assert outputs[outputs["module"] == "0"]["step"].tolist() == [0, 1]
    assert any("parametrizations" in module for module in run.frame(role="param_grad")["module"])


# -- mixed precision ------------------------------------------------------------------------------


class Overflows(nn.Module):
    """Gives an infinite gradient when it is told to."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(1, 1, bias=False)
        self.broken = False
        nn.init.constant_(self.lin.weight, 1.0)

    def forward(self, x):
        y = self.lin(x)
        return y * float("inf") if self.broken else y


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}])
def test_scaled_gradients_are_divided_and_a_skipped_step_is_a_step(options):
    net = Overflows()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1000)
    moved = []
    with no_faults(), probe.watch(net, optimizer=optimizer, scaler=scaler, live=False) as run:
        for step in range(4):
            net.broken = step == 1
            before = net.lin.weight.item()
            scaler.scale(net(torch.tensor([[3.0]])).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            moved.append(net.lin.weight.item() - before)
    assert moved == [-1.5, 0.0, -1.5, -1.5]
    rows = run.frame(role="param_grad", direction="backward", leaf="weight")
    assert rows["step"].tolist() == [0, 1, 2, 3]
    assert rows["loss_scale"].tolist() == [256.0, 256.0, 128.0, 128.0]
    assert rows["mean"].iloc[[0, 2, 3]].tolist() == [3.0, 3.0, 3.0]
    assert rows["posinf_count"].tolist() == [0, 1, 0, 0]


# -- the same memory, written again and again -----------------------------------------------------


def test_a_buffer_that_is_written_for_each_step_has_the_values_of_each_step():
    net = nn.Linear(2, 1, bias=False)
    nn.init.ones_(net.weight)
    fed, given = torch.zeros(1, 2), torch.zeros(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    with no_faults(), probe.watch(net, optimizer=optimizer, live=False) as run:
        for step in range(3):
            for part in range(2):  # twice in one step as well
                fed.copy_(torch.full((1, 2), 10.0 * step + part))
                y = net(fed)
                with torch.no_grad():
                    given.copy_(y)
                y.sum().backward()
            optimizer.step()
    values = [10.0 * step + part for step in range(3) for part in range(2)]
    assert run.frame(role="input")["mean"].tolist() == values
    assert run.frame(role="output")["mean"].tolist() == [2 * v for v in values]
    assert not run.frame(role="input")["reused"].any()


# -- other processes ------------------------------------------------------------------------------


class Runs(Dataset):
    """Asks a model for its items, in whatever process it is."""

    def __init__(self, net):
        self.net = net

    def __len__(self):
        return 4

    def __getitem__(self, place):
        with torch.no_grad():
            return self.net(torch.full((2,), float(place)))


# Python 3.12 warns of threads when a process is forked
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_workers_that_are_forked_under_a_watch_run_the_model_and_leave_no_rows():
    net = model()
    loader = DataLoader(
        Runs(net), batch_size=2, num_workers=1, multiprocessing_context="fork", timeout=250
    )
    with no_faults(), probe.watch(net, live=False) as run:
        net(X)
        rows = len(run)
        found = torch.cat(list(loader))
        assert len(run) == rows
    expected = torch.stack([net(torch.full((2,), float(n))) for n in range(4)])
    assert torch.allclose(found, expected, atol=1e-6)


def _child(net, results):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = net(X).sum()
        y.backward()
        probe.stop()
        results.put((os.getpid(), y.item(), [str(w.message) for w in caught]))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_trains_and_may_stop_the_watch_it_inherited():
    net = model()
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    with no_faults(), probe.watch(net, live=False) as run:
        expected = net(X).sum().item()
        child = context.Process(target=_child, args=(net, results))
        child.start()
        child.join(250)
        assert child.exitcode == 0
        _, found, messages = results.get()
        assert run.is_open
    assert found == pytest.approx(expected, rel=1e-6)
    assert messages == []


# -- little room on the stack ---------------------------------------------------------------------


def test_at_the_recursion_limit_a_model_runs_and_what_is_missing_is_said():
    net = model()

    def runs(depth):
        return runs(depth - 1) if depth else net(X)

    def fits(depth):
        try:
            runs(depth)
        except RecursionError:
            return False
        return True

    hooks = (
        torch_module.register_module_forward_pre_hook,
        torch_module.register_module_forward_hook,
    )
    handles = [register(lambda *_: None) for register in hooks]  # somebody else's, of one frame
    deepest = max(filter(fits, range(sys.getrecursionlimit())))
    for handle in handles:
        handle.remove()
    optimizer = torch.optim.SGD(net.parameters())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with probe.watch(net, optimizer=optimizer, live=False) as run:
            fitting = len(list(filter(fits, range(deepest - 60, deepest + 1))))
            rows = len(run)
            net(X)
    assert fitting == 61
    assert caught
    assert all("recursion" in str(each.message) for each in caught)
    later = run.df[run.df.index >= rows]
    assert later[later["role"] == "output"]["module"].tolist() == ["0", "1", "2", ""]


class Streams(nn.Module):
    """A forward that is a generator: it runs when somebody asks for its values."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2)

    def forward(self, x):
        for _ in range(3):
            x = self.lin(x)
            yield x


def test_a_forward_that_is_a_generator_runs_when_it_is_asked():
    net = Streams()
    optimizer = torch.optim.SGD(net.parameters())
    expected = [y.detach() for y in net(X)]
    with no_faults(), probe.watch(net, optimizer=optimizer, live=False) as run:
        found = list(net(X))
        found[-1].sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    rows = run.frame(module="lin", role="output")
    assert rows["call"].tolist() == [0, 1, 2]
    assert rows["mean"].tolist() == pytest.approx([y.mean().item() for y in expected], rel=1e-5)
    assert sorted(run.frame(module="lin", role="grad_output")["call"]) == [0, 1, 2]
