"""Activation checkpointing: a forward that runs again is no second call, and knows its first."""

from __future__ import annotations

import functools

import pandas as pd
import pytest
import torch
from torch import nn
from torch.distributed._composable import checkpoint as composable_checkpoint
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_debug_enabled,
    set_checkpoint_early_stop,
)

import probe_nb as probe
from probe_nb import session
from probe_nb.observe import regions
from tests.models import no_faults

KINDS = [True, False]
ROLES = ("input", "output", "grad_output", "grad_input")


def block(size=3):
    return nn.Sequential(nn.Linear(size, size), nn.Tanh(), nn.Linear(size, size))


class Layers(nn.Module):
    """Calls its parts through a function, plainly or checkpointed."""

    def __init__(self, run, *, times=1, count=3):
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleList(block() for _ in range(count))
        self.run, self.times = run, times

    def forward(self, x):
        for _ in range(self.times):
            for part in self.parts:
                x = self.run(part, x)
        return x


def plainly(part, x):
    return part(x)


def kinds(**options):
    return [functools.partial(checkpoint, use_reentrant=kind, **options) for kind in KINDS]


def selective(part, x):
    policy = functools.partial(create_selective_checkpoint_contexts, _keep_products)
    return checkpoint(part, x, use_reentrant=False, context_fn=policy)


def _keep_products(_, op, *__, **___):
    kept = (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
    return CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE


def without_early_stop(part, x):
    with set_checkpoint_early_stop(enable=False):
        return checkpoint(part, x, use_reentrant=False)


def nested(outer, inner):
    """Return a function that checkpoints a part, each of its layers checkpointed once more."""

    def run(part, x):
        def layers(x):
            for layer in part:
                x = checkpoint(layer, x, use_reentrant=inner)
            return x

        return checkpoint(layers, x, use_reentrant=outer)

    return run


def in_segments(part, x):
    return checkpoint_sequential(part, 2, x, use_reentrant=False)


class Recomputes(torch.autograd.Function):
    """A checkpoint of somebody else's: keeps the input and runs the part again."""

    @staticmethod
    def forward(ctx, part, x, *_):
        ctx.part = part
        ctx.save_for_backward(x)
        with torch.no_grad():
            return part(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.part(x)
        torch.autograd.backward(y, g)
        return None, x.grad


class Decorated(Recomputes):
    """The same behind torch's decorators for autocast."""

    forward = staticmethod(torch.amp.custom_fwd(Recomputes.forward, device_type="cpu"))
    backward = staticmethod(torch.amp.custom_bwd(Recomputes.backward, device_type="cpu"))


class NewStyle(Recomputes):
    """The same with the node handed out after the forward, so that nobody sees it there."""

    @staticmethod
    def forward(part, x):
        with torch.no_grad():
            return part(x)

    @staticmethod
    def setup_context(ctx, inputs, _):
        ctx.part = inputs[0]
        ctx.save_for_backward(inputs[1])


def in_function(cls):
    return cls.apply


def in_tensor_hook(part, x):
    """Recompute in a hook on the output, as Megatron does."""
    again = {}

    class Function(torch.autograd.Function):
        """Takes what the hook has made."""

        @staticmethod
        def forward(ctx, x):
            with torch.no_grad():
                return part(x)

        @staticmethod
        def backward(ctx, g):
            torch.autograd.backward(again["y"], g)
            return again["x"].grad

    def recompute(_):
        again["x"] = x.detach().requires_grad_()
        with torch.enable_grad():
            again["y"] = part(again["x"])

    y = Function.apply(x)
    y.register_hook(recompute)
    return y


WAYS = {
    "reentrant": kinds()[0],
    "not reentrant": kinds()[1],
    "reentrant, no random state": kinds(preserve_rng_state=False)[0],
    "no determinism check": kinds(determinism_check="none")[1],
    "without early stop": without_early_stop,
    "selective": selective,
    "in a function": in_function(Recomputes),
    "in a decorated function": in_function(Decorated),
    "in a function of the newer style": in_function(NewStyle),
    "in a tensor hook": in_tensor_hook,
}
LAYER_BY_LAYER = {
    "in segments": in_segments,
    **{f"nested, {a} in {b}": nested(b, a) for a in KINDS for b in KINDS},
}


def layers_plainly(part, x):
    for layer in part:
        x = layer(x)
    return x


def backward_once(y):
    y.square().sum().backward()


def rows(run_part, *, times=1, backward=backward_once):
    """Watch one training step; return the rows that can be compared, and the gradients."""
    model = Layers(run_part, times=times)
    x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
    with no_faults(), probe.watch(model, live=False) as run:
        backward(model(x))
    return comparable(run), [p.grad for p in (x, *model.parameters())]


def comparable(run):
    frame = run.df[run.df["role"].isin(ROLES)]
    frame = frame.astype(dict.fromkeys(("module", "role", "leaf"), str))
    assert set(frame["status"]) == {"ok"}
    keys = ["module", "role", "leaf", "call", "backward", "recompute"]
    found = frame.set_index(keys)[["mean", "l2", "max", "training", "step", "micro_step"]]
    assert found.index.is_unique
    return found.sort_index()


def assert_same(found, expected):
    """Hold that two runs have the same rows; either of two kernels may have made the numbers."""
    pd.testing.assert_frame_equal(found, expected, rtol=1e-5, atol=1e-6)


# a reentrant checkpoint inside a reentrant one: torch warns of inputs that its own first pass made
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("name", [*WAYS, *LAYER_BY_LAYER])
def test_the_rows_are_those_of_the_model_without_checkpoints(name, times):
    expected, gradients = rows(plainly if name in WAYS else layers_plainly, times=times)
    found, same = rows((WAYS | LAYER_BY_LAYER)[name], times=times)
    assert all(torch.equal(a, b) for a, b in zip(gradients, same, strict=True))
    assert_same(found, expected)


def backward_twice(y):
    loss = y.square().sum()
    loss.backward(retain_graph=True)
    loss.backward()


@pytest.mark.parametrize("name", ["reentrant", "not reentrant", "in a function"])
def test_each_backward_over_a_checkpoint_has_rows_of_its_own(name):
    expected, _ = rows(plainly, times=2, backward=backward_twice)
    found, _ = rows(WAYS[name], times=2, backward=backward_twice)
    assert set(found.index.get_level_values("backward").dropna()) == {0, 1}
    assert_same(found, expected)


@pytest.mark.parametrize("name", ["reentrant", "not reentrant", "in a function"])
def test_calls_that_are_repeated_in_any_order_keep_their_gradients(name):
    part = nn.Linear(1, 1, bias=False)
    nn.init.constant_(part.weight, 2.0)
    x = torch.ones(1, 1, requires_grad=True)
    model, run_part = nn.ModuleList([part]), WAYS[name]
    optimizer = torch.optim.SGD(model.parameters())
    with no_faults(), probe.watch(model, optimizer=optimizer, live=False) as run:
        outputs = [run_part(part, x * (n + 1)) for n in range(4)]
        for n in (1, 3, 0, 2):
            (outputs[n] * 10**n).sum().backward()
    outputs, gradients = run.frame(role="output"), run.frame(role="grad_output")
    calls = list(zip(outputs["call"], outputs["mean"], strict=True))
    assert calls == [(0, 2.0), (1, 4.0), (2, 6.0), (3, 8.0)]
    calls = list(zip(gradients["call"], gradients["mean"], strict=True))
    assert calls == [(1, 10.0), (3, 1000.0), (0, 1.0), (2, 100.0)]


class Reversible(torch.autograd.Function):
    """A coupling of two modules that keeps its outputs only."""

    @staticmethod
    def forward(ctx, f, g, a, b, *_):
        with torch.no_grad():
            a = a + f(b)
            b = b + g(a)
        ctx.parts = f, g
        ctx.save_for_backward(a.clone(), b.clone())
        return a, b

    @staticmethod
    def backward(ctx, da, db):
        f, g = ctx.parts
        a, b = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            second = g(a)
        second.backward(db)
        b = (b - second).detach().requires_grad_()
        with torch.enable_grad():
            first = f(b)
        first.backward(da + a.grad)
        return None, None, da + a.grad, db + b.grad


def test_the_calls_of_a_reversible_block_are_repeats_though_in_another_order():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.f, self.g = block(), block()

        def forward(self, a, b):
            return Reversible.apply(self.f, self.g, a, b)

    torch.manual_seed(0)
    model = Block()
    a, b = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    with no_faults(), probe.watch(model, live=False) as run:
        sum(t.square().sum() for t in model(a, b)).backward()
    outputs = run.frame(role="output")
    assert set(outputs["module"]) == {name for name, _ in model.named_modules()}
    assert set(outputs["call"]) == {0}
    assert not outputs.duplicated(["module", "leaf"]).any()
    f = model.f(b)
    first = a + f
    g = model.g(first)
    second = b + g
    truth = torch.autograd.grad(first.square().sum() + second.square().sum(), (f, g))
    for name, gradient in zip("fg", truth, strict=True):
        (found,) = run.frame(module=name, role="grad_output")["l2"]
        assert found == pytest.approx(gradient.norm().item(), rel=1e-5)


class Guides(torch.autograd.Function):
    """Its backward asks a module that its forward did not call."""

    @staticmethod
    def forward(ctx, x, module):
        ctx.module = module
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g + ctx.module(g), None


def test_a_module_that_only_a_backward_calls_has_calls_of_its_own():
    model = nn.ModuleDict({"body": nn.Linear(2, 2), "guide": nn.Linear(2, 2, bias=False)})
    nn.init.eye_(model["guide"].weight)
    optimizer = torch.optim.SGD(model.parameters())
    with no_faults(), probe.watch(model, optimizer=optimizer, live=False) as run:
        model["guide"](torch.full((1, 2), 5.0))
        y = Guides.apply(model["body"](torch.ones(1, 2)), model["guide"])
        y.register_hook(lambda g: g + model["guide"](3 * g))
        y.sum().backward()
    rows = run.frame(module="guide", role="input")
    assert list(zip(rows["call"], rows["mean"], strict=True)) == [(0, 5.0), (1, 3.0), (2, 4.0)]
    assert run.frame(module="guide", role="output")["mean"].tolist() == [5.0, 3.0, 4.0]
    assert run.frame(module="body", role="grad_output")["mean"].tolist() == [8.0]
    assert set(run.df["step"]) == {0}


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_whose_forward_was_not_seen_leaves_no_row(kind):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    y = checkpoint(model, torch.ones(1, 2, requires_grad=True), use_reentrant=kind)
    with no_faults(), probe.watch(model, live=False) as run:
        y.sum().backward()
        assert len(run) == 0
        model(torch.ones(1, 2))
    assert run.frame(role="output")["call"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_root_inside_a_checkpoint_is_one_root_forward(kind):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with no_faults(), probe.watch(model, optimizer=optimizer, live=False) as run:
        for _ in range(2):
            for _ in range(2):
                x = torch.ones(1, 2, requires_grad=True)
                checkpoint(model, x, use_reentrant=kind).sum().backward()
            optimizer.step()
    for role in ("output", "grad_output"):
        rows = run.frame(role=role)
        places = zip(rows["step"], rows["micro_step"], rows["call"], strict=True)
        assert list(places) == [(0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 1, 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_after_the_step_ended_belongs_to_the_step_of_its_forward(kind):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with no_faults(), probe.watch(model, live=False) as run:
        y = checkpoint(model, torch.ones(1, 2, requires_grad=True), use_reentrant=kind)
        run.step()
        y.sum().backward()
    assert set(run.frame(role="grad_output")["step"]) == {0}
    assert len(run.frame(role="grad_output")) == 3


def test_reading_a_saved_tensor_of_a_checkpoint_is_no_call():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    with no_faults(), probe.watch(model, live=False) as run:
        y = checkpoint(model, torch.ones(1, 2, requires_grad=True), use_reentrant=False)
        assert torch.equal(y.grad_fn._saved_result, y)  # repeats the forward, in no backward
        rows = len(run)
    assert rows == len(run.df)
    assert run.frame(role="output")["call"].tolist() == [0, 0, 0]
    assert set(run.df["step"]) == {0}


def wrapped(part):
    return wrappers.checkpoint_wrapper(part)


def wrapped_reentrant(part):
    return wrappers.checkpoint_wrapper(part, wrappers.CheckpointImpl.REENTRANT)


@pytest.mark.parametrize("wrap", [wrapped, wrapped_reentrant, composable_checkpoint])
def test_wrapped_layers_have_the_paths_and_rows_of_the_bare_ones(wrap):
    def watched(model):
        x = torch.ones(2, 3, requires_grad=True)
        with no_faults(), probe.watch(model, live=False) as run:
            model(x).square().sum().backward()
        return comparable(run)

    torch.manual_seed(0)
    model = nn.Sequential(block(), block())
    expected = watched(model)
    model = nn.Sequential(*(wrap(part) for part in model))
    assert_same(watched(model), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_random_numbers_and_autocast_are_those_of_the_first_forward(kind):
    def trained(*, watch):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
        x = torch.randn(3, 4, requires_grad=True)
        run = probe.start(model, live=False) if watch else None
        with torch.autocast("cpu", torch.bfloat16):
            y = checkpoint(model, x, use_reentrant=kind)
        y.float().square().sum().backward()
        probe.stop(run)
        return run, [y, *(p.grad for p in (x, *model.parameters())), torch.get_rng_state()]

    _, expected = trained(watch=False)
    with no_faults():
        run, found = trained(watch=True)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert set(run.frame(role="output")["dtype"]) == {"bfloat16"}
    counts = run.df[run.df["role"].isin(ROLES)].groupby(["module", "role"], observed=True).size()
    assert set(counts) == {1}


def test_the_debug_mode_of_checkpoints_finds_nothing_of_ours():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    x = torch.ones(1, 2, requires_grad=True)
    with no_faults(), probe.watch(model, live=False), set_checkpoint_debug_enabled(enabled=True):
        checkpoint(model, x, use_reentrant=False).sum().backward()
    assert x.grad is not None


def test_no_region_outlives_its_graph():
    model = nn.Linear(1, 1)
    with probe.watch(model, live=False):
        (opened,) = session.sessions()
        known = opened._rooms.modules._regions
        for _ in range(200):
            x = torch.ones(1, 1, requires_grad=True)
            checkpoint(model, x, use_reentrant=True).sum().backward()
        assert len(known._known) <= regions._ROOM


def test_torch_still_has_what_regions_are_found_by():
    codes = (regions.FUNCTION, regions.CHECKPOINT, regions.BACKWARD, regions.UNPACK)
    assert all(code is not None for code in codes)
    assert len({id(code) for code in codes}) == 4


@pytest.mark.parametrize("name", ["reentrant", "not reentrant", "in a function", "selective"])
def test_asked_for_a_repeat_is_recorded_beside_the_first_time(name):
    model = Layers(WAYS[name], times=2)
    x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
    with no_faults(), probe.watch(model, recompute=True, live=False) as run:
        model(x).square().sum().backward()
    frame = run.df[run.df["role"].isin(["input", "output"])]
    keys = ["module", "role", "leaf", "call"]
    first = frame[~frame["recompute"]].set_index(keys)["mean"]
    again = frame[frame["recompute"]].set_index(keys)["mean"]
    assert again.index.is_unique
    inner = {"parts.0.0", "parts.1.1", "parts.2.0"}  # early stop ends others before their output
    assert inner <= set(again.index.get_level_values("module"))
    pd.testing.assert_series_equal(again, first[again.index], rtol=1e-5, atol=1e-6)
    assert set(run.frame(role="grad_output")["recompute"]) == {False}


def test_a_repeat_that_is_not_faithful_shows():
    class Drifts(nn.Module):
        """Gives something else each time."""

        def __init__(self):
            super().__init__()
            self.times = 0

        def forward(self, x):
            self.times += 1
            return x * self.times

    model = nn.Sequential(Drifts(), nn.Tanh(), nn.Identity())
    with no_faults(), probe.watch(model, recompute=True, live=False) as run:
        checkpoint(model, torch.ones(1, 1, requires_grad=True), use_reentrant=True).backward()
    rows = run.frame(module="0", role="output")
    assert list(zip(rows["recompute"], rows["mean"], rows["call"], strict=True)) == [
        (False, 1.0, 0),
        (True, 2.0, 0),
    ]


class Checkpoints(nn.Module):
    """Checkpoints its own forward from within, as the layers of transformers do."""

    def __init__(self, kind):
        super().__init__()
        self.part, self.kind = block(), kind

    def forward(self, x, scale):
        inner = functools.partial(self.inner, scale=scale)
        return inner(x) if self.kind is None else checkpoint(inner, x, use_reentrant=self.kind)

    def inner(self, x, scale):
        return self.part(x * scale)


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_that_checkpoints_its_own_forward_has_the_rows_of_one_that_does_not(kind):
    def watched(kind):
        torch.manual_seed(0)
        layer = Checkpoints(kind)
        x, optimizer = torch.ones(2, 3, requires_grad=True), torch.optim.SGD(layer.parameters())
        with no_faults(), probe.watch(layer, optimizer=optimizer, live=False) as run:
            layer(layer(x, scale=2.0), scale=3.0).square().sum().backward()
        return comparable(run)

    assert_same(watched(kind), watched(None))
