"""Tensors that are kept whole are those that plain hooks of an unwatched twin saw."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import probe_nb as probe
from probe_nb.errors import ConfigError, SelectionError
from probe_nb.terms import MODULE_ROLES
from tests.models import no_faults

ALL = ("input", "output", "param", "grad_output", "grad_input", "param_grad")


class Net(nn.Module):
    """Two modules that write their inputs in place, between layers."""

    def __init__(self):
        super().__init__()
        self.first, self.act = nn.Linear(3, 4), nn.ReLU(inplace=True)
        self.mid, self.elu = nn.Linear(4, 4), nn.ELU(inplace=True)
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.elu(self.mid(self.act(self.first(x)))))


def made():
    torch.manual_seed(0)
    model = Net()
    return model, torch.optim.SGD(model.parameters(), 0.1)


def batches(steps=3):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(5, 3, generator=generator) for _ in range(steps)]


def train(model, optimizer, xs, *, after=lambda step: None):
    for step, x in enumerate(xs):
        x.requires_grad_()
        model(x).square().sum().backward()
        after(step)
        optimizer.step()
        optimizer.zero_grad()


class Twin:
    """Clones what plain hooks see, by module, role, leaf and step."""

    def __init__(self, steps):
        self.seen, self.step = {}, 0
        self.model, optimizer = made()
        for path, module in self.model.named_modules():
            module.register_forward_pre_hook(lambda _, args, path=path: self.before(path, args[0]))
            module.register_forward_hook(lambda _, args, out, path=path: self.after(path, out))
        train(self.model, optimizer, batches(steps), after=self.ends)

    def note(self, path, role, leaf, t):
        self.seen[path, role, leaf, self.step] = t.detach().clone()

    def before(self, path, x):
        self.note(path, "input", "0", x)  # which no other module reads
        x.register_hook(lambda g: self.note(path, "grad_input", "0", g))

    def after(self, path, out):
        self.note(path, "output", "0", out)
        out.register_hook(lambda g: self.note(path, "grad_output", "0", g))

    def ends(self, step):
        for path, module in self.model.named_modules():
            for name, p in module.named_parameters(recurse=False):
                self.note(path, "param", name, p)
                self.note(path, "param_grad", name, p.grad)
        self.step = step + 1


def twin_saw(steps=3):
    return Twin(steps).seen


def test_every_role_of_every_step_is_what_a_twin_saw():
    want = twin_saw()
    model, optimizer = made()
    keep = probe.Keep("*", roles=ALL)
    with no_faults(), probe.watch(model, optimizer=optimizer, keep=keep) as run:
        train(model, optimizer, batches())
    kept = run.kept()
    assert set(kept["status"]) == {"kept"}
    forward = kept[kept["direction"] != "optimizer"]
    places = [tuple(place) for place in forward[["module", "role", "leaf", "step"]].to_numpy()]
    assert set(places) == set(want)
    assert len(places) == len(want)
    for module, role, leaf, step in want:
        got = run.tensor(module, role, step, leaf=leaf)
        assert torch.equal(got, want[module, role, leaf, step]), (module, role, leaf, step)


def test_what_an_optimizer_sees_leaves_and_keeps_is_kept_in_its_direction():
    torch.manual_seed(0)
    model = nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    keep = probe.Keep("*", roles="param, param_grad, update, state")
    with no_faults(), probe.watch(model, optimizer=optimizer, keep=keep) as run:
        for _ in range(2):
            before = model.weight.detach().clone()
            model(torch.ones(1, 2)).square().sum().backward()
            grad = model.weight.grad.clone()
            optimizer.step()
            optimizer.zero_grad()
    kept, rows = run.kept(), run.df
    for name in ("module", "direction", "role", "leaf", "step"):
        assert (
            kept[name].astype(str).tolist()
            == rows[name].astype(str)[rows["role"].isin(keep.roles)].tolist()
        )
    after = model.weight.detach()
    want = {"direction": "optimizer", "leaf": "weight"}
    assert torch.equal(run.tensor("(root)", "param", leaf="weight"), before)
    assert torch.equal(run.tensor("(root)", "param", **want), after)
    assert torch.equal(run.tensor("(root)", "param_grad", **want), grad)
    assert torch.equal(run.tensor("(root)", "update", leaf="weight"), after - before)
    average = optimizer.state[model.weight]["exp_avg"]
    assert torch.equal(run.tensor("(root)", "state", leaf="weight.exp_avg"), average)


def test_the_input_of_a_module_that_overwrites_it_is_the_one_it_was_given():
    want = twin_saw(1)
    model, optimizer = made()
    with probe.watch(model, keep="act, elu") as run:
        train(model, optimizer, batches(1))
    for path in ("act", "elu"):
        got = run.tensor(path)
        assert torch.equal(got, want[path, "input", "0", 0])
        assert not torch.equal(got, want[path, "output", "0", 0])


def test_what_is_written_after_the_call_does_not_change_what_was_kept():
    model = nn.Linear(2, 2)
    x = torch.ones(1, 2)
    with probe.watch(model, keep=probe.Keep("(root)", roles="input,output,param")) as run:
        y = model(x)
        want = y.detach().clone()
        x.zero_()
        y.detach().zero_()
        x.data.fill_(7.0)
    with torch.no_grad():
        model.weight.fill_(9.0)
    assert torch.equal(run.tensor("(root)"), torch.ones(1, 2))
    assert torch.equal(run.tensor("(root)", "output"), want)
    assert not (run.tensor("(root)", "param", leaf="weight") == 9.0).any()


def test_what_is_returned_is_a_copy_each_time_and_free_of_any_graph():
    model = nn.Linear(2, 2)
    with probe.watch(model, keep="(root)") as run:
        model(torch.ones(1, 2, requires_grad=True))
    first = run.tensor("(root)")
    assert not first.requires_grad
    assert first.is_leaf
    assert not first.is_inference()
    first.zero_()
    assert torch.equal(run.tensor("(root)"), torch.ones(1, 2))


def test_the_tensor_of_a_step_that_was_asked_for_is_given_the_newest_else():
    model = nn.Linear(2, 2)
    with probe.watch(model, keep="(root)") as run:
        for step in range(3):
            model(torch.full((1, 2), float(step)))
            assert run.tensor("(root)").tolist() == [[step, step]]
    assert run.tensor("(root)", step=1).tolist() == [[1.0, 1.0]]
    assert run.tensor("(root)").tolist() == [[2.0, 2.0]]


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, x):
        return self.inner(x) + self.inner(x + 1)


def test_calls_and_micro_steps_are_told_apart():
    model = Twice()
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)
    with probe.watch(model, optimizer=optimizer, keep="inner") as run:
        for number in (10.0, 20.0):
            model(torch.tensor([number]))
    assert run.tensor("inner").item() == 20.0
    assert run.tensor("inner", micro_step=0).item() == 10.0
    assert [run.tensor("inner", call=n).item() for n in range(4)] == [10.0, 11.0, 20.0, 21.0]
    assert run.kept()[["micro_step", "call"]].to_numpy().tolist() == [
        [0, 0],
        [0, 1],
        [1, 2],
        [1, 3],
    ]


def test_under_autocast_the_tensor_is_the_one_of_the_narrow_type():
    seen = {}
    model, twin = made()[0].eval(), made()[0].eval()
    twin.last.register_forward_pre_hook(lambda _, args: seen.update(input=args[0].clone()))
    twin.last.register_forward_hook(lambda _, args, out: seen.update(output=out.detach().clone()))
    x = batches(1)[0]
    with probe.watch(model, keep=probe.Keep("last", roles="input,output")) as run:
        for each in (model, twin):
            with torch.autocast("cpu", torch.bfloat16):
                each(x.detach())
    assert seen["output"].dtype == torch.bfloat16
    for role in ("input", "output"):
        assert run.tensor("last", role).dtype == seen[role].dtype
        assert torch.equal(run.tensor("last", role), seen[role])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_grad_and_in_inference_mode_tensors_are_kept_as_well(mode):
    model = made()[0].eval()
    x = batches(1)[0]
    with probe.watch(model, keep=probe.Keep("act", roles="input,output")) as run, mode():
        model(x)
        inside = run.tensor("act")
    want = model.first(x).detach()
    assert torch.equal(inside, want)
    got = run.tensor("act")
    assert torch.equal(got, want)
    (nn.Parameter(torch.ones(4)) * got).sum().backward()  # a tensor made in inference mode cannot


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
def test_under_checkpointing_each_call_is_kept_once(reentrant, recompute):
    inner = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    x = torch.randn(2, 3, requires_grad=True)
    keep = probe.Keep("inner.*", roles="input,output,grad_output")
    model = Model()
    with no_faults(), probe.watch(model, recompute=recompute, keep=keep) as run:
        model(x).sum().backward()
    kept = run.kept()
    places = kept[["module", "role", "call"]].to_numpy().tolist()
    assert sorted(places) == [
        [module, role, 0]
        for module in ("inner.0", "inner.1")
        for role in ("grad_output", "input", "output")
    ]
    assert torch.equal(run.tensor("inner.0", "output"), inner[0](x).detach())
    assert torch.equal(run.tensor("inner.1", "grad_output"), torch.ones(2, 3))


def test_inside_a_transform_the_plain_numbers_are_kept_and_a_batch_is_not():
    model = nn.Linear(2, 1, bias=False)
    keep = probe.Keep("(root)", roles="input,output")
    with no_faults(), probe.watch(model, keep=keep) as run:
        torch.func.grad(lambda x: model(x).sum())(torch.ones(3, 2))
        torch.func.vmap(model)(torch.ones(3, 2))
    statuses = run.kept().groupby("step")["status"].agg(list).tolist()
    assert statuses == [["kept"] * 2, ["not kept: vmapped"] * 2]
    assert torch.equal(run.tensor("(root)", step=0), torch.ones(3, 2))


class Plain(torch.Tensor):
    """A class that only has a name."""


class Logged(torch.Tensor):
    """A class that sees every operator on it."""

    seen: list[str] = []  # noqa: RUF012

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(str(func))
        inner = [a.inner if isinstance(a, cls) else a for a in args]
        return func(*inner, **(kwargs or {}))


SEVENS = torch.full((2, 3), 7.0)
KINDS = {
    "expanded": (torch.tensor([[1.0], [2.0]]).expand(2, 3), "kept"),
    "transposed": (torch.arange(6.0).view(2, 3).T, "kept"),
    "sliced": (torch.arange(12.0)[2:8:2], "kept"),
    "conjugated": (torch.tensor([1 + 2j, 3 - 4j]).conj(), "kept"),
    "negative": (torch.tensor([1 + 2j, 3 - 4j]).conj().imag, "kept"),
    "scalar": (torch.tensor(3.0), "kept"),
    "empty": (torch.empty(0, 4), "kept"),
    "integers": (torch.tensor([1, -2]), "kept"),
    "a name": (SEVENS.as_subclass(Plain), "kept"),
    "a parameter": (nn.Parameter(SEVENS.clone()), "kept"),
    "operators": (Logged(SEVENS), "not kept: unsupported"),
    "meta": (torch.empty(2, 3, device="meta"), "not kept: meta"),
    "sparse": (torch.eye(3).to_sparse(), "not kept: layout"),
    "csr": (torch.eye(3).to_sparse_csr(), "not kept: layout"),
    "nested": (
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "not kept: layout",
    ),
    "quantised": (torch.quantize_per_tensor(SEVENS, 0.5, 0, torch.qint8), "not kept: layout"),
}


class Takes(nn.Module):
    def forward(self, x):
        return torch.ones(1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_of_any_kind_is_kept_as_plain_data_or_its_row_says_why_not(kind):
    t, status = KINDS[kind]
    model = Takes()
    Logged.seen.clear()
    version = None if t.is_inference() else t._version
    with no_faults(), probe.watch(model, keep="(root)") as run:
        model(t)
    assert run.kept()["status"].tolist() == [status]
    assert Logged.seen == []
    assert version is None or t._version == version
    if status == "kept":
        got = run.tensor("(root)")
        assert type(got) is torch.Tensor
        assert got.is_contiguous()
        assert got.dtype == t.dtype
        assert torch.equal(got, t.detach().as_subclass(torch.Tensor))
        assert run.kept()["bytes"].item() == t.numel() * t.element_size()
    else:
        with pytest.raises(SelectionError, match=status):
            run.tensor("(root)")


def test_only_the_modules_roles_and_steps_that_were_asked_for_are_kept():
    model, optimizer = made()
    keep = probe.Keep("type:Linear, !mid, !last", roles="output, param_grad", steps="1-2")
    with probe.watch(model, optimizer=optimizer, keep=keep) as run:
        train(model, optimizer, batches(4))
    kept = run.kept()
    kept = kept[kept["direction"] != "optimizer"]
    assert set(kept["module"]) == {"first"}
    assert sorted(zip(kept["step"], kept["role"], kept["leaf"], strict=True)) == [
        (step, role, leaf)
        for step in (1, 2)
        for role, leaf in (("output", "0"), ("param_grad", "bias"), ("param_grad", "weight"))
    ]


def test_reading_statistics_is_as_it_was():
    frames = []
    for options in ({}, {"keep": probe.Keep("*", roles=ALL)}):
        model, optimizer = made()
        with probe.watch(model, optimizer=optimizer, **options) as run:
            train(model, optimizer, batches())
        frames.append(run.df)
    assert frames[0].equals(frames[1])
    assert len(frames[0]) > 50


def test_a_module_that_is_put_in_later_is_kept_if_its_name_is_chosen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with probe.watch(model, keep="1*") as run:
        model(torch.ones(1, 2))
        model[1] = nn.Sequential(nn.Linear(2, 3))
        model(torch.ones(1, 2))
    assert run.kept()[["step", "module"]].to_numpy().tolist() == [[0, "1"], [1, "1"], [1, "1.0"]]


def test_a_range_that_records_a_module_alone_keeps_it_under_its_name_there():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with probe.watch(model, keep="1") as run, run.only(model[1], "Mine"):
        model(torch.ones(1, 2))
    assert run.kept()[["module", "role"]].to_numpy().tolist() == [["Mine", "input"]]
    assert run.tensor("Mine").shape == (1, 2)


def test_where_a_watch_stops_at_a_nan_the_tensors_that_led_there_are_kept():
    model = nn.Sequential(nn.Linear(2, 2), nn.Softmax(-1), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.fill_(1e30)
    keep = probe.Keep("*", roles="input,output")
    x = torch.full((1, 2), 1e30)
    with pytest.raises(probe.NonFiniteError):  # noqa: SIM117 - the run is asked afterwards
        with probe.watch(model, stop_on="nonfinite", keep=keep, live=False) as run:
            model(x)
    assert torch.equal(run.tensor("0"), x)
    assert run.tensor("0", "output").isinf().all()


def test_what_cannot_be_kept_by_what_is_recorded_is_refused_in_words():
    model = made()[0]
    with pytest.raises(ConfigError, match="`keep` asks for `input`, which `roles=` leaves out"):
        probe.watch(model, roles="output", keep="first")
    with pytest.raises(SelectionError, match="`keep` names `first`, which `select=` leaves out"):
        probe.start(model, select="last", keep="first")
    with pytest.raises(SelectionError, match=r"No module matches `frist`.*`first`"):
        probe.start(model, keep="frist")
    with pytest.raises(ConfigError, match="`keep` is 3; give patterns"):
        probe.watch(model, keep=3)


def message(act):
    with pytest.raises(SelectionError) as raised:
        act()
    return str(raised.value)


def test_an_error_says_what_was_asked_and_what_is_kept():
    model, optimizer = made()
    with probe.watch(
        model, optimizer=optimizer, keep=probe.Keep("first", roles="input,param")
    ) as run:
        train(model, optimizer, batches())
    assert message(lambda: run.tensor("frist")) == (
        "No tensor of `frist` was to be kept. The closest is `first`. Kept are those of `first`."
    )
    assert message(lambda: run.tensor("first", step=7)) == (
        "`first` input of step 7 is not there: none was seen then. Kept are steps 0, 1, 2, micro "
        "steps 0, calls 0, leaves `0`."
    )
    assert "give `leaf=`, one of `weight`, `bias`" in message(lambda: run.tensor("first", "param"))
    assert "no `output` was to be kept, but `param`, `input`" in message(
        lambda: run.tensor("first", "output")
    )
    assert "`outputs` is not a role" in message(lambda: run.tensor("first", "outputs"))
    assert "no input with direction forward, call 4." in message(
        lambda: run.tensor("first", call=4)
    )
    with probe.watch(model) as run:
        model(batches(1)[0])
    assert message(lambda: run.tensor("first")) == (
        "This run keeps no tensors. `watch(keep=...)` says which it is to keep."
    )
    assert run.kept().empty


def test_several_models_are_told_apart():
    gen, disc = nn.Linear(2, 2), nn.Linear(2, 2)
    with probe.watch(gen=gen, disc=disc, keep="(root)") as run:
        gen(torch.ones(1, 2))
        disc(torch.zeros(1, 2))
    assert "model gen`, `model disc" in message(lambda: run.tensor("(root)"))
    assert run.tensor("(root)", model="gen").sum() == 2
    assert run.tensor("(root)", model="disc").sum() == 0


# -- what lives, and for how long ---------------------------------------------------------------


def test_nothing_of_the_model_lives_longer_because_of_it():
    model, optimizer = made()
    alive = []
    gc.collect()
    gc.disable()
    try:
        with probe.watch(model, optimizer=optimizer, keep=probe.Keep("*", roles=ALL)) as run:
            x = torch.randn(5, 3)
            y = model(x)
            alive += [weakref.ref(x), weakref.ref(y)]
            y.sum().backward()
            del x, y
            assert [ref() for ref in alive] == [None, None]
            optimizer.step()
        ref = weakref.ref(model)
        del model, optimizer
        assert ref() is None
    finally:
        gc.enable()
    assert (run.kept()["status"] == "kept").all()


def test_a_copy_and_a_pickle_of_the_run_have_the_tensors():
    model = nn.Linear(2, 2)
    with probe.watch(model, keep="(root)") as run:
        model(torch.ones(1, 2))
        early = copy.deepcopy(run)
        model(torch.zeros(1, 2))
    for other, steps in (
        (early, [0]),
        (copy.deepcopy(run), [0, 1]),
        (pickle.loads(pickle.dumps(run)), [0, 1]),
    ):
        assert other.kept()["step"].tolist() == steps
        assert torch.equal(other.tensor("(root)", step=0), torch.ones(1, 2))


def test_threads_that_run_the_model_at_once_each_keep_their_own():
    model = nn.Sequential(nn.Linear(2, 2))
    keep = probe.Keep("0", memory=None)

    def runs(number):
        for _ in range(50):
            model(torch.full((1, 2), float(number)))

    with no_faults(), probe.watch(model, keep=keep) as run:
        threads = [threading.Thread(target=runs, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(run.kept()) == 200
    values = [kept.data.view("float32").tolist() for kept in run.tensors.known()]
    assert sorted(values) == [[float(n)] * 2 for n in range(4) for _ in range(50)]


# -- inputs, in the optimizer's step --------------------------------------------------------------


@pytest.mark.parametrize("when", ["pre", "post"])
def test_inputs_of_this_step_are_there_in_a_hook_on_the_optimizers_step(when):
    model, optimizer = made()
    asked, xs = [], batches()

    def hook(*_):
        rows = run.inputs("first")
        asked.append((rows["step"].item(), rows["mean"].item(), run.tensor("first")))

    register = getattr(optimizer, f"register_step_{when}_hook")
    with probe.watch(model, optimizer=optimizer, keep="first") as run:
        handle = register(hook)
        train(model, optimizer, xs)
        handle.remove()
    assert [step for step, _, _ in asked] == [0, 1, 2]
    for (_, mean, t), x in zip(asked, xs, strict=True):
        assert mean == pytest.approx(x.detach().double().mean().item(), abs=1e-6)
        assert torch.equal(t, x.detach())


def test_inputs_are_the_rows_of_one_step_with_their_labels():
    model = Twice()
    with probe.watch(model) as run:
        for number in (1.0, 2.0):
            model(torch.tensor([number]))
    rows = run.inputs("inner")
    assert rows[["step", "call", "mean"]].to_numpy().tolist() == [[1, 0, 2.0], [1, 1, 3.0]]
    assert run.df.loc[rows.index].equals(rows)
    assert run.inputs("inner", 0)["mean"].tolist() == [1.0, 2.0]
    assert "There are steps 0 to 1." in message(lambda: run.inputs("inner", 5))
    assert "No module matches `inne`" in message(lambda: run.inputs("inne"))


def test_inputs_of_a_module_of_which_none_were_recorded_is_an_error_in_words():
    model = Twice()
    with probe.watch(model, roles="output") as run:
        model(torch.ones(1))
    assert message(lambda: run.inputs("inner")) == "`inner` has no `input` rows; it has output."


def test_every_role_that_can_be_recorded_can_be_kept():
    assert probe.Keep("*", roles=MODULE_ROLES).roles == MODULE_ROLES


PART = """
import torch, torch.distributed as dist, probe_nb as probe
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore  # two processes, one of them here

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
mesh = init_device_mesh("cpu", (2,))
model = nn.Identity()
with probe.watch(model, keep="(root)", live=False) as run:
    for placement in (Shard(0), Replicate()):
        model(DTensor.from_local(torch.arange(6.0).view(2, 3), mesh, [placement], run_check=False))
kept = run.kept()
assert kept["leaf"].tolist() == ["0.shard", "0"], kept
assert run.df[run.df["role"] == "input"]["leaf"].tolist() == ["0.shard", "0"]
with probe.watch(model, structure=True, live=False) as bare:  # the same sites, without numbers
    for placement in (Shard(0), Replicate()):
        model(DTensor.from_local(torch.arange(6.0).view(2, 3), mesh, [placement], run_check=False))
same = ["step", "module", "role", "leaf", "shape", "dtype"]
assert bare.df[same].astype(str).equals(run.df[same].astype(str)), (bare.df[same], run.df[same])
for step in range(2):
    t = run.tensor("(root)", step=step)
    assert type(t) is torch.Tensor and torch.equal(t, torch.arange(6.0).view(2, 3))
dist.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch is not distributed")
def test_of_a_tensor_that_is_spread_over_processes_the_part_that_is_here_is_kept():
    done = subprocess.run([sys.executable, "-c", PART], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
