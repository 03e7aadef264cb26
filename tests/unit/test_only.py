"""One module alone inside an open watch: `run.only`."""

from __future__ import annotations

import contextlib
import copy
import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import probe_nb as probe
from probe_nb.errors import ConfigError, ModelError, SessionStateError
from tests.models import no_faults


class Block(nn.Module):
    """Scales by a parameter of its own what a layer inside makes."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2, bias=False)
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, x):
        return self.lin(x) * self.scale


class Net(nn.Module):
    """A block between two layers; `alone` is what is done around the block's call."""

    def __init__(self):
        super().__init__()
        self.first, self.block, self.last = nn.Linear(2, 2), Block(), nn.Linear(2, 1)

    def forward(self, x):
        return self.last(self.block(self.first(x)))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


X = torch.tensor([[1.0, -2.0], [0.5, 4.0]])


def rows(run, **facts):
    """Return the (module, role, leaf) of every row, sorted."""
    frame = run.df
    for name, value in facts.items():
        frame = frame[frame[name] == value]
    return sorted(zip(frame["module"], frame["role"], frame["leaf"], strict=True))


BLOCK = sorted(
    [
        ("MyBlock", "param", "scale"),
        ("MyBlock", "input", "0"),
        ("MyBlock", "output", "0"),
        ("MyBlock", "grad_output", "0"),
        ("MyBlock", "grad_input", "0"),
        ("MyBlock", "param_grad", "scale"),
    ]
)


def test_in_the_range_one_module_is_recorded_under_its_name_and_all_else_is_silent(net):
    with no_faults(), probe.watch(net, live=False) as run, run.only(net.block, "MyBlock"):
        net(X).sum().backward()
    assert rows(run) == BLOCK


def test_gradients_that_arrive_after_the_range_are_those_of_its_calls(net):
    x = X.clone().requires_grad_()
    with no_faults(), probe.watch(net, live=False) as run:
        h = net.first(x)
        with run.only(net.block, "MyBlock"):
            y = net.block(h)
        net.last(y).sum().backward()
    assert set(BLOCK) <= set(rows(run))
    modules = set(run.df["module"])
    assert modules == {"first", "MyBlock", "last", "block", "block.lin"}
    # what the silent modules have are their parameters, which were read when the step began
    silent = run.df[run.df["module"].isin(["block", "block.lin"])]
    assert set(silent["role"]) == {"param"}
    h = net.first(X).detach().requires_grad_()
    inside = net.block.lin(h).detach()
    want = torch.autograd.grad(net.last(net.block(h)).sum(), [h, net.block.scale])
    got = run.frame(module="MyBlock")
    mean = got.set_index("role")["mean"]
    assert mean["grad_input"] == pytest.approx(want[0].double().mean().item(), rel=1e-5)
    assert mean["param_grad"] == pytest.approx(want[1].item(), rel=1e-5)
    assert mean["output"] == pytest.approx(3 * inside.double().mean().item(), rel=1e-5)
    assert mean["param"] == 3.0


def test_training_is_the_same_bit_for_bit_with_ranges(net):
    def train(model, around):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            with around(model):
                loss = model(X).square().sum()
            loss.backward()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    twin = copy.deepcopy(net)
    expected = train(twin, lambda _: contextlib.nullcontext())
    with probe.watch(net, live=False) as run:
        found = train(net, lambda model: run.only(model.block, "B"))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert set(run.df["step"]) == {0, 1, 2}
    assert run.df.groupby("step").size().nunique() == 1


def test_without_a_block_the_range_ends_where_it_is_closed(net):
    with no_faults(), probe.watch(net, roles="output", live=False) as run:
        alone = run.only(net.block, "MyBlock")
        net(X)
        alone.close()
        alone.close()
        net(X)
    seen = run.df.groupby("step")["module"].agg(list).tolist()
    assert seen == [["MyBlock"], ["first", "block.lin", "block", "last", ""]]


def test_steps_and_calls_go_on_being_counted(net):
    with torch.no_grad(), probe.watch(net, roles="input,output", live=False) as run:
        net(X)
        with run.only(net.block, "B"):
            net(X)
        run.step()  # from here on only this ends steps
        with run.only(net.block, "B"):
            net(X)
            net.block(X)
        run.step()
        net.block(X)
        with run.only(net.block, "B"):
            net.block(X)
        net.block(X)
    outputs = run.df[run.df["role"] == "output"]
    outputs = outputs[outputs["module"].isin(["B", "block"])]
    found = list(zip(outputs["step"], outputs["module"], outputs["call"], strict=True))
    assert found == [
        (0, "block", 0), (1, "B", 0), (2, "B", 0), (2, "B", 1),
        (3, "block", 0), (3, "B", 1), (3, "block", 2),
    ]  # fmt: skip


def test_a_range_may_begin_and_end_inside_a_forward(net):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            h = self.net.first(x)
            with run.only(self.net.block, "MyBlock"):
                h = self.net.block(h)
            return self.net.last(h)

    outer = Outer()
    with no_faults(), probe.watch(outer, live=False) as run:
        outer(X).sum().backward()
    found = set(rows(run))
    assert set(BLOCK) <= found
    assert {("", "output", "0"), ("net.first", "output", "0"), ("net.last", "input", "0")} <= found
    called = {(m, r) for m, r, _ in found if r != "param"}
    assert not {pair for pair in called if pair[0].startswith("net.block")}


def test_a_module_of_no_watched_model_is_watched_for_the_range(net):
    stranger = Block()
    with no_faults(), probe.watch(net, live=False) as run:
        for _ in range(2):
            stranger(net.first(X)).sum().backward()
            with run.only(stranger, "MyBlock"):
                y = stranger(net.first(X))
            y.sum().backward()
            run.step()
        stranger(net.first(X)).sum().backward()
    for step in range(2):
        mine = [row for row in rows(run, step=step) if row[0] == "MyBlock"]
        assert [row for row in mine if row[1] != "param_grad"] == [
            row for row in BLOCK if row[1] != "param_grad"
        ]
        assert ("MyBlock", "param_grad", "scale") in mine
    assert set(run.frame(module="MyBlock")["step"]) == {0, 1}
    assert not stranger.scale._backward_hooks
    assert not stranger._forward_hooks


def test_the_root_itself_can_be_alone_and_its_steps_are_counted(net):
    with torch.no_grad(), probe.watch(net, roles="output", live=False) as run:
        with run.only(net, "Whole"):
            net(X)
            net(X)
        net(X)
    found = list(zip(run.df["step"], run.df["module"], strict=True))
    assert found[:2] == [(0, "Whole"), (1, "Whole")]
    assert {step for step, _ in found[2:]} == {2}


def test_a_wrapped_module_is_recorded_inside_its_wrapper(net):
    wrapped = nn.DataParallel(net.block, device_ids=None)
    watch = probe.watch(net, roles="output", live=False)
    with no_faults(), watch as run, run.only(wrapped, "MyBlock"):
        wrapped(X)
    assert run.df["module"].tolist() == ["MyBlock"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recompute_after_the_range_belongs_to_it(net, reentrant):
    x = X.clone().requires_grad_()
    with no_faults(), probe.watch(net, live=False) as run:
        with run.only(net.block, "MyBlock"):
            y = checkpoint(net.block, x, use_reentrant=reentrant)
        y.sum().backward()
    gradients = run.df[run.df["direction"] == "backward"]
    assert set(gradients["module"]) == {"MyBlock"}
    grad = gradients[gradients["role"] == "grad_output"]
    assert grad["mean"].tolist() == [1.0]
    forward = run.df[run.df["direction"] == "forward"]
    assert set(forward[forward["role"] != "param"]["module"]) == {"MyBlock"}


def test_parameters_used_in_and_outside_of_a_range_keep_their_path(net):
    optimizer = torch.optim.SGD(net.parameters())
    with no_faults(), probe.watch(net, optimizer=optimizer, live=False) as run:
        y = net.block(X)
        with run.only(net.block, "MyBlock"):
            y = y + net.block(X)
        y.sum().backward()
    gradients = run.df[run.df["role"] == "param_grad"]
    assert set(zip(gradients["module"], gradients["leaf"], strict=True)) >= {
        ("block", "scale"), ("block.lin", "weight")
    }  # fmt: skip
    assert "MyBlock" not in set(gradients["module"])
    scale = gradients[gradients["leaf"] == "scale"]["mean"].iloc[0]
    want = torch.autograd.grad((2 * net.block(X)).sum(), net.block.scale)[0].item()
    assert scale == pytest.approx(want, rel=1e-5)


def test_one_module_can_have_several_names(net):
    with probe.watch(net, roles="output", live=False) as run:
        for name in ("A", "B", "A"):
            with run.only(net.block, name):
                net.block(X)
    assert run.df["module"].tolist() == ["A", "B", "A"]


def test_outside_of_the_chosen_steps_a_range_is_silent_too(net):
    with torch.no_grad(), probe.watch(net, steps="1", live=False) as run:
        for _ in range(3):
            with run.only(net.block, "MyBlock"):
                net(X)
    assert set(run.df["step"]) == {1}
    assert set(run.df["module"]) == {"MyBlock"}


def test_a_module_that_select_leaves_out_can_be_alone(net):
    with probe.watch(net, select="first", live=False) as run, run.only(net.block, "MyBlock"):
        net(X).sum().backward()
    assert rows(run) == BLOCK


def test_the_coverage_says_that_a_range_silenced_a_module(net):
    with probe.watch(net, live=False) as run:
        with run.only(net.block, "MyBlock"):
            net(X)
        with run.only(net.last, "unused"):
            pass
    frame = run.coverage().set_index("module")["reason"]
    silenced = "called only while `run.only` recorded something else"
    assert {m: r for m, r in frame.items() if r == silenced}.keys() == {
        "", "first", "block", "block.lin", "last"
    }  # fmt: skip
    assert frame["unused"] == "never called"


def test_ranges_do_not_add_up_over_many_steps(net):
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    with probe.watch(net, optimizer=optimizer, live=False) as run:
        only = probe.session.sessions()[0]._rooms.only
        for _ in range(50):
            with run.only(net.block, "MyBlock"):
                net(X).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert len(only.named) == 1
        assert len(only._heard) <= 17
    rows = run.df[run.df["direction"] != "optimizer"]
    assert rows.groupby("step").size().tolist() == [6] * 50


# -- how it ends --------------------------------------------------------------------------------------


def fails(net, error):
    net(X)
    raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_inside_ends_the_range_and_passes(net, error):
    with probe.watch(net, roles="output", live=False) as run:
        with pytest.raises(error), run.only(net.block, "MyBlock"):
            fails(net, error)
        net(X)
    assert run.df[run.df["step"] == 1]["module"].tolist() == [
        "first", "block.lin", "block", "last", ""
    ]  # fmt: skip


def test_a_second_range_is_refused_while_one_is_open(net):
    with probe.watch(net, roles="output", live=False) as run:
        with run.only(net.block, "MyBlock"):
            with pytest.raises(SessionStateError, match="`MyBlock` alone already"):
                run.only(net.first, "other")
            net(X)
        with run.only(net.first, "other"):
            net(X)
    assert run.df["module"].tolist() == ["MyBlock", "other"]


def test_a_range_is_entered_once(net):
    with probe.watch(net, live=False) as run:
        alone = run.only(net.block, "MyBlock")
        with alone, pytest.raises(SessionStateError, match="used already"), alone:
            pass
        with pytest.raises(SessionStateError, match="used already"), alone:
            pass


def test_a_closed_run_refuses_and_a_range_outlives_its_run_without_harm(net):
    with probe.watch(net, live=False) as run:
        alone = run.only(net.block, "MyBlock")
    alone.close()
    with pytest.raises(SessionStateError, match="closed"):
        run.only(net.block, "MyBlock")
    with probe.watch(net, roles="output", live=False) as later:
        net(X)
    assert "block" in set(later.df["module"])


def test_a_late_close_does_not_end_the_range_of_another(net):
    with probe.watch(net, roles="output", live=False) as run:
        first = run.only(net.block, "A")
        first.close()
        with run.only(net.block, "B"):
            first.close()
            net(X)
    assert run.df["module"].tolist() == ["B"]


@pytest.mark.parametrize(
    ("module", "name", "error", "text"),
    [
        ("block", "MyBlock", ModelError, "must be a `torch.nn.Module`, got str"),
        (Block, "MyBlock", ModelError, "the class Block"),
        (None, "MyBlock", ModelError, "got NoneType"),
        (Block(), "", ConfigError, "`name` is ''"),
        (Block(), 5, ConfigError, "`name` is 5"),
        (Block(), None, ConfigError, "`name` is None"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(net, module, name, error, text):
    with probe.watch(net, roles="output", live=False) as run:
        with pytest.raises(error, match=text):
            run.only(module, name)
        net(X)
    assert len(run) == 5


def test_a_range_holds_for_every_thread(net):
    with probe.watch(net, roles="output", live=False) as run, run.only(net.block, "MyBlock"):
        thread = threading.Thread(target=net, args=(X,))
        thread.start()
        thread.join()
    assert run.df["module"].tolist() == ["MyBlock"]


def test_a_range_keeps_no_module_alive(net):
    with probe.watch(net, live=False) as run:
        stranger = Block()
        with run.only(stranger, "MyBlock"):
            stranger(X).sum().backward()
        run.step()
        seen = weakref.ref(stranger)
        del stranger
        gc.collect()
        assert seen() is None


@pytest.mark.parametrize("name", ["a<b>&", "(root)", "ein Modul", "x\ud800y"])
def test_any_text_is_a_name(net, name, tmp_path):
    with probe.watch(net, live=False) as run, run.only(net.block, name):
        net(X).sum().backward()
    assert len(run) == 6
    repr(run)
    run._repr_mimebundle_()["text/html"].encode()
    run.save(tmp_path / "run.parquet")
    assert len(probe.load(tmp_path / "run.parquet")) == 6


class UsesWeights(nn.Module):
    """Uses layers inside of it by their weights only."""

    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        return nn.functional.linear(x, self.inside.weight)


@pytest.mark.parametrize("chosen", ["first", "last"])
def test_weights_that_are_used_without_their_module_are_those_of_who_is_around(chosen):
    model = nn.ModuleDict({"first": UsesWeights(), "last": UsesWeights()})
    with no_faults(), probe.watch(model, roles="param_grad,output", live=False) as run:
        x = torch.ones(1, 2)
        for name in ("first", "last"):
            with run.only(model[name], "Mine") if name == chosen else contextlib.nullcontext():
                x = model[name](x)
        x.sum().backward()
    other = "last" if chosen == "first" else "first"
    assert {row[0] for row in rows(run)} == {"Mine", other, f"{other}.inside"}


def test_in_a_range_around_everything_no_other_weights_are_recorded():
    model = nn.Sequential(UsesWeights(), nn.MultiheadAttention(2, 1), UsesWeights())

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = model

        def forward(self, x):
            h = self.parts[0](x)
            return self.parts[2](self.parts[1](h, h, h)[0])

    whole = Whole()
    with no_faults(), probe.watch(whole, live=False) as run, run.only(model[0], "Mine"):
        whole(torch.ones(3, 1, 2)).sum().backward()
    assert {row[0] for row in rows(run)} == {"Mine"}
