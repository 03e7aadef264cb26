import math

import pytest
import torch

from benchmarks.peers import page, programs, training, truth
from benchmarks.peers.questions import _among
from benchmarks.peers.tools import NAMES
from benchmarks.peers.verdicts import CLAIMS, Cell
from benchmarks.timing import Ratio

SAME = {"error": "", "parameters": 2, "unlike": 0, "by": 0.0, "random": True}


def judged(claim, **seen):
    return CLAIMS[claim](seen)


def test_a_training_is_unchanged_only_if_the_random_numbers_are_too():
    claim = "training is unchanged, bit by bit (20 steps)"
    assert judged(claim, write={"unchanged": SAME}) == Cell(2, "identical")
    assert judged(claim, write={"unchanged": SAME | {"random": False}}).mark == 0
    words = judged(claim, write={"unchanged": SAME | {"unlike": 1, "by": 0.25}})
    assert words == Cell(0, "1 of 2 parameters differ, by 0.25")


def test_what_ended_in_an_error_is_no_yes():
    claim = "under autocast (bfloat16)"
    seen = {
        "write": {"autocast": {"error": "RuntimeError: a|b"}},
        "read": {"autocast": {}, "eager": {}},
    }
    assert judged(claim, **seen) == Cell(0, "error: `RuntimeError: a/b`")


@pytest.mark.parametrize(
    ("told", "mark"),
    [
        ("NaN first appeared in blocks.1.aside", 2),
        ("NaN first appeared in head\nthen in blocks.1.aside", 1),
        ("", 0),
    ],
)
def test_a_place_of_birth_counts_only_if_it_comes_first(told, mark):
    seen = {"write": {"forward": SAME}, "read": {"forward": {"told": told}}}
    assert judged("says where a NaN was born in the forward", **seen).mark == mark


def test_a_number_is_found_to_the_last_digits_of_float32():
    values = [-2.0, 0.1, 3.0]
    assert _among(float(torch.tensor(0.1)), values)
    assert not _among(0.1001, values)
    assert not _among(4.0, values)


def test_the_bad_programs_are_bad_where_they_say_and_the_plain_one_is_not():
    assert all(math.isfinite(each) for each in training.bare("plain", 5).losses)
    losses = training.bare("bad_forward", 5).losses
    assert [math.isnan(each) for each in losses] == [step >= programs.BAD_STEP for step in range(5)]
    assert math.isfinite(training.bare("bad_backward", programs.BAD_STEP + 1).losses[-1])
    weights = training.bare("bad_backward", programs.BAD_STEP + 1).parameters
    assert any(each.isnan().any() for each in weights.values())


def test_three_nan_and_two_inf_are_put_in():
    found = programs.spoiled(torch.zeros(16))
    assert (int(found.isnan().sum()), int(found.isinf().sum())) == (3, 2)


def test_the_truth_tells_the_tensors_of_a_step_apart():
    ranges = [each for ranges in truth.tensors().values() for each in ranges]
    assert len(set(ranges)) == len(ranges) == 13


def test_a_page_names_first_what_another_does_better():
    dropout = {name: SAME | {"random": name != "ours"} for name in NAMES}
    seen = {name: {"write": {"dropout": dropout[name]}} for name in NAMES}
    costs = {"d256": {"ours module": Ratio(1.5, 1, 2, 3), "wandb": Ratio(1.25, 1, 2, 3)}}
    lines = page.text(seen, costs, "today").partition("## What was seen")[0]
    assert "- **TensorBoard**, the same with dropout: identical; ours: the state of" in lines
    assert "- **wandb.watch**, time of a step (8 layers, d=256): 1.25 times" in lines
