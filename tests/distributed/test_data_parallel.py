"""DistributedDataParallel, in real processes."""

from __future__ import annotations

import pytest
import torch

from tests.distributed import truth
from tests.distributed.launch import launch
from tests.distributed.programs import MICRO_STEPS, PROGRAMS, net

pytestmark = pytest.mark.xdist_group("distributed")

TWO = [name for name in PROGRAMS if name.startswith("ddp") and "only rank" not in name]
TWO.remove("ddp own steps")
AVERAGED = [name for name in TWO if "no_sync" not in name]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("two"), 2, *TWO)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("four"), 4, "ddp", "ddp no_sync bucket views")


@pytest.fixture
def ranks(request, name):
    return [each[name] for each in request.getfixturevalue("two")]


@pytest.mark.parametrize("name", TWO)
def test_training_is_the_same_to_the_bit(ranks):
    for rank in ranks:
        truth.unchanged(rank["bare"], rank["watched"])


@pytest.mark.parametrize("name", TWO)
def test_rows_name_their_rank_and_the_modules_of_the_bare_model(ranks, name):
    want = truth.sites(PROGRAMS[name].model())
    if name == "ddp parameters only":
        want = {(path, kind) for path, kind in want if kind in ("Linear", "BatchNorm1d")}
    for number, rank in enumerate(ranks):
        rows = truth.frame(rank["watched"])
        assert set(rows["rank"]) == {number}
        assert rank["watched"].facts["rank"] == number
        found = set(zip(rows["module"], rows["type"], strict=True))
        assert found <= want
        if name != "ddp unused" or number == 1:
            assert found == want
        assert set(rows["status"]) <= {"ok", "passthrough"}


@pytest.mark.parametrize("name", TWO)
def test_each_process_has_what_its_own_backward_adds(ranks, name):
    for number, rank in enumerate(ranks):
        want = truth.added(PROGRAMS[name], rank["bare"], number)
        truth.holds(rank["watched"], "param_grad", "", want)


@pytest.mark.parametrize("name", AVERAGED)
def test_the_gradient_that_is_held_at_the_end_is_the_mean_of_all(ranks, name):
    each = [truth.added(PROGRAMS[name], rank["bare"], n) for n, rank in enumerate(ranks)]
    factor = 0.25 if name == "ddp hook" else 0.5
    means, sums = {}, {}
    for step, micro_step, parameter in {**each[0], **each[1]}:
        place = (step, micro_step, parameter)
        zero = torch.zeros(())
        means[place] = factor * (each[0].get(place, zero) + each[1].get(place, zero))
    for (step, micro_step, parameter), mean in sorted(means.items()):
        before = sums.get((step, micro_step - 1, parameter), torch.zeros_like(mean))
        if name == "ddp hook":  # it takes the held gradient for one that was added here
            before = before * 0.5
        sums[step, micro_step, parameter] = before + mean
    for rank in ranks:
        want = truth.held(rank["bare"])
        truth.close(want, sums)
        truth.holds(rank["watched"], "param_grad", ".grad", want)


@pytest.mark.parametrize("name", [name for name in TWO if "no_sync" in name])
def test_without_a_sync_only_a_gradient_that_differs_from_what_was_added_is_written(ranks):
    for rank in ranks:
        want = {at: g for at, g in truth.held(rank["bare"]).items() if at[1] == MICRO_STEPS - 1}
        truth.holds(rank["watched"], "param_grad", ".grad", want)


@pytest.mark.parametrize("name", [name for name in TWO if name != "ddp parameters only"])
def test_parameters_have_their_values_at_the_begin_of_each_step(ranks, name):
    for rank in ranks:
        want = truth.values(rank["bare"], PROGRAMS[name].model())
        truth.holds(rank["watched"], "param", "", want)


@pytest.mark.parametrize("name", ["ddp", "ddp no_sync bucket views"])
def test_four_processes_are_seen_as_two_are(four, name):
    for number, each in enumerate(four):
        rank = each[name]
        truth.unchanged(rank["bare"], rank["watched"])
        want = truth.added(PROGRAMS[name], rank["bare"], number)
        truth.holds(rank["watched"], "param_grad", "", want)
        assert set(truth.frame(rank["watched"])["rank"]) == {number}
    held = [truth.held(each[name]["bare"]) for each in four]
    for other in held[1:]:
        last = {at: g for at, g in other.items() if at[1] == MICRO_STEPS - 1}
        truth.close(last, {at: held[0][at] for at in last})
    assert net().head.weight.shape == (2, 6)
