"""Hooks that the user puts on while a watch is open: rows are right or have a reason."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.ao.quantization import fuse_modules
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrizations, prune

import probe_nb as probe
from tests.models import hook_tables, no_faults

X = torch.ones(2)


def scaled(factor):
    """Return a pre hook that replaces the argument."""
    return lambda _, args: (args[0] * factor,)


def multiplied(factor):
    """Return a forward hook that replaces the result."""
    return lambda _, __, output: output * factor


def rows(run, role, module):
    """Return (step, max or status) of a role's rows."""
    frame = run.frame(role=role, module=module)
    told = frame["max"].astype(object).where(frame["status"] == "ok", frame["status"].astype(str))
    return list(zip(frame["step"].tolist(), told.tolist(), strict=True))


class Hooked(nn.Module):
    """Puts hooks on itself and on its part while it runs."""

    def __init__(self, puts):
        super().__init__()
        self.part = nn.Identity()
        self.puts = puts

    def forward(self, x):
        if self.puts is not None:
            self.puts(self)
        return self.part(x)


@pytest.mark.parametrize("own", [0, 1, 2])
@pytest.mark.parametrize("at", ["0", ""])
def test_a_pre_hook_put_on_between_two_forwards_is_before_what_is_seen(own, at):
    model = nn.Sequential(nn.Identity())
    hooked = model.get_submodule(at)
    for _ in range(own):
        hooked.register_forward_pre_hook(scaled(1))
    with no_faults(), probe.watch(model, live=False) as run:
        model(X)
        hooked.register_forward_pre_hook(scaled(100))
        assert model(X).tolist() == [100, 100]
        hooked.register_forward_pre_hook(scaled(3))
        assert model(X).tolist() == [300, 300]
        model(X)
    first, *_, last = found = rows(run, "input", at)
    assert (first, last) == ((0, 1.0), (3, 300.0))
    late = "unsupported" if at == "" else None  # torch had chosen the root's hooks already
    assert found[1:3] == [(1, late or 100.0), (2, late or 300.0)]


@pytest.mark.parametrize("own", [0, 1])
def test_a_pre_hook_put_on_inside_the_forward_is_seen_or_said(own):
    model = Hooked(lambda m: m.part.register_forward_pre_hook(scaled(10)))
    if own:
        model.part.register_forward_pre_hook(scaled(2))
    with no_faults(), probe.watch(model, live=False) as run:
        x = X.clone().requires_grad_()
        model(x).sum().backward()
        model.puts = None
        model(x).sum().backward()
    given = 10.0 * 2**own
    assert rows(run, "input", "part") == [(0, "unsupported"), (0, given)]
    assert rows(run, "output", "part") == [(0, given), (0, given)]
    assert rows(run, "grad_input", "part")[0] == (0, "unsupported")
    assert rows(run, "grad_output", "part") == [(0, 1.0), (0, "passthrough")]


@pytest.mark.parametrize("own", [0, 1])
def test_a_forward_hook_that_a_module_puts_on_itself_as_it_runs_makes_its_result_unsupported(own):
    model = nn.Sequential(Hooked(lambda m: m.register_forward_hook(multiplied(2))))
    if own:
        model[0].register_forward_hook(multiplied(5))
    x = X.clone().requires_grad_()
    with no_faults(), probe.watch(model, live=False) as run:
        first = model(x)
        first.sum().backward()
        model[0].puts = None
        second = model(x)
        second.sum().backward()
    assert first.tolist() == second.tolist() == [2.0 * 5**own] * 2
    assert rows(run, "output", "0") == [(0, "unsupported"), (0, 2.0 * 5**own)]
    assert rows(run, "output", "") == [(0, 2.0 * 5**own)] * 2
    assert rows(run, "output", "0.part") == [(0, 1.0)] * 2
    assert rows(run, "grad_output", "0") == [(0, "unsupported"), (0, 1.0)]
    assert rows(run, "grad_input", "0") == [(0, "unsupported"), (0, 2.0 * 5**own)]


def test_process_wide_hooks_put_on_after_the_watch_are_before_what_is_seen():
    model = nn.Sequential(nn.Identity(), nn.Identity())
    with no_faults(), probe.watch(model, live=False) as run:
        model(X)
        one = torch_module.register_module_forward_hook(multiplied(7))
        two = torch_module.register_module_forward_pre_hook(scaled(2))
        results = [model(X) for _ in range(2)]
        one.remove()
        two.remove()
        model(X)
    assert [y[0].item() for y in results] == [7**3 * 8] * 2
    assert rows(run, "input", "0") == [(0, 1.0), (1, 4.0), (2, 4.0), (3, 1.0)]
    assert rows(run, "output", "0") == [(0, 1.0), (1, 28.0), (2, 28.0), (3, 1.0)]
    assert rows(run, "output", "1") == [(0, 1.0), (1, 28.0 * 14), (2, 28.0 * 14), (3, 1.0)]
    assert rows(run, "output", "") == [(0, 1.0), (1, 7.0**3 * 8), (2, 7.0**3 * 8), (3, 1.0)]
    assert rows(run, "input", "") == [(0, 1.0), (1, "unsupported"), (2, 2.0), (3, 1.0)]


def test_two_watches_do_not_take_each_other_for_hooks_of_others():
    first, second = nn.Sequential(nn.Identity()), nn.Sequential(nn.Identity())
    with no_faults(), probe.watch(first, live=False) as a, probe.watch(second, live=False) as b:
        for _ in range(3):
            first(X)
            second(2 * X)
    for run, value in ((a, 1.0), (b, 2.0)):
        assert rows(run, "input", "") == [(n, value) for n in range(3)]


def pruned(layer):
    prune.l1_unstructured(layer, "weight", 0.5)


SURGERY = [
    pruned,
    parametrizations.weight_norm,
    parametrizations.spectral_norm,
    lambda layer: layer.register_forward_pre_hook(lambda *_: None),
    lambda layer: layer.register_forward_pre_hook(lambda *_: None, prepend=True),
    lambda layer: layer.register_forward_hook(lambda *_: None),
]


@pytest.mark.parametrize("operate", SURGERY)
def test_what_puts_hooks_on_a_module_that_has_some_works_under_a_watch(operate):
    def run(*, watched):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4))
        model[0].register_forward_pre_hook(lambda *_: None)
        model[0].register_forward_hook(lambda *_: None)
        opened = probe.start(model, live=False) if watched else None
        results = [model(torch.ones(2, 4))]
        operate(model[0])
        results += [model(torch.ones(2, 4)) for _ in range(2)]
        probe.stop(opened)
        return results

    with no_faults():
        assert all(map(torch.equal, run(watched=True), run(watched=False)))


class Fusable(nn.Module):
    """What torch fuses into one module, hooks and all."""

    def __init__(self):
        super().__init__()
        self.c, self.b, self.r = nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), nn.ReLU()

    def forward(self, x):
        return self.r(self.b(self.c(x)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("called", ["during the watch", "after it"])
def test_hooks_of_ours_that_others_move_to_another_module_do_nothing_there_and_leave(called):
    def run(*, watched):
        torch.manual_seed(0)
        model, x = Fusable().eval(), torch.ones(1, 1, 2, 2)
        heard = []
        model.c.register_forward_pre_hook(lambda *_: heard.append("before"))
        model.r.register_forward_hook(lambda *_: heard.append("after"))
        opened = probe.start(model, live=False) if watched else None
        model(x)
        fuse_modules(model, [["c", "b", "r"]], inplace=True)
        if called == "during the watch":
            model(x)
        probe.stop(opened)
        y = model(x)
        left = [len(t) for m in model.modules() for t in hook_tables(m).values()]
        return y.tolist(), heard, left

    with no_faults():
        assert run(watched=True) == run(watched=False)


def test_a_table_of_hooks_that_the_user_clears_keeps_no_flag_of_ours():
    layer = nn.Identity()
    layer.register_forward_pre_hook(scaled(2))
    with no_faults(), probe.watch(layer, live=False) as run:
        layer(X)
        layer._forward_pre_hooks.clear()
        layer(X)
        layer.register_forward_pre_hook(scaled(3))
        layer(X)
        layer(X)
    assert rows(run, "input", "") == [(0, 2.0), (1, 1.0), (2, "unsupported"), (3, 3.0)]
    assert len(layer._forward_pre_hooks) == 1
    assert not layer._forward_pre_hooks_with_kwargs
