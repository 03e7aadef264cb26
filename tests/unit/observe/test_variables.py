"""Values that are saved by name: `probe.save(value, name)`. Gradients are held to `autograd.grad` or to hand."""

from __future__ import annotations

import dataclasses
import gc
import threading
import weakref
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import probe_nb as probe
from probe_nb.errors import ConfigError, NonFiniteError, ProbeWarning
from probe_nb.observe import variables
from probe_nb.session import sessions
from tests.models import no_faults


class Pair(NamedTuple):
    first: object
    second: object


@dataclasses.dataclass
class Batch:
    ids: torch.Tensor
    length: int


def rows(run, *columns):
    """Return what each row of a saved value says, beside its name."""
    found = run.frame(role="value")
    return list(zip(found["api"], *(found[name] for name in columns), strict=True))


def values(run, *columns):
    found = run.values()
    return list(zip(*(found[name] for name in columns), strict=True))


def watching(**options):
    return probe.watch(level="debug", **options)


# -- what is recorded ----------------------------------------------------------------------------


def test_a_tensor_alone_has_no_leaf_path():
    with no_faults(), watching() as run:
        probe.save(torch.tensor([[1.0, 2.0]]), "x")
    (row,) = run.df.itertuples()
    facts = (row.model, row.module, row.type, row.api, row.direction, row.role, row.leaf, row.call)
    assert facts == ("", "", "", "x", "forward", "value", "", 0)
    assert (row.min, row.max, row.mean, row.shape, row.dtype) == (1.0, 2.0, 1.5, (1, 2), "float32")
    assert len(run.values()) == 0


def test_what_lies_inside_is_named_by_its_path():
    value = {
        "h": torch.ones(1),
        "lst": [torch.ones(2), (torch.ones(3), 7)],
        "batch": Batch(torch.ones(4), 5),
        "pair": Pair(None, torch.ones(5)),
        3: "text",
        "empty": {},
    }
    with no_faults(), watching() as run:
        probe.save(value, "it")
    assert rows(run, "leaf", "numel") == [
        ("it", "h", 1),
        ("it", "lst.0", 2),
        ("it", "lst.1.0", 3),
        ("it", "batch.ids", 4),
        ("it", "pair.second", 5),
    ]
    assert values(run, "leaf", "kind", "value") == [
        ("lst.1.1", "int", 7),
        ("batch.length", "int", 5),
        ("pair.first", "None", None),
        ("3", "str", "text"),
        ("empty", "dict", {}),
    ]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (3, "int", 3),
        (2.5, "float", 2.5),
        (True, "bool", True),
        ("a", "str", "a"),
        (None, "None", None),
    ],
)
def test_a_value_that_is_no_tensor_is_in_the_table_of_values(value, kind, expected):
    with no_faults(), watching() as run:
        probe.save(value, "n")
    assert len(run) == 0
    assert values(run, "api", "call", "role", "direction", "leaf", "kind", "value") == [
        ("n", 0, "value", "forward", "", kind, expected)
    ]


def test_an_object_is_known_by_its_class_and_none_of_its_code_runs():
    class Hostile:
        def __init__(self):
            self.t = torch.ones(1)

        def _never(self, *_):
            raise AssertionError("code of the user's ran")

        __repr__ = __str__ = __eq__ = __hash__ = __bool__ = __len__ = __iter__ = _never
        __getattr__ = __class__ = property(_never)

    with no_faults(), watching() as run:
        probe.save([Hostile(), 1], "it")
    assert values(run, "leaf", "kind", "value") == [("0", "object", "Hostile"), ("1", "int", 1)]


def test_a_list_that_holds_itself_ends():
    ring = [1]
    ring.append(ring)
    with no_faults(), watching() as run:
        probe.save(ring, "ring")
    assert values(run, "leaf", "value") == [("0", 1)]


def test_calls_are_counted_by_name_and_begin_anew_with_each_step():
    with no_faults(), watching() as run:
        for _ in range(2):
            for name in ("a", "b", "a"):
                probe.save(torch.ones(1), name)
            probe.save(1, "a")
            run.step()
    assert rows(run, "step", "call") == [
        *[("a", 0, 0), ("b", 0, 0), ("a", 0, 1)],
        *[("a", 1, 0), ("b", 1, 0), ("a", 1, 1)],
    ]
    assert values(run, "step", "api", "call") == [(0, "a", 2), (1, "a", 2)]


def test_only_steps_that_are_asked_for_are_recorded():
    with no_faults(), watching(steps="1,3") as run:
        for step in range(5):
            x = torch.full((1,), float(step), requires_grad=True) * 1
            probe.save([x, step], "x")
            x.sum().backward()
            run.step()
    assert rows(run, "step", "direction") == [
        *[("x", 1, "forward"), ("x", 1, "backward")],
        *[("x", 3, "forward"), ("x", 3, "backward")],
    ]
    assert values(run, "step", "value") == [(1, 1), (3, 3)]


def test_the_order_tells_which_row_comes_next():
    with no_faults(), watching() as run:
        for n in range(3):
            probe.save([n, torch.ones(1)], "x")
            run.flush()
    assert run.df["order"].tolist() == [0, 1, 2]
    assert values(run, "value", "order") == [(0, 1), (1, 2), (2, 3)]


# -- gradients -----------------------------------------------------------------------------------


def test_the_gradient_is_the_whole_one():
    torch.manual_seed(0)
    x = torch.randn(3, 4, requires_grad=True)
    with no_faults(), watching(checksum="crc32") as run:
        h = x.tanh()
        probe.save({"h": h, "x": x}, "s")
        loss = (h * h).sum() + h.exp().mean() + x.sum()
        loss.backward(retain_graph=True)
    of_h, of_x = torch.autograd.grad(loss, [h, x])
    found = run.frame(role="value", direction="backward").set_index("leaf")
    for leaf, g in (("h", of_h), ("x", of_x)):
        assert found.loc[leaf, "mean"] == pytest.approx(g.double().mean().item(), rel=1e-6)
        assert found.loc[leaf, "max"] == g.max().item()
        assert found.loc[leaf, "backward"] == 0


def test_a_later_write_in_place_changes_neither_value_nor_gradient():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with no_faults(), watching() as run:
        h = x * 2
        probe.save(h, "before")
        h.mul_(3)
        probe.save(h, "after")
        h.sum().backward()
    assert rows(run, "direction", "max") == [
        *[("before", "forward", 4.0), ("after", "forward", 12.0)],
        *[("after", "backward", 1.0), ("before", "backward", 3.0)],
    ]


def test_of_a_view_whose_base_was_written_since_the_gradient_is_not_asked_for():
    x = torch.ones(2, 2, requires_grad=True)
    with no_faults(), watching() as run:
        base = x * 1
        row = base[0]
        base.mul_(5)
        probe.save(row, "row")
        (base.sum() + row.sum()).backward()
    assert rows(run, "direction", "status") == [
        ("row", "forward", "ok"),
        ("row", "backward", "stale_view"),
    ]
    assert x.grad.tolist() == [[10.0, 10.0], [5.0, 5.0]]


def test_each_backward_has_rows_of_its_own():
    x = torch.ones(2, requires_grad=True)
    with no_faults(), watching() as run:
        h = x * 2
        probe.save(h, "h")
        h.sum().backward(retain_graph=True)
        (h.sum() * 7).backward()
    found = run.frame(role="value", direction="backward")
    assert found["backward"].tolist() == [0, 1]
    assert found["max"].tolist() == [1.0, 7.0]


@pytest.mark.parametrize("how", ["no grad", "not asked", "needs none", "not reached"])
def test_where_no_gradient_comes_there_is_no_row_of_one(how):
    x = torch.ones(2, requires_grad=how != "needs none")
    other = torch.ones(1, requires_grad=True)
    with no_faults(), watching() as run:
        with torch.set_grad_enabled(how != "no grad"):
            h = x * 2
        probe.save(h, "h", backward=how != "not asked")
        ((h * 0).detach().sum() if how == "not reached" else h.sum()).add(other).sum().backward()
    assert rows(run, "direction") == [("h", "forward")]


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_one_direction_alone_can_be_recorded(way):
    x = torch.ones(2, requires_grad=True)
    with no_faults(), watching(**{f"{way}_only": True}) as run:
        h = x * 2
        probe.save([h, 1], "h")
        h.sum().backward()
    assert rows(run, "direction") == [("h", way)]
    assert len(run.values()) == (way == "forward")


def test_a_gradient_may_come_when_its_step_is_over():
    x = torch.ones(2, requires_grad=True)
    with no_faults(), watching() as run:
        h = x * 2
        probe.save(h, "h")
        run.step()
        probe.save(1, "h")
        h.sum().backward()
    assert rows(run, "step", "call", "direction") == [
        ("h", 0, 0, "forward"),
        ("h", 0, 0, "backward"),
    ]


def test_a_leaf_that_is_saved_in_each_step_has_one_gradient_a_step():
    weight = torch.ones(2, requires_grad=True)
    with no_faults(), watching() as run:
        for factor in (2.0, 5.0):
            probe.save(weight, "w")
            (weight * factor).sum().backward()
            run.step()
    found = run.frame(role="value", direction="backward")
    assert list(zip(found["step"], found["max"], strict=True)) == [(0, 2.0), (1, 5.0)]


def test_gradients_are_divided_by_the_loss_scale():
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with no_faults(), probe.watch(model, optimizer=optimizer, scaler=scaler, level="debug") as run:
        y = model(torch.ones(1, 1)) * 3
        probe.save(y, "y")
        scaler.scale(y.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    (row,) = run.frame(role="value", direction="backward").itertuples()
    assert (row.max, row.loss_scale) == (1.0, 8.0)


# -- where ---------------------------------------------------------------------------------------


class Net(nn.Module):
    """Saves what lies between its two layers."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 3), nn.Linear(3, 1)

    def forward(self, x):
        h = self.a(x)
        probe.save(h, "h")
        return self.b(h.tanh())


@pytest.mark.parametrize("level", ["module", "api", "mix", "debug"])
def test_it_can_be_saved_inside_a_forward_at_every_level(level):
    model, x = Net(), torch.ones(4, 2)
    with no_faults(), probe.watch(model, level=level) as run:
        model(x).sum().backward()
    gradient = (1 - model.a(x).tanh() ** 2) * model.b.weight
    forward, backward = (run.frame(role="value", direction=d) for d in ("forward", "backward"))
    assert forward["mean"].item() == pytest.approx(model.a(x).mean().item(), rel=1e-5, abs=1e-6)
    assert backward["mean"].item() == pytest.approx(gradient.mean().item(), rel=1e-5, abs=1e-6)
    assert set(run.df["role"]) == {"value"} if level == "debug" else len(set(run.df["role"])) > 2


def test_what_is_saved_before_the_forward_of_a_model_belongs_to_its_step():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with no_faults(), probe.watch(model, optimizer=optimizer) as run:
        for step in range(3):
            probe.save(torch.full((1,), float(step)), "batch")
            loss = model(torch.ones(1, 1)).sum()
            probe.save(loss, "loss")
            loss.backward()
            optimizer.step()
            probe.save(torch.full((1,), float(step)), "end")
    found = run.frame(role="value", direction="forward")
    by = {name: list(group["step"]) for name, group in found.groupby("api", observed=True)}
    assert by == {"batch": [0, 1, 2], "loss": [0, 1, 2], "end": [0, 1, 2]}
    assert run.frame(role="input")["step"].tolist() == [0, 1, 2]
    assert set(run.df["micro_step"]) == {0}


def test_in_inference_too():
    model = nn.Linear(1, 1)
    with no_faults(), probe.watch(model, roles="output") as run:
        for _ in range(3):
            probe.save(torch.ones(1), "batch")
            model(torch.ones(1, 1))
    assert rows(run, "step", "call") == [("batch", 0, 0), ("batch", 1, 0), ("batch", 2, 0)]
    assert run.frame(role="output")["step"].tolist() == [0, 1, 2]


def test_micro_steps_are_those_of_the_forwards():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with no_faults(), probe.watch(model, optimizer=optimizer, level="debug") as run:
        for _ in range(2):
            for _ in range(2):
                model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    found = run.frame(role="value", direction="forward")
    assert list(zip(found["step"], found["micro_step"], found["call"], strict=True)) == [
        *[(0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 1, 1)],
    ]


def test_without_a_model_a_named_optimizer_ends_steps():
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    with no_faults(), watching(optimizer=optimizer) as run:
        for _ in range(3):
            loss = (weight * 2).sum()
            probe.save(loss, "loss")
            loss.backward()
            optimizer.step()
    found = run.frame(role="value", direction="forward")
    assert list(zip(found["step"], found["call"], strict=True)) == [(0, 0), (1, 0), (2, 0)]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_repeated_forward_has_no_rows_and_its_gradients_belong_to_the_first(reentrant):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters())
    x = torch.ones(4, 2, requires_grad=True)

    def run_on(first):
        h = model(first)
        return checkpoint(model, first * 2, use_reentrant=reentrant) + h

    with no_faults(), probe.watch(model, optimizer=optimizer, level="debug") as run:
        run_on(x).sum().backward()
    forward, backward = (run.frame(role="value", direction=d) for d in ("forward", "backward"))
    assert forward["call"].tolist() == [0, 1]
    assert sorted(backward["call"]) == [0, 1]
    for call, given in enumerate((x, x * 2)):
        h = model.a(given).detach()
        gradient = (1 - h.tanh() ** 2) * model.b.weight
        assert forward.set_index("call").loc[call, "mean"] == pytest.approx(
            h.mean().item(), rel=1e-5
        )
        found = backward.set_index("call").loc[call, "mean"]
        assert found == pytest.approx(gradient.mean().item(), rel=1e-5)


def test_it_may_be_saved_in_a_hook_of_a_backward():
    x = torch.ones(2, requires_grad=True)
    with no_faults(), watching() as run:
        h = x * 2
        h.register_hook(lambda g: probe.save(g, "g"))
        (h * 3).sum().backward()
    assert rows(run, "direction", "max") == [("g", "forward", 3.0)]


def test_threads_count_together_and_lose_nothing():
    def work():
        for _ in range(50):
            probe.save([1, torch.ones(1)], "x")

    with no_faults(), watching() as run:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert len(run) == len(run.values()) == 200


def test_every_open_watch_records_it():
    one, two = nn.Linear(1, 1), nn.Linear(1, 1)
    with no_faults(), probe.watch(one) as first, probe.watch(two) as second:
        probe.save(torch.ones(1), "x")
    assert rows(first) == rows(second) == [("x",)]


def test_inside_a_transform_the_value_is_recorded():
    with no_faults(), watching() as run:
        torch.func.grad(lambda x: probe.save(x * 2, "y") or x.sum())(torch.ones(2))
    assert rows(run, "direction", "max") == [("y", "forward", 2.0)]


def test_compiled_code_stays_whole_and_nothing_is_recorded():
    def f(x):
        h = x * 2
        probe.save(h, "h")
        return h + 1

    compiled = torch.compile(f, backend="eager", fullgraph=True)
    with no_faults(), watching() as run:
        assert compiled(torch.ones(2)).tolist() == [3.0, 3.0]
    assert len(run) == 0
    with no_faults(), watching(compiled="eager") as run:
        compiled(torch.ones(2))
    assert rows(run) == [("h",)]


# -- what happens otherwise ------------------------------------------------------------------------


def test_where_no_watch_is_open_nothing_happens():
    x = torch.ones(1, requires_grad=True)
    assert probe.save(x, "x") is None
    assert x._backward_hooks is None


@pytest.mark.parametrize("name", ["", "  ", 3, None])
def test_a_name_is_a_text(name):
    with pytest.raises(ConfigError, match="`name`"):
        probe.save(torch.ones(1), name)


def test_a_run_is_written_to_a_file_instead(tmp_path):
    with watching() as run:
        probe.save([torch.ones(2), 5], "x")
        path = probe.save(run, tmp_path / "run")
    loaded = probe.load(path)
    assert len(loaded) == 1
    assert loaded.values().equals(run.values())


def test_a_nan_stops_at_the_line():
    said = r"NaN first appeared at step 0 in x \(saved value\)"
    with pytest.raises(NonFiniteError, match=said), watching(stop_on="nonfinite"):
        probe.save(torch.tensor([1.0, torch.nan]), "x")
    with watching() as run:
        probe.save(torch.tensor([1.0, torch.nan]), "x")
    assert run.findings()["sentence"].tolist() == [
        "NaN first appeared at step 0 in x (saved value)"
    ]
    assert "saved value" in run._repr_mimebundle_()["text/html"]


def test_history_and_histogram_are_those_of_the_value():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with watching() as run:
        h = x * 1
        probe.save(h, "h")
        (h * 100).sum().backward()
    assert run.history("", "value", "max", api="h").tolist() == [2.0]
    assert run.histogram("", "value", api="h").total == 2


def test_a_fault_of_ours_is_not_the_users(monkeypatch):
    from probe_nb.observe import variables

    def broken(*_, **__):
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(variables, "plain_results", broken)
    with pytest.warns(ProbeWarning, match="a saved value"), watching():
        probe.save(torch.ones(1), "x")


def test_nothing_is_kept_alive_and_every_hook_is_taken_away():
    x = torch.ones(2, requires_grad=True)
    with no_faults(), watching() as run:
        h = x * 2
        probe.save([h, x], "h")
        gone = torch.ones(2, requires_grad=True) * 2
        probe.save(gone, "gone")
        ref = weakref.ref(gone)
        del gone
        gc.collect()
        assert ref() is None
        assert len(h._backward_hooks) == len(x._backward_hooks) == 1
    assert not h._backward_hooks
    assert not x._backward_hooks
    h.sum().backward()
    assert rows(run, "direction") == [("h", "forward"), ("h", "forward"), ("gone", "forward")]


def test_training_is_the_same_to_the_bit():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x, saves):
            h = torch.relu_(self.a(x))
            saves(h, "h")
            y = self.b(h) + h * h[0]
            row = y[0]
            y.mul_(1.5)  # from here on nobody may ask `row` for its node
            saves({"row": row, "y": y, "n": 1}, "rest")
            return y.square().mean() + row.exp().sum() + (y * row).sum()

    def trained(saves):
        torch.manual_seed(0)
        model = Branches()
        optimizer = torch.optim.AdamW(model.parameters())
        with no_faults(), probe.watch(model, optimizer=optimizer, level="debug", live=False):
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.randn(8, 16), saves).backward()
                optimizer.step()
        return [*(p.detach() for p in model.parameters()), torch.get_rng_state()]

    assert all(map(torch.equal, trained(lambda *_: None), trained(probe.save)))


def test_names_that_are_made_for_each_value_are_not_remembered_for_ever(monkeypatch):
    monkeypatch.setattr(variables, "_ROOM", 4)
    with no_faults(), probe.watch(level="debug", live=False) as run:
        known = sessions()[-1]._rooms.variables._names
        for number in range(10):
            probe.save(torch.full((2,), float(number)), f"h{number}")
            assert len(known) <= 4
        probe.save(torch.zeros(2), "h0")
    assert run.df["api"].tolist() == [*(f"h{n}" for n in range(10)), "h0"]
    assert run.df["max"].tolist() == [*map(float, range(10)), 0.0]
    assert run.df["call"].tolist() == [0] * 10 + [1]
