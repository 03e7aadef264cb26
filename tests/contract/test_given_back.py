"""However a watch ends, no hook of it is left: not in the process, on a module, or on a tensor."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

import probe_nb as probe
from probe_nb import session
from probe_nb.observe import modules
from tests.models import hook_tables, pieces
from tests.museum.graphs import Raises

ENDS: dict[str, type[BaseException]] = {
    "a ValueError": ValueError,
    "Ctrl-C": KeyboardInterrupt,
    "sys.exit": SystemExit,
    "out of memory": torch.OutOfMemoryError,
}


class FailsBackward(torch.autograd.Function):
    """Raises in its backward."""

    @staticmethod
    def forward(ctx, x, error):
        ctx.error = error
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        raise ctx.error


def break_at_second_arguments(monkeypatch, error):
    """Let what is ours raise, inside its hook, at every call with more than one argument."""
    find = modules.arguments

    def arguments(args, kwargs, unread):
        if len(args) > 1:
            raise error
        return find(args, kwargs, unread)

    monkeypatch.setattr(modules, "arguments", arguments)


class Ignores(nn.Module):
    """Has an argument that it does not look at."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x, ignored=None):
        return self.lin(x)


def own_hooks():
    """Return a model whose layers have hooks of their own, so that ours must go behind them."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[0].register_forward_pre_hook(lambda _, args: args)
    model[2].register_forward_hook(lambda _, __, output: output)
    return model


def hooks_on(model):
    """Return every hook on the modules and parameters of a model."""
    tables = [hook_tables(m) for m in model.modules()]
    found = [hook for table in tables for hooks in table.values() for hook in hooks.values()]
    return found + [h for p in model.parameters() for h in (p._backward_hooks or {}).values()]


def in_process():
    """Return torch's process-wide tables of module hooks that are not empty."""
    tables = {k: v for k, v in vars(torch_module).items() if k.startswith("_global_")}
    return [name for name, table in tables.items() if isinstance(table, dict) and table]


def in_loss(model, error):
    model(torch.ones(2, 4))
    raise error


def in_backward(model, error):
    FailsBackward.apply(model(torch.ones(2, 4)), error("broken")).sum().backward()


def in_module(model, error):
    model[-1].forward = raising(error)
    model(torch.ones(2, 4))


def in_users_hook(model, error):
    model[1].register_forward_hook(raising(error))
    model(torch.ones(2, 4))


def in_users_gradient_hook(model, error):
    y = model(torch.ones(2, 4))
    y.register_hook(raising(error))
    y.sum().backward()


def raising(error):
    def raises(*_, **__):
        raise error

    return raises


@contextlib.contextmanager
def started(model):
    """Watch as a notebook does, with a cell that stops."""
    run = probe.start(model, live=False)
    try:
        yield run
    finally:
        probe.stop()


PLACES = [in_loss, in_backward, in_module, in_users_hook, in_users_gradient_hook]


@pytest.mark.parametrize("error", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("opened", [probe.watch, started], ids=["with", "start"])
def test_an_exception_anywhere_leaves_no_hook(place, error, opened):
    model = own_hooks()
    before = hooks_on(model)
    with pytest.raises(error), opened(model) as run:
        place(model, error)
    assert not run.is_open
    assert session.sessions() == ()
    assert [h for h in hooks_on(model) if getattr(h, "__name__", "") != "raises"] == before
    assert in_process() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_inside_a_hook_of_ours_goes_on_to_the_user(error, monkeypatch):
    model = Ignores()
    break_at_second_arguments(monkeypatch, error)
    with pytest.raises(error), probe.watch(model, live=False) as run:
        model(torch.ones(2, 4), 2)
    assert not run.is_open
    assert hooks_on(model) == []
    assert in_process() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_the_watch_goes_on_after_an_exception_that_the_user_caught(error):
    model = own_hooks()
    with probe.watch(model, live=False) as run:
        for broken in (False, True, False):
            model[2].forward = (
                raising(error) if broken else type(model[2]).forward.__get__(model[2])
            )
            with contextlib.suppress(error):
                model(torch.ones(2, 4))
    rows = run.df[run.df["role"] == "output"]
    assert rows.groupby("step").size().tolist() == [4, 2, 4]
    assert set(rows["call"]) == {0}


@pytest.mark.parametrize(
    "broken", ["register_module_forward_pre_hook", "register_module_forward_hook"]
)
def test_a_registration_that_fails_half_way_leaves_nothing(broken, monkeypatch):
    model = own_hooks()
    before = hooks_on(model)
    monkeypatch.setattr(torch_module, broken, raising(RuntimeError("full")))
    with pytest.raises(RuntimeError, match="full"):
        probe.start(model)
    assert session.sessions() == ()
    assert hooks_on(model) == before
    assert in_process() == []


def test_a_generator_that_is_abandoned_ends_its_watch():
    model = own_hooks()
    before = hooks_on(model)

    def steps():
        with probe.watch(model, live=False) as run:
            while True:
                model(torch.ones(2, 4))
                yield run

    generator = steps()
    run = next(generator)
    assert run.is_open
    generator.close()
    assert not run.is_open
    assert hooks_on(model) == before


def test_a_graph_that_outlives_the_watch_records_no_more():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    x = torch.ones(2, 4, requires_grad=True)
    with probe.watch(model, live=False) as run:
        kept = model(x)
    rows = len(run)
    kept.sum().backward()
    model(x).sum().backward()
    assert len(run) == rows
    assert not kept._backward_hooks
    assert hooks_on(model) == []


def test_what_was_seen_before_the_exception_is_kept():
    model = Raises()
    with pytest.raises(ValueError, match="broken"), probe.watch(model, live=False) as run:
        model(torch.ones(2, 4))
    assert list(run.df[run.df["role"] == "output"]["module"]) == ["first", "bad.lin"]
    assert run.info.ended == "ValueError in bad at step 0: broken"


@pytest.mark.parametrize("piece", pieces().values(), ids=repr)
def test_a_model_dies_with_its_last_reference_after_the_watch(piece):
    model = piece.build()
    args, kwargs = piece.inputs()
    with probe.watch(model, live=False) as run:
        try:
            model(*args, **kwargs)
        except ValueError:
            assert piece.raises
    seen = weakref.ref(model)
    del model, args, kwargs
    if seen() is not None:  # a model with a cycle of its own dies a little later
        gc.collect()
    assert seen() is None
    assert len(run) > 0


def test_an_open_session_does_not_keep_the_model_alive():
    model = own_hooks()
    probe.start(model, live=False)
    model(torch.ones(2, 4)).sum().backward()
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None
    probe.stop()


def test_a_closed_session_is_freed_with_its_run():
    model = nn.Linear(4, 4)
    probe.start(model, live=False)
    opened = weakref.ref(session.sessions()[0])
    model(torch.ones(2, 4)).sum().backward()
    probe.stop()
    gc.collect()
    assert opened() is None
