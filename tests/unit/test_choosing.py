"""What is recorded can be chosen: a range, parts of names, modes, ranks, one direction, a part of each tensor."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import probe_nb as probe
from probe_nb.errors import ConfigError, ProbeWarning, SelectionError
from probe_nb.slicing import Slicing
from probe_nb.stats.summary import Reducer
from tests.models import no_faults

FORWARD = {"input", "output"}
BACKWARD = {"grad_output", "grad_input"}
OWN = {"param", "param_grad"}


class Block(nn.Module):
    """A layer of weights, a function, a module without weights."""

    def __init__(self):
        super().__init__()
        self.fc, self.act = nn.Linear(3, 3), nn.Tanh()

    def forward(self, x):
        return self.act(F.relu(self.fc(x)))


class Net(nn.Module):
    """Four blocks in a row, and a head that is used by its weights alone."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.head = nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.blocks(x) * 2)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


def trained(net, times=1, **options):
    """Return the run of so many backward passes."""
    options = {"live": False} | options
    with no_faults(), probe.watch(net, **options) as run:
        for _ in range(times):
            net(torch.randn(2, 3)).sum().backward()
    return run


def of(run):
    """Return what has rows: of each module or function the roles."""
    found = {}
    for module, api, role in zip(run.df["module"], run.df["api"], run.df["role"], strict=True):
        found.setdefault(api or module, set()).add(role)
    return found


def calls(*names, also=()):
    """Return the roles of modules by their paths; those that end with `fc` have weights."""
    return {n: FORWARD | BACKWARD | (OWN if n.endswith("fc") else set()) for n in names}


def block(number):
    return (f"blocks.{number}", f"blocks.{number}.fc", f"blocks.{number}.act")


# -- scope ----------------------------------------------------------------------------------------


def test_a_range_takes_in_both_ends_and_all_that_runs_between_them(net):
    assert of(trained(net, scope=("blocks.1", "blocks.2"))) == calls(*block(1), *block(2))


def test_a_range_may_begin_inside_of_one_module_and_end_inside_of_another(net):
    found = of(trained(net, scope=("blocks.1.act", "blocks.2.fc")))
    assert found == calls("blocks.1.act", "blocks.2", "blocks.2.fc")


def test_a_range_may_end_with_a_module_that_began_before_it(net):
    found = of(trained(net, scope="blocks.2.act,blocks"))
    assert found == calls("blocks.2.act", *block(3))


def test_the_root_is_named_in_brackets_and_takes_in_everything(net):
    whole = trained(net)
    net.zero_grad()
    chosen = trained(net, scope=("(root)", "(root)"))
    assert of(whole) == of(chosen)
    assert len(whole) == len(chosen)


def test_the_names_of_msprobe_choose_one_call_and_one_direction(net):
    scope = ("Module.blocks.1.Block.forward.0", "Module.blocks.2.Block.forward.0")
    found = of(trained(net, scope=scope))
    between = (*block(1), *block(2))
    assert found == {n: FORWARD | ({"param"} if n.endswith("fc") else set()) for n in between}


def test_a_range_of_the_backward_is_read_in_the_order_of_the_backward(net):
    scope = ("Module.blocks.2.Block.backward.0", "Module.blocks.1.Block.backward.0")
    found = of(trained(net, scope=scope))
    between = (*block(1), *block(2))
    assert found == {n: BACKWARD | ({"param_grad"} if n.endswith("fc") else set()) for n in between}


def test_a_range_may_begin_in_the_forward_and_end_in_the_backward(net):
    scope = ("Module.blocks.3.act.Tanh.forward.0", "Module.blocks.3.act.Tanh.backward.0")
    found = of(trained(net, scope=scope))
    assert found == {
        "blocks.3.act": FORWARD | BACKWARD,
        "head": FORWARD | BACKWARD | OWN,
    }


def test_a_name_with_a_number_is_one_call_of_a_step_and_one_without_is_each(net):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    every = trained(net, 3, scope=("blocks.0.fc", "blocks.0.fc"), optimizer=optimizer)
    second = "Module.blocks.0.fc.Linear.forward.1"
    one = trained(net, 3, scope=(second, second), optimizer=optimizer)
    assert every.frame(role="output")["call"].tolist() == [0, 1, 2]
    assert one.frame(role="output")["call"].tolist() == [1]


def test_a_range_begins_anew_in_each_step(net):
    with probe.watch(net, scope=("blocks.3", "blocks.0"), live=False) as run:
        for _ in range(2):
            net(torch.randn(2, 3))
    rows = run.frame(role="output")
    assert set(rows["module"]) == {*block(3), "head"}
    assert rows["step"].value_counts().to_dict() == {0: 4, 1: 4}


def test_functions_are_ends_too_and_are_counted_whether_recorded_or_not(net):
    found = trained(net, scope=("Functional.relu.1", "Functional.linear.3"), level="api").df
    rows = found[found["role"] == "output"]
    assert list(zip(rows["api"], rows["call"], strict=True)) == [
        ("Functional.relu", 1),
        ("Torch.tanh", 1),
        ("Functional.linear", 2),
        ("Functional.relu", 2),
        ("Torch.tanh", 2),
        ("Functional.linear", 3),
    ]
    assert set(found["role"]) == FORWARD | BACKWARD


def test_at_mixed_level_a_range_may_go_from_a_module_to_a_function(net):
    found = trained(net, scope=("blocks.3", "Tensor.__mul__"), level="mix", roles="output").df
    names = [api or module for module, api in zip(found["module"], found["api"], strict=True)]
    assert names == [
        *("Functional.linear", "blocks.3.fc", "Functional.relu", "Torch.tanh", "blocks.3.act"),
        *("blocks.3", "Tensor.__mul__"),
    ]


def test_a_module_can_be_an_end_at_api_level(net):
    found = trained(net, scope=("blocks.1", "blocks.1"), level="api", roles="output").df
    assert found["api"].tolist() == ["Functional.linear", "Functional.relu", "Torch.tanh"]


def test_parameters_in_a_range_are_measured_right(net):
    run = trained(net, scope=("blocks.1", "blocks.1"))
    rows = run.frame(role="param").set_index("leaf")
    fc = net.blocks[1].fc
    assert set(rows.index) == {"weight", "bias"}
    for name, p in fc.named_parameters():
        assert rows.loc[name, "max"] == pytest.approx(p.max().item())
    grads = run.frame(role="param_grad", direction="backward").set_index("leaf")
    assert grads.loc["weight", "max"] == pytest.approx(fc.weight.grad.max().item())


def test_an_optimizer_step_is_read_of_what_is_in_the_range(net):
    optimizer = torch.optim.Adam(net.parameters())
    with (
        no_faults(),
        probe.watch(net, optimizer=optimizer, scope=("blocks.1", "blocks.1"), live=False) as run,
    ):
        net(torch.randn(2, 3)).sum().backward()
        optimizer.step()
    rows = run.frame(direction="optimizer")
    assert set(rows["module"]) == {"blocks.1.fc"}
    assert set(rows["role"]) == {"param_grad", "param", "update", "state"}


@pytest.mark.parametrize("deep", [False, True], ids=["the last module", "a module around it"])
def test_a_range_ends_with_its_last_module_also_where_that_raises(deep):
    class Fails(nn.Module):
        times = 0

        def forward(self, x):
            self.times += 1
            if self.times == 1:
                raise ValueError
            return x

    class Tries(nn.Module):
        def __init__(self):
            super().__init__()
            self.fails = Fails()

        def forward(self, x):
            try:
                return self.fails(x)
            except ValueError:
                return x

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Tanh(), Tries(), nn.Tanh()

        def forward(self, x):
            if deep:
                return self.c(self.b(self.a(x)))
            x = self.a(x)
            with contextlib.suppress(ValueError):
                x = self.b.fails(x)
            return self.c(x)

    model = Model()
    with no_faults(), probe.watch(model, scope=("a", "b.fails"), roles="output", live=False) as run:
        model(torch.ones(2))
        model(torch.ones(2))
    rows = run.df[run.df["module"] != "b"]
    assert list(zip(rows["step"], rows["module"], strict=True)) == [
        *((0, "a"), (1, "a"), (1, "b.fails"))
    ]


def test_a_repeated_forward_belongs_to_the_range_of_its_call(net):
    class Checked(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return checkpoint(self.net, x, use_reentrant=False)

    model = Checked()
    assert of(trained(model, scope=("net.blocks.1", "net.blocks.1"))) == calls(
        *(f"net.{each}" for each in block(1))
    )


def test_an_end_that_nothing_met_is_told_and_so_is_what_was_left_out(net):
    run = trained(net, scope=("blocks.1", "Module.blocks.2.Block.forward.7"))
    assert any("`Module.blocks.2.Block.forward.7`" in each for each in run.info.notices)
    assert not any("`blocks.1`" in each for each in run.info.notices)
    missing = run.coverage().set_index("module")["reason"]
    assert missing["blocks.0"] == "called only where nothing was chosen"


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"scope": ("blocks.1", "blokcs.2")}, SelectionError, "`blocks.2`"),
        ({"scope": ("blocks.9", "blocks.2")}, SelectionError, "`blocks.3`"),
        ({"scope": ("blocks.1", "Functional.relu.0")}, SelectionError, 'level="api"'),
        ({"scope": ("Module.blocks.7.Block.forward.0", "blocks.1")}, SelectionError, "`blocks."),
        ({"scope": ("Fuctional.relu.0", "blocks.1"), "level": "mix"}, SelectionError, "Functional"),
        (
            {"scope": ("Module.head.Linear.backward.0", "Module.head.Linear.forward.0")},
            ConfigError,
            "comes before it",
        ),
        ({"forward_only": True, "backward_only": True}, ConfigError, "leave nothing"),
        ({"when": "training"}, ConfigError, "train or eval"),
    ],
)
def test_a_choice_that_makes_no_sense_is_told(net, options, error, words):
    with pytest.raises(error, match=None) as caught:
        probe.watch(net, live=False, **options).__enter__()
    assert words in str(caught.value)


# -- names ----------------------------------------------------------------------------------------


def test_parts_of_names_choose_modules(net):
    assert of(trained(net, names="blocks.1.fc, act.Tanh")) == calls(
        "blocks.1.fc", *(f"blocks.{n}.act" for n in range(4))
    )


def test_a_part_of_a_name_may_be_its_direction_and_its_number(net):
    found = of(trained(net, names=["Module.head.Linear.backward", "1.fc.Linear.forward.0"]))
    assert found == {
        "head": BACKWARD | {"param_grad"},
        "blocks.1.fc": FORWARD | {"param"},
    }


def test_parts_of_names_choose_functions(net):
    found = trained(net, names="Functional.relu.2, mul", level="api", roles="output").df
    assert list(zip(found["api"], found["call"], strict=True)) == [
        ("Functional.relu", 2),
        ("Tensor.__mul__", 0),
    ]


def test_at_mixed_level_a_module_that_is_named_takes_in_all_that_runs_inside(net):
    found = trained(net, names="Module.blocks.1.Block, head.Linear", level="mix", roles="output").df
    names = [api or module for module, api in zip(found["module"], found["api"], strict=True)]
    assert names == [
        *("Functional.linear", "blocks.1.fc", "Functional.relu", "Torch.tanh", "blocks.1.act"),
        *("blocks.1", "Functional.linear", "head"),
    ]


def test_names_and_a_range_hold_both(net):
    found = of(trained(net, names="fc", scope=("blocks.1", "blocks.2")))
    assert found == calls("blocks.1.fc", "blocks.2.fc")


@pytest.mark.parametrize("level", ["module", "api", "mix"])
def test_a_name_that_nothing_has_is_said(net, level):
    run = trained(net, names=["linear", "Linear", "nope"], level=level)
    assert len(run) > 0
    said = [text for text in run.info.notices if text.startswith("`names`")]
    missed = {"module": ["linear"], "api": ["Linear"], "mix": []}[level]
    assert sorted(text.split("`")[3] for text in said) == [*missed, "nope"]
    assert all("in the name of no call that was seen" in text for text in said)


def test_a_range_the_wrong_way_round_is_said_and_one_that_ends_later_is_not(net):
    def said(scope, steps=2):
        with no_faults(), probe.watch(net, scope=scope, live=False) as run:
            for _ in range(steps):
                net(torch.randn(2, 3)).sum().backward()
                run.step()
        return [text for text in run.info.notices if "ran before" in text]

    (text,) = said(("blocks.2", "blocks.1"))
    assert text.startswith("`scope` ends with `blocks.1`, which ran before `blocks.2` began")
    assert said(("blocks.2", "blocks.1"), steps=1) == [text]
    assert said(("blocks.2.act", "blocks")) == []
    assert said(("blocks.1", "blocks.1")) == []
    backward = [f"Module.blocks.{n}.Block.backward.0" for n in (2, 1)]
    assert said(backward) == []
    assert len(said(backward[::-1])) == 1


# -- when, ranks ----------------------------------------------------------------------------------


def test_when_asks_each_module_for_its_own_mode(net):
    net.blocks[1].eval()
    assert of(trained(net, when="eval")) == calls(*block(1))
    left = of(trained(net, when="train"))
    assert left.keys().isdisjoint(block(1))
    assert {"", "blocks", "head", *block(0), *block(2), *block(3)} == left.keys()


def test_when_asks_the_module_around_a_function_and_the_model_outside_of_any(net):
    net.eval()
    net.blocks[1].fc.train()
    found, given = {}, torch.randn(2, 3)
    for when in ("train", "eval"):
        with probe.watch(net, level="api", when=when, roles="output", live=False) as run:
            F.cross_entropy(net(given), torch.tensor([0, 0]))
        found[when] = run.df["api"].tolist()
    assert found["train"] == ["Functional.linear"]
    assert len(found["eval"]) == 3 * 4 - 1 + 2 + 1
    assert found["eval"][-1] == "Functional.cross_entropy"


def test_when_without_a_model_is_refused():
    with pytest.raises(ConfigError, match="no module whose mode"):
        probe.watch(level="api", when="train", live=False).__enter__()


def test_a_step_in_which_all_is_left_out_is_a_step(net):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with no_faults(), probe.watch(net, optimizer=optimizer, when="eval", live=False) as run:
        for _ in range(3):
            net.train()
            optimizer.zero_grad()
            net(torch.randn(2, 3)).sum().backward()
            optimizer.step()
            net.eval()
            with torch.no_grad():
                net(torch.randn(2, 3))
    rows = run.frame(direction="forward")
    assert rows["step"].unique().tolist() == [1, 2, 3]
    assert run.info.steps == 4
    assert not rows["training"].any()
    assert run.frame(direction="backward").empty


@pytest.mark.parametrize(("rank", "chosen"), [(None, True), ("0", True), ("3", False), ("5", True)])
def test_a_rank_that_is_left_out_records_nothing_and_says_so(net, monkeypatch, rank, chosen):
    if rank is None:
        monkeypatch.delenv("RANK", raising=False)
    else:
        monkeypatch.setenv("RANK", rank)
    run = trained(net, ranks="0,5-7")
    assert (len(run) > 0) is chosen
    told = [each for each in run.info.notices if "ranks=0,5-7" in each]
    assert told == ([] if chosen else ["this process is rank 3, which `ranks=0,5-7` leaves out"])


# -- one direction --------------------------------------------------------------------------------


@pytest.fixture
def reduced(monkeypatch):
    """Return whether a backward ran, of each tensor that is reduced."""
    seen = []
    see = Reducer.see

    def noted(self, t, *, once):
        seen.append(torch._C._current_graph_task_id() != -1)
        return see(self, t, once=once)

    monkeypatch.setattr(Reducer, "see", noted)
    return seen


@pytest.mark.parametrize("level", ["module", "api", "mix"])
def test_one_direction_alone_has_no_rows_and_no_reductions_of_the_other(net, reduced, level):
    optimizer = torch.optim.Adam(net.parameters())
    for option, direction in (("forward_only", "forward"), ("backward_only", "backward")):
        reduced.clear()
        with (
            no_faults(),
            probe.watch(net, optimizer=optimizer, level=level, live=False, **{option: True}) as run,
        ):
            net(torch.randn(2, 3)).sum().backward()
            optimizer.step()
        assert set(run.df["direction"]) == {direction}
        assert len(reduced) == len(run) > 0
        assert set(reduced) == {direction == "backward"}


def test_what_is_out_of_range_is_not_reduced_and_has_no_hooks(net, reduced):
    whole = trained(net)
    reduced.clear()
    run = trained(net, scope=("blocks.1.act", "blocks.1.act"))
    assert len(reduced) == len(run) == 4
    assert len(whole) > 20


# -- slices ---------------------------------------------------------------------------------------


def test_a_part_of_each_tensor_is_measured_and_kept(net):
    given = torch.arange(12.0).reshape(4, 3)
    cut = [{"dim": 0, "begin": 1, "end": 3}]
    with no_faults(), probe.watch(net, slices=cut, keep="(root)", live=False) as run:
        net(given).sum().backward()
    row = run.inputs("(root)").iloc[0]
    assert (row["min"], row["max"], row["numel"], row["shape"]) == (3.0, 8.0, 6, (2, 3))
    assert torch.equal(run.tensor("(root)"), given[1:3])
    head = run.frame(module="head").set_index("role")
    assert head.loc["grad_input", "shape"] == (2, 3)
    assert head.loc["grad_input", "max"] == pytest.approx(net.head.weight.max().item())
    assert run.frame(module="blocks.0.fc", role="param")["requires_grad"].all()
    weight = run.frame(module="blocks.0.fc", role="param", leaf="weight")
    assert weight["max"].item() == pytest.approx(net.blocks[0].fc.weight[1:3].max().item())


def test_dimensions_that_a_tensor_does_not_have_and_other_sizes_are_not_cut(net):
    cuts = [{"dim": 1, "begin": -1}, {"dim": 0, "size": 4, "end": 1}]
    with (
        pytest.warns(ProbeWarning, match="dimension 0: no tensor that was seen is of size 4"),
        probe.watch(net, slices=cuts, live=False) as run,
    ):
        net(torch.ones(2, 3)).sum().backward()
    shapes = run.frame(module="blocks.0.fc").set_index(["role", "leaf"])["shape"]
    assert shapes["input", "0"] == (2, 1)
    assert shapes["param", "weight"] == (3, 1)
    assert shapes["param", "bias"] == (3,)


def test_a_cut_that_fits_no_tensor_is_told_once_when_the_watch_ends(net):
    cuts = [{"dim": 5, "end": 1}, {"dim": 0, "end": 1}, {"dim": 1, "end": 1, "size": 1000}]
    with (
        pytest.warns(ProbeWarning, match="nothing along dimension 5: .* have 2 at most") as told,
        probe.watch(net, slices=cuts, live=False) as run,
    ):
        net(torch.ones(2, 3)).sum().backward()
    assert len(told) == 1
    assert "dimension 1: no tensor that was seen is of size 1000 there" in str(told[0].message)
    assert "dimension 0" not in str(told[0].message)
    assert run.info.notices == [str(told[0].message).removeprefix("probe_nb: ").removesuffix(".")]


def test_where_no_tensor_was_seen_no_cut_is_blamed(net):
    with no_faults(), probe.watch(net, slices="5:0:1", live=False) as run:
        pass
    assert run.info.notices == []


def test_a_part_without_elements_is_empty_and_a_layout_that_cannot_be_cut_is_told():
    class Takes(nn.Module):
        def forward(self, a, b):
            return a

    dense, sparse = torch.ones(2, 2), torch.eye(3).to_sparse_csr()
    model = Takes()
    with no_faults(), probe.watch(model, slices="0:7:9", live=False, roles="input") as run:
        model(dense, sparse)
    assert run.df["status"].tolist() == ["empty", "unsupported"]


def test_a_fault_of_ours_in_cutting_is_failed_and_told_once(net, monkeypatch):
    def broken(self, t):
        raise KeyError("ours")

    monkeypatch.setattr(Slicing, "_cut", broken)
    run = probe.start(net.head, slices="0:0:1", live=False, roles="input")
    with pytest.warns(ProbeWarning, match="KeyError: 'ours'") as told:
        [net.head(torch.ones(2, 3)) for _ in range(2)]
    probe.stop(run)
    assert run.df["status"].tolist() == ["failed", "failed"]
    assert len(told) == 1


def test_training_is_the_same_bit_for_bit_whatever_is_chosen():
    def losses(**options):
        torch.manual_seed(0)
        net = Net()
        optimizer = torch.optim.Adam(net.parameters())
        found = []
        with probe.watch(net, optimizer=optimizer, live=False, **options):
            for _ in range(3):
                optimizer.zero_grad()
                loss = net(torch.randn(2, 3)).square().sum()
                loss.backward()
                optimizer.step()
                found.append(loss.detach())
        return [*found, *(p.detach() for p in net.parameters())]

    bare = losses(steps=[10**6])
    for options in (
        {"scope": ("blocks.1", "blocks.2")},
        {"names": "fc", "level": "mix"},
        {"slices": "0:0:1"},
        {"when": "eval"},
        {"forward_only": True},
        {"backward_only": True},
    ):
        assert all(map(torch.equal, bare, losses(**options)))
