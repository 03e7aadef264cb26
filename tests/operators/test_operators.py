"""A sample of PyTorch's operators, the same each time; `python -m tests.operators` takes all."""

from __future__ import annotations

import random

import pytest

from tests.operators.examine import examine, table

SIZE = 110
ATTRIBUTES = {"T", "H", "mT", "mH"}
"""Read, not called; and `broadcast_shapes` is given no tensor."""


@pytest.fixture(scope="module")
def reports():
    names = random.Random(0).sample(sorted(table()), SIZE)
    return [examine(name) for name in names]


def test_results_and_gradients_are_the_same_and_rows_hold_the_truth(reports):
    assert [(each.name, each.faults) for each in reports if each.faults] == []
    assert sum(each.checked for each in reports) > 3 * SIZE


def test_a_function_of_every_operator_is_seen(reports):
    unseen = {each.name for each in reports if not each.apis}
    assert unseen <= ATTRIBUTES | {"broadcast_shapes"}


def test_few_gradients_have_no_numbers(reports):
    told = [line for each in reports for line in each.told]
    assert len(told) < SIZE / 10, told
