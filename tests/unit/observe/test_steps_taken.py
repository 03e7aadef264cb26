"""What an optimizer's step reads and writes, as its rows say it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

import probe_nb as probe
from probe_nb.errors import ProbeWarning
from probe_nb.observe import copies
from probe_nb.observe.stepping import Own
from probe_nb.session import sessions
from probe_nb.terms import COUNTS, STATISTICS
from tests import oracle
from tests.models import no_faults

X = torch.linspace(-1.0, 2.0, 12).reshape(3, 4)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def watching(model, **options):
    return probe.watch(model, live=False, **options)


def back(model, factor=1.0):
    (model(X).square().sum() * factor).backward()


def trains(model, optimizer):
    back(model)
    optimizer.step()
    optimizer.zero_grad()


def seen(run, role, **filters):
    """Return {(module, leaf): the rows} of a role in the optimizer's direction."""
    frame = run.frame(direction="optimizer", role=role, **filters)
    return {
        (module, leaf): rows
        for (module, leaf), rows in frame.groupby(["module", "leaf"], observed=True)
    }


def holds(row, tensor):
    """Hold that a row has the numbers of a tensor, computed in float64."""
    want = oracle.expected(tensor.detach())
    numbers = {name: float(row[name]) for name in STATISTICS}
    counts = {name: int(row[name]) for name in COUNTS}
    assert oracle.faults(want, numbers, counts, want.bins) == []
    assert row["numel"] == want.numel


def values(run, leaf, **filters):
    """Return what an optimizer's own rows say of one thing, step by step."""
    return run.frame(direction="optimizer", role="state", leaf=leaf, **filters)["max"].tolist()


# -- values ----------------------------------------------------------------------------------------


def test_each_row_has_the_numbers_of_what_the_step_read_and_wrote():
    def train(model, watch_steps):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, amsgrad=True)
        for _ in range(3):
            back(model)
            before = [p.detach().clone() for p in model.parameters()]
            grads = [p.grad.clone() for p in model.parameters()]
            optimizer.step()
            after = [p.detach().clone() for p in model.parameters()]
            state = [
                {k: v.clone() for k, v in optimizer.state[p].items()} for p in model.parameters()
            ]
            watch_steps.append((before, grads, after, state))
            optimizer.zero_grad()

    twin, steps = net(), []
    train(twin, steps)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, amsgrad=True)
    with no_faults(), watching(model, optimizer=optimizer) as run:
        for _ in range(3):
            trains(model, optimizer)
    names = [name.rsplit(".", 1) for name, _ in model.named_parameters()]
    for step, truth in enumerate(steps):
        for (module, leaf), before, grad, after, state in zip(names, *truth, strict=True):
            (one,) = (seen(run, "param_grad", step=step)[module, leaf].to_dict("records"),)
            holds(one[0], grad)
            holds(seen(run, "param", step=step)[module, leaf].iloc[0], after)
            holds(seen(run, "update", step=step)[module, leaf].iloc[0], after - before)
            for key, tensor in state.items():
                holds(seen(run, "state", step=step)[module, f"{leaf}.{key}"].iloc[0], tensor)
    assert set(run.frame(direction="optimizer")["call"]) == {0}


def test_the_update_of_plain_descent_is_the_gradient_times_the_rate():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    with no_faults(), watching(model, optimizer=optimizer) as run:
        trains(model, optimizer)
    grads, updates = seen(run, "param_grad"), seen(run, "update")
    assert grads.keys() == updates.keys()
    assert len(grads) == 4
    for key, rows in updates.items():
        grad, update = grads[key].iloc[0], rows.iloc[0]
        assert update["l2"] == pytest.approx(0.125 * grad["l2"], rel=1e-5)
        assert update["mean"] == pytest.approx(-0.125 * grad["mean"], rel=1e-4, abs=1e-7)
        assert update["max"] == pytest.approx(-0.125 * grad["min"], rel=1e-5)


def test_clipped_gradients_are_seen_clipped_and_the_backward_as_it_was():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with no_faults(), watching(model, optimizer=optimizer) as run:
        back(model)
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
    arrived = run.frame(role="param_grad", direction="backward")
    used = run.frame(role="param_grad", direction="optimizer")
    assert (arrived["l2"] ** 2).sum() ** 0.5 == pytest.approx(norm, rel=1e-5)
    assert norm > 1.0
    assert (used["l2"] ** 2).sum() ** 0.5 == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("wide", [False, True], ids=["own", "process-wide"])
def test_what_a_pre_hook_of_the_users_makes_of_gradients_is_what_the_optimizer_sees(wide):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def halve(stepping, *_):
        for group in stepping.param_groups:
            for p in group["params"]:
                p.grad.mul_(0.5)

    with no_faults(), watching(model, optimizer=optimizer) as run:
        place = register_optimizer_step_pre_hook
        handle = (place if wide else optimizer.register_step_pre_hook)(halve)
        for _ in range(2):
            trains(model, optimizer)
        handle.remove()
    arrived = run.frame(role="param_grad", direction="backward")["l2"].tolist()
    used = run.frame(role="param_grad", direction="optimizer")["l2"].tolist()
    assert sorted(used) == pytest.approx(sorted(0.5 * each for each in arrived), rel=1e-5)


def test_bfloat16_updates_are_exact_also_where_the_type_would_round_them():
    model = nn.Linear(2, 1, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 256.0]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with no_faults(), watching(model, optimizer=optimizer) as run:
        model.weight.grad = torch.tensor([[0.99609375, -2.0]], dtype=torch.bfloat16)
        optimizer.step()
    (row,) = run.frame(role="update").to_dict("records")
    assert model.weight.tolist() == [[0.00390625, 258.0]]
    assert (row["min"], row["max"]) == (-0.99609375, 2.0)
    assert row["dtype"] == "float32"


def test_complex_parameters_have_updates():
    model = nn.Module()
    model.phase = nn.Parameter(torch.tensor([1 + 1j, 2 - 3j]))
    model.forward = lambda: model.phase.abs().square().sum()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with no_faults(), watching(model, optimizer=optimizer) as run:
        model().backward()
        before = model.phase.detach().clone()
        optimizer.step()
    (row,) = run.frame(role="update").to_dict("records")
    assert row["dtype"] == "complex64"
    assert row["absmax"] == pytest.approx(
        float((model.phase.detach() - before).abs().max()), rel=1e-6
    )


def test_sparse_gradients_are_seen_with_their_zeros():
    table = nn.Embedding(6, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
    with no_faults(), watching(table, optimizer=optimizer) as run:
        table(torch.tensor([1, 1, 4])).sum().backward()
        optimizer.step()
    grad = seen(run, "param_grad")["", "weight"].iloc[0]
    assert (grad["numel"], grad["zero_count"], grad["max"]) == (18, 12, 2.0)
    update = seen(run, "update")["", "weight"].iloc[0]
    assert (update["zero_count"], update["absmax"]) == (12, pytest.approx(0.1, rel=1e-5))


# -- which parameters ------------------------------------------------------------------------------


def test_what_is_frozen_or_has_no_gradient_has_no_rows_and_what_is_shared_has_them_once():
    model = nn.ModuleDict({n: nn.Linear(2, 2, bias=False) for n in ("a", "b", "frozen", "unused")})
    model["b"].weight = model["a"].weight
    model["frozen"].weight.requires_grad_(False)
    optimizer = torch.optim.Adam([*model.parameters()], lr=0.1)
    with no_faults(), watching(model, optimizer=optimizer) as run:
        x = model["frozen"](torch.ones(1, 2))
        model["b"](model["a"](x)).sum().backward()
        optimizer.step()
    assert set(run.frame(role="update")["module"]) == {"a"}
    assert len(run.frame(role="update")) == 1
    assert set(run.frame(direction="optimizer", model="model")["module"]) == {"a", ""}
    assert run.info.moved == {
        "model": {"a.weight": "optimizer.0.group0", "unused.weight": "optimizer.0.group0"}
    }


def test_only_what_is_selected_is_read():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with no_faults(), watching(model, optimizer=optimizer, select="2") as run:
        trains(model, optimizer)
    assert set(run.frame(role="update")["module"]) == {"2"}


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ("param_grad", {"param_grad"}),
        ("param", {"param"}),
        ("update", {"update"}),
        ("state", {"state"}),
        ("output", set()),
    ],
)
def test_roles_choose_what_is_read(roles, expected):
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    with no_faults(), watching(model, optimizer=optimizer, roles=roles) as run:
        trains(model, optimizer)
    assert set(run.df[run.df["direction"] == "optimizer"]["role"]) == expected


def test_an_optimizer_that_was_not_named_has_no_rows():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with no_faults(), watching(model) as run:
        trains(model, optimizer)
    assert "optimizer" not in set(run.df["direction"])


def test_in_steps_that_are_not_selected_nothing_is_read(monkeypatch):
    read = []
    monkeypatch.setattr(
        "probe_nb.observe.step_rows.copied", lambda p: read.append(p) or copies.copied(p)
    )
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with no_faults(), watching(model, optimizer=optimizer, steps="1") as run:
        for _ in range(3):
            trains(model, optimizer)
    assert set(run.frame(direction="optimizer")["step"]) == {1}
    assert len(read) == 4


def test_a_range_of_one_module_alone_leaves_out_the_optimizer_and_other_modules():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with no_faults(), watching(model, optimizer=optimizer) as run, run.only(model[0], "First"):
        trains(model, optimizer)
    assert set(run.frame(direction="optimizer")["module"]) == {"First"}
    assert set(run.frame(role="update")["leaf"]) == {"weight", "bias"}


# -- settings --------------------------------------------------------------------------------------


def test_settings_of_every_group_and_optimizer_are_rows():
    model = net()
    first = torch.optim.SGD(
        [{"params": model[0].weight, "lr": 0.5}, {"params": [model[0].bias]}], lr=0.25, momentum=0.9
    )
    second = torch.optim.AdamW(model[2].parameters(), lr=torch.tensor(0.125))
    schedule = torch.optim.lr_scheduler.ExponentialLR(first, 0.5)
    with no_faults(), watching(model, optimizer=[first, second]) as run:
        for _ in range(2):
            back(model)
            first.step()
            second.step()
            schedule.step()
    rows = run.frame(direction="optimizer", module="", role="state")
    assert set(zip(rows["type"], rows["api"], strict=True)) == {
        ("SGD", "optimizer.0"), ("AdamW", "optimizer.1"),
    }  # fmt: skip
    assert set(rows["numel"]) == {1}
    assert set(rows["shape"]) == {()}
    assert values(run, "group0.lr", type="SGD") == [0.5, 0.25]
    assert values(run, "group1.lr", type="SGD") == [0.25, 0.125]
    assert values(run, "group1.momentum", type="SGD") == [0.9, 0.9]
    assert values(run, "group0.lr", type="AdamW") == [0.125, 0.125]
    assert values(run, "group0.betas.1", type="AdamW") == [0.999, 0.999]
    assert values(run, "group0.amsgrad", type="AdamW") == [0.0, 0.0]
    assert values(run, "skipped") == [0.0] * 4
    assert "group0.params" not in set(rows["leaf"])
    assert run.info.moved["model"]["0.bias"] == "optimizer.0.group1"


class Nested(torch.optim.Optimizer):
    """Keeps what nobody foresaw."""

    def __init__(self, params, **defaults):
        super().__init__(params, {"lr": 0.1, "note": "text", "nothing": None, **defaults})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {
                    "history": [p.grad.clone(), {"deep": p.detach() * 2}],
                    "count": 3,
                    "name": "text",
                    "huge": 2**70,
                    "endless": 2**2000,
                }
                p.sub_(p.grad, alpha=group["lr"])


def test_nested_states_of_an_optimizer_of_the_users_own_are_read():
    model = nn.Linear(2, 1, bias=False)
    optimizer = Nested(model.parameters(), flag=True, pair=(1, 2.5))
    with no_faults(), watching(model, optimizer=optimizer) as run:
        model(torch.tensor([[1.0, 2.0]])).sum().backward()
        before = model.weight.detach().clone()
        optimizer.step()
    state = seen(run, "state")
    holds(state["", "weight.history.0"].iloc[0], model.weight.grad)
    holds(state["", "weight.history.1.deep"].iloc[0], 2 * before)
    assert state["", "weight.count"]["max"].tolist() == [3.0]
    assert state["", "weight.huge"]["max"].tolist() == [2.0**70]
    assert values(run, "group0.pair.1") == [2.5]
    assert values(run, "group0.flag") == [1.0]
    leaves = {leaf for _, leaf in state}
    assert not {"group0.note", "group0.nothing", "weight.name", "weight.endless"} & leaves


class Wrapper:
    """As accelerate wraps optimizers."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        self.optimizer.step()


def test_a_wrapped_optimizer_is_the_one_inside():
    model = net()
    wrapped = Wrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    with no_faults(), watching(model, optimizer=wrapped) as run:
        back(model)
        wrapped.step()
    assert len(run.frame(role="update")) == 4


class Decaying(torch.optim.SGD):
    """Calls the step of its parent, which torch hooks too where one was made before."""

    def step(self, closure=None):
        super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.mul_(0.5)


def test_a_class_that_calls_the_step_of_its_parent_is_read_once_around_all_of_it():
    torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 4.0)
    optimizer = Decaying(model.parameters(), lr=1.0)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(len(sessions()[0].run)))
    with no_faults(), watching(model, optimizer=optimizer) as run:
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    assert len(calls) == 2
    (row,) = run.frame(role="update").to_dict("records")
    assert row["max"] == (4.0 - 1.0) / 2 - 4.0
    assert len(run.frame(role="param_grad", direction="optimizer")) == 1


def test_a_second_step_in_a_step_of_the_run_is_another_call():
    model = net()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    last = torch.optim.SGD(model[2].parameters(), lr=0.1)
    with no_faults(), watching(model, optimizer=[first, last]) as run:
        for _ in range(2):
            for _ in range(2):
                back(model)
                first.step()
            last.step()
    rows = run.frame(role="update", module="0", leaf="weight")
    assert list(zip(rows["step"], rows["micro_step"], rows["call"], strict=True)) == [
        (0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 1, 1),
    ]  # fmt: skip


# -- closures --------------------------------------------------------------------------------------


def test_the_update_of_a_step_with_closures_is_that_of_the_whole_step():
    model = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, lr=0.5)
    evaluations, parameters = [], [model.weight.detach().clone()]

    def closure():
        optimizer.zero_grad()
        loss = (model(X) - 1).square().sum()
        loss.backward()
        evaluations.append(model.weight.grad.clone())
        return loss

    with no_faults(), watching(model, optimizer=optimizer) as run:
        counts = []
        for _ in range(2):
            optimizer.step(closure)
            parameters.append(model.weight.detach().clone())
            counts.append(len(evaluations))
    assert counts[0] > 1
    for step in range(2):
        holds(
            seen(run, "param_grad", step=step)["", "weight"].iloc[0], evaluations[counts[step] - 1]
        )
        moved = parameters[step + 1] - parameters[step]
        holds(seen(run, "update", step=step)["", "weight"].iloc[0], moved)
    assert set(run.frame(direction="optimizer")["step"]) == {0, 1}
    assert run.frame(role="state", leaf="weight.n_iter")["max"].tolist()[-1] > 1
    assert "weight.old_dirs.0" in {leaf for _, leaf in seen(run, "state")}


def test_a_closure_step_of_which_only_some_steps_are_chosen_is_read_in_those():
    model = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)

    def closure():
        optimizer.zero_grad()
        loss = model(X).sum()
        loss.backward()
        return loss

    with no_faults(), watching(model, optimizer=optimizer, steps="1,3") as run:
        for _ in range(4):
            optimizer.step(closure)
    rows = run.frame(role="update")
    assert rows["step"].tolist() == [1, 3]
    assert rows["l2"].tolist() == pytest.approx([0.125 * float(model.weight.grad.norm())] * 2)


# -- the loss scale --------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_under_a_scaler_the_optimizer_sees_unscaled_gradients_and_skips_are_said(fused):
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)  # what it moves by is a number of its type then
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    moved = []
    with no_faults(), watching(model, optimizer=optimizer, scaler=scaler) as run:
        for factor in (1.0, torch.inf, 1.0):
            before = model.weight.detach().clone()
            scaler.scale(model(torch.ones(1, 2)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            moved.append(float((model.weight - before).detach().abs().max()))
    assert moved == [0.5, 0.0, 0.5]
    skipped = run.frame(role="state", leaf="skipped")
    assert list(zip(skipped["step"], skipped["max"], strict=True)) == [(0, 0), (1, 1), (2, 0)]
    made = [0, 1, 2] if fused else [0, 2]
    grads = run.frame(role="param_grad", direction="optimizer")
    assert grads["step"].tolist() == made
    assert [grads["max"].iloc[0], grads["max"].iloc[-1]] == [1.0, 1.0]
    assert grads["loss_scale"].notna().all() == fused
    assert values(run, "loss_scale") == ([1024.0, 1024.0, 512.0] if fused else [1024.0, 512.0])
    updates = run.frame(role="update")
    assert dict(zip(updates["step"], updates["absmax"], strict=True)) == {
        step: moved[step] for step in made
    }


def test_a_skip_in_the_last_step_is_said_when_the_watch_ends_or_is_asked():
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with no_faults(), watching(model, optimizer=optimizer, scaler=scaler) as run:
        scaler.scale(model(torch.ones(1, 2)).sum() * torch.inf).backward()
        scaler.step(optimizer)
        assert values(run, "skipped") == [1.0]
        scaler.update()
    assert values(run, "skipped") == [1.0]


def test_of_two_optimizers_under_a_scaler_the_one_that_was_skipped_is_named():
    model = net()
    sane = torch.optim.SGD(model[0].parameters(), lr=0.1)
    sick = torch.optim.SGD(model[2].parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with no_faults(), watching(model, optimizer=[sane, sick], scaler=scaler) as run:
        scaler.scale(model(X).sum()).backward()
        model[2].weight.grad.fill_(torch.nan)
        scaler.step(sane)
        scaler.step(sick)
        scaler.update()
        model(X)
    rows = run.frame(role="state", leaf="skipped")
    assert dict(zip(rows["api"], rows["max"], strict=True)) == {"optimizer.0": 0, "optimizer.1": 1}


# -- hooks of others -------------------------------------------------------------------------------


def test_the_users_own_hooks_can_ask_for_the_rows_of_the_step_they_are_in():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = []

    def asks(when):
        def hook(*_):
            frame = run.df[run.df["direction"] == "optimizer"]
            step = run.df["step"].max()
            told.append((when, int(step), set(frame[frame["step"] == step]["role"])))

        return hook

    handles = [
        optimizer.register_step_pre_hook(asks("before")),
        optimizer.register_step_post_hook(asks("after")),
        register_optimizer_step_post_hook(asks("after, wide")),
    ]
    with no_faults(), watching(model, optimizer=optimizer) as run:
        for _ in range(2):
            trains(model, optimizer)
    for handle in handles:
        handle.remove()
    everything = {"param_grad", "param", "update", "state"}
    assert told == [
        *[("before", 0, set()), ("after", 0, everything), ("after, wide", 0, everything)],
        *[("before", 1, set()), ("after", 1, everything), ("after, wide", 1, everything)],
    ]


def test_no_hook_of_ours_stays_with_an_optimizer():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: None)
    optimizer.register_step_post_hook(lambda *_: None)
    tables = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    before = [list(table.items()) for table in tables]
    with no_faults(), watching(model, optimizer=optimizer):
        trains(model, optimizer)
        assert [list(table.items()) for table in tables] == before


class Breaks(torch.optim.SGD):
    broken = True

    def step(self, closure=None):
        if self.broken:
            raise ZeroDivisionError
        return super().step(closure)


def copies_alive():
    gc.collect()
    named = sessions()[0]._rooms.steps._named.values()
    return [each.step for each in named if each.step is not None]


def test_a_step_that_raises_passes_on_and_leaves_nothing_behind():
    model = net()
    optimizer = Breaks(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: None)
    with no_faults(), watching(model, optimizer=optimizer) as run:
        back(model)
        with pytest.raises(ZeroDivisionError):
            optimizer.step()
        (step,) = copies_alive()
        held = [weakref.ref(t) for t in step.copies.values()]
        assert held
        del step
        model(X)  # the next thing that is seen
        assert copies_alive() == []
        assert [ref for ref in held if ref() is not None] == []
        optimizer.broken = False
        before = model[0].weight.detach().clone()
        optimizer.step()
        moved = model[0].weight.detach() - before
    holds(seen(run, "update")["0", "weight"].iloc[-1], moved)
    assert not any(isinstance(h, Own) for h in optimizer._optimizer_step_pre_hooks.values())


def test_a_step_that_raised_is_dropped_by_the_next_one_and_at_the_end():
    model = net()
    optimizer = Breaks(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    with no_faults(), watching(model, optimizer=optimizer) as run:
        back(model)
        for broken in (True, False, True):
            optimizer.broken = broken
            try:
                optimizer.step()
            except ZeroDivisionError:
                assert broken
    assert len(run.frame(role="update")) == 4
    assert not any(isinstance(h, Own) for h in optimizer._optimizer_step_post_hooks.values())


def test_a_fault_of_ours_is_told_and_training_goes_on(monkeypatch):
    def breaks(*_):
        raise LookupError("ours")

    monkeypatch.setattr("probe_nb.observe.step_rows.difference", breaks)
    monkeypatch.setattr("probe_nb.observe.step_rows.StepRows.moved", breaks)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model[0].weight.detach().clone()

    def train():
        with watching(model, optimizer=optimizer):
            trains(model, optimizer)
            trains(model, optimizer)

    with pytest.warns(ProbeWarning, match="LookupError"):
        train()
    assert not torch.equal(model[0].weight, before)


def test_in_inference_mode_steps_are_read_too():
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with no_faults(), watching(model, optimizer=optimizer) as run:
        model(torch.ones(1, 2)).sum().backward()
        with torch.inference_mode():
            optimizer.step()
    assert run.frame(role="update")["max"].tolist() == [pytest.approx(-0.5, rel=1e-6)]


# -- the budget ------------------------------------------------------------------------------------


def test_where_not_all_copies_fit_parameters_take_turns(monkeypatch):
    monkeypatch.setattr(copies, "BUDGET", 100)
    model = nn.Sequential(*(nn.Linear(5, 2, bias=False) for _ in range(5)))  # 40 bytes each
    model.append(nn.Linear(10, 10, bias=False))  # fits never
    for layer in model:
        layer.forward = lambda x, w=layer.weight: x + w.sum()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with no_faults(), watching(model, optimizer=optimizer) as run:
        for _ in range(5):
            model(torch.ones(2)).sum().backward()
            optimizer.step()
    rows = run.frame(role="update")
    measured = rows[rows["status"] == "ok"]
    turns = measured.groupby("step")["module"].agg(list).tolist()
    assert turns == [["0", "1"], ["2", "3"], ["0", "4"], ["1", "2"], ["3", "4"]]
    assert len(rows) == 30
    assert set(rows[rows["status"] != "ok"]["status"]) == {"skipped_budget"}
    assert rows[rows["module"] == "5"]["status"].tolist() == ["skipped_budget"] * 5
    assert rows[rows["status"] != "ok"]["absmax"].isna().all()


def test_no_more_than_the_budget_is_held_at_once(monkeypatch):
    monkeypatch.setattr(copies, "BUDGET", 100)
    model = nn.Sequential(*(nn.Linear(5, 2, bias=False) for _ in range(5)))
    for layer in model:
        layer.forward = lambda x, w=layer.weight: x + w.sum()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held = []

    def hook(*_):
        (step,) = copies_alive()
        kept = [t for t in step.copies.values() if isinstance(t, torch.Tensor)]
        held.append(sum(t.untyped_storage().nbytes() for t in kept))

    with no_faults(), watching(model, optimizer=optimizer):
        wide = register_optimizer_step_pre_hook(lambda *_: None)
        optimizer._optimizer_step_code = hook
        for _ in range(3):
            model(torch.ones(2)).sum().backward()
            optimizer.step()
        wide.remove()
    assert held == [80, 80, 80]


@pytest.mark.parametrize("others", [False, True])
def test_a_step_whose_rows_cannot_be_written_leaves_no_copy_and_no_hook(monkeypatch, others):
    def broken(*_):
        raise RuntimeError("planted")

    monkeypatch.setattr("probe_nb.observe.step_rows.StepRows.write", broken)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if others:
        optimizer.register_step_pre_hook(lambda *_: None)
    watch = watching(model, optimizer=optimizer)
    with pytest.warns(ProbeWarning, match="planted"), watch:  # noqa: PT031
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        (session,) = sessions()
        (known,) = session._rooms.steps._named.values()
        assert known.step is None
        assert len(optimizer._optimizer_step_pre_hooks) == others
        assert len(optimizer._optimizer_step_post_hooks) == 0
