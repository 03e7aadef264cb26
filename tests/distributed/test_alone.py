"""Nothing waits for the other processes: each may watch what and when it likes, or not at all."""

from __future__ import annotations

import pytest

from tests.distributed import truth
from tests.distributed.launch import launch
from tests.distributed.programs import PROGRAMS

pytestmark = pytest.mark.xdist_group("distributed")

ONE = [name for name in PROGRAMS if name.endswith("only rank 0")]
OWN = [name for name in PROGRAMS if name.endswith("own steps")]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("two"), 2, *ONE, *OWN, "group destroyed")


@pytest.mark.parametrize("name", [*ONE, *OWN])
def test_training_goes_on_unchanged(two, name):
    for rank in two:
        truth.unchanged(rank[name]["bare"], rank[name]["watched"])


@pytest.mark.parametrize("name", ONE)
def test_one_process_alone_can_watch(two, name):
    first, second = (rank[name]["watched"] for rank in two)
    assert set(truth.frame(first)["step"]) == {0, 1}
    assert {"param", "param_grad", "output", "grad_output"} <= set(truth.frame(first)["role"])
    assert second.rows == []


@pytest.mark.parametrize("name", OWN)
def test_each_process_can_watch_steps_of_its_own(two, name):
    for number, rank in enumerate(two):
        rows = truth.frame(rank[name]["watched"])
        assert set(rows["step"]) == {number}
        assert set(rows["role"]) == {"output", "param", "param_grad"}


def test_a_watch_outlives_the_process_group(two):
    for number, rank in enumerate(two):
        assert rank["group destroyed"] == {"ranks": [number], "rank": number, "ended": "finished"}
