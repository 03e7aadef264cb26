"""FSDP1, FSDP2 and tensor parallelism, in real processes: whole or a part, and of what."""

from __future__ import annotations

import pytest
import torch

from tests.distributed import truth
from tests.distributed.launch import launch
from tests.distributed.programs import MICRO_STEPS, PROGRAMS, STEPS, batch, mlp, net

pytestmark = pytest.mark.xdist_group("distributed")

FSDP2 = [name for name in PROGRAMS if name.startswith("fsdp2 ") or name == "fsdp2"]
FSDP2.remove("fsdp2 only rank 0")
FSDP2.remove("fsdp2 own steps")
FSDP1 = [name for name in PROGRAMS if name.startswith("fsdp1")]
SPLIT = ["tensor parallel", "tensor parallel dtensor"]
STEPPING = [name for name in (*FSDP2, *FSDP1, *SPLIT) if "parameters only" not in name]
EXACT = [name for name in FSDP2 if "mixed" not in name and "no_sync" not in name]


@pytest.fixture(scope="module")
def fsdp2(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("fsdp2"), 2, *FSDP2)


@pytest.fixture(scope="module")
def fsdp1(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("fsdp1"), 2, *FSDP1)


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("split"), 2, *SPLIT)


@pytest.fixture
def ranks(request, name):
    fixture = "fsdp2" if name in FSDP2 else "fsdp1" if name in FSDP1 else "split"
    return [each[name] for each in request.getfixturevalue(fixture)]


@pytest.mark.parametrize("name", [*FSDP2, *FSDP1, *SPLIT])
def test_training_is_the_same_to_the_bit(ranks):
    for rank in ranks:
        truth.unchanged(rank["bare"], rank["watched"])


@pytest.mark.parametrize("name", [*FSDP2, *FSDP1, *SPLIT])
def test_rows_name_their_rank_and_the_modules_of_the_bare_model(ranks, name):
    for number, rank in enumerate(ranks):
        rows = truth.frame(rank["watched"])
        assert set(rows["rank"]) == {number}
        found = set(zip(rows["module"], rows["type"], strict=True))
        want = truth.sites(PROGRAMS[name].model())
        if "parameters only" in name:
            want = {(path, kind) for path, kind in want if kind in ("Linear", "BatchNorm1d")}
        assert found == want
        assert rank["watched"].facts["coverage"] == []
        rows = rows[rows["numel"] > 0]
        assert set(rows["status"]) <= {"ok", "passthrough"}


@pytest.mark.parametrize("name", STEPPING)
def test_of_an_optimizers_step_the_part_of_the_process_is_written(ranks):
    for rank in ranks:
        truth.moved(rank["watched"])


# -- FSDP2 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FSDP2)
def test_of_a_sharded_parameter_the_part_of_the_process_is_written_and_called_so(ranks, name):
    for rank in ranks:
        assert_is_a_part(rank["bare"])
        if "parameters only" not in name:
            want = truth.values(rank["bare"], net())
            truth.holds(rank["watched"], "param", ".shard", want)
        want = truth.held(rank["bare"])
        if "no_sync" in name:
            want = {at: g for at, g in want.items() if at[1] == MICRO_STEPS - 1}
        truth.holds(rank["watched"], "param_grad", ".grad.shard", want)
        rows = truth.frame(rank["watched"], role="param_grad")
        assert rows["leaf"].str.endswith(".grad.shard").all()


def assert_is_a_part(seen):
    assert seen.states[0]["stem.weight"].shape == (3, 4)


@pytest.mark.parametrize("name", EXACT)
def test_the_parts_together_are_the_mean_of_what_every_process_adds(ranks, name):
    whole = whole_states([rank["bare"] for rank in ranks])
    each = [truth.added(PROGRAMS[name], whole, number) for number in range(len(ranks))]
    sums = {}
    for step, micro_step, parameter in each[0]:
        mean = (each[0][step, micro_step, parameter] + each[1][step, micro_step, parameter]) / 2
        sums[step, micro_step, parameter] = mean + sums.get((step, micro_step - 1, parameter), 0)
    for number, rank in enumerate(ranks):
        parts = {at: t.chunk(len(ranks))[number] for at, t in sums.items()}
        truth.close(truth.held(rank["bare"]), parts)


def whole_states(each):
    """Put the parameters of all processes together; each has buffers of its own."""
    whole = type(each[0])()
    for states in zip(*(seen.states for seen in each), strict=True):
        named = {name for name, _ in net().named_parameters()}
        whole.states.append({n: torch.cat([s[n] for s in states]) for n in states[0] if n in named})
    return whole


# -- FSDP1 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FSDP1)
def test_of_a_flat_parameter_the_part_of_the_process_is_written_and_called_so(ranks, name):
    part = "" if "whole" in name else ".shard"
    for rank in ranks:
        want = truth.values(rank["bare"], net())
        assert len(want) == STEPS * (8 if "orig" in name or "whole" in name else 2)
        truth.holds(rank["watched"], "param", part, want)
        want = truth.held(rank["bare"])
        if "no_sync" in name:  # whole, and only this process's, until it is synchronised
            whole = {at: g for at, g in want.items() if at[1] < MICRO_STEPS - 1}
            assert len(whole) == STEPS * (MICRO_STEPS - 1) * 8
            truth.holds(rank["watched"], "param_grad", ".grad", whole)
            want = {at: g for at, g in want.items() if at not in whole}
        truth.holds(rank["watched"], "param_grad", f".grad{part}", want)


# -- tensor parallelism -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPLIT)
def test_split_layers_say_which_part_of_a_tensor_was_measured(ranks, name):
    first, x = mlp(), batch(0, 0, 0)
    hidden = first.act(first.up(x))
    halves = hidden.chunk(2, dim=1)
    inner = ".shard" if name == "tensor parallel dtensor" else ""
    for number, rank in enumerate(ranks):
        rows = truth.frame(rank["watched"], step=0, micro_step=0)
        act = rows[(rows["module"] == "act") & (rows["role"] == "output")].to_dict("records")
        assert [row["leaf"] for row in act] == [f"0{inner}"]
        near(act[0], halves[number])
        root = rows[(rows["module"] == "") & (rows["role"] == "output")].to_dict("records")
        assert [row["leaf"] for row in root] == ["0"]
        near(root[0], first(x))
        names = rows[rows["role"] == "param"]
        found = set(zip(names["module"], names["leaf"], strict=True))
        assert found == {
            ("up", "weight.shard"),
            ("up", "bias.shard"),
            ("down", "weight.shard"),
            ("down", "bias"),
        }


@pytest.mark.parametrize("name", SPLIT)
def test_gradients_of_split_parameters_are_the_parts_of_the_whole_ones(ranks, name):
    model = mlp()
    loss = model(batch(0, 0, 0)).square().sum()
    whole = dict(
        zip(
            ("up.weight", "up.bias", "down.weight", "down.bias"),
            torch.autograd.grad(loss, (*model.parameters(),)),
            strict=True,
        )
    )
    for number, rank in enumerate(ranks):
        rows = truth.frame(rank["watched"], role="param_grad", step=0, micro_step=0)
        found = {f"{row['module']}.{row['leaf']}": row for row in rows.to_dict("records")}
        assert found.keys() == {
            "up.weight.grad.shard",
            "up.bias.grad.shard",
            "down.weight.grad.shard",
            "down.bias.grad",
        }
        near(found["up.weight.grad.shard"], whole["up.weight"].chunk(2, dim=0)[number])
        near(found["up.bias.grad.shard"], whole["up.bias"].chunk(2, dim=0)[number])
        near(found["down.weight.grad.shard"], whole["down.weight"].chunk(2, dim=1)[number])
        near(found["down.bias.grad"], whole["down.bias"])


def near(row, t):
    """Hold that a row is of this tensor, up to the order of its sums."""
    assert row["status"] == "ok"
    assert list(row["shape"]) == list(t.shape)
    for name, value in (("min", t.min()), ("max", t.max()), ("l2", t.norm())):
        assert row[name] == pytest.approx(value.item(), rel=1e-4, abs=1e-6)
