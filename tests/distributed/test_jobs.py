"""Runs of several processes as one: saved and loaded, gathered, and compared rank by rank."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pandas as pd
import pytest
import torch

import probe_nb as probe
from tests.distributed.jobs import JOBS, batch
from tests.distributed.launch import ROOT, launch

pytestmark = pytest.mark.xdist_group("distributed")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("jobs"), 2, *JOBS)


def of_rank(rows, rank):
    found = sorted((row for row in rows if row["rank"] == rank), key=lambda row: row["order"])
    return [{name: row[name] for name in row if name != "order"} for row in found]


def test_each_process_writes_its_own_file_and_the_folder_is_one_run(two):
    together = [each["job together"] for each in two]
    assert [each["path"] for each in together] == ["rank0.parquet", "rank1.parquet"]
    assert [each["world"] for each in together] == [2, 2]
    for rank, each in enumerate(together):
        assert of_rank(together[0]["loaded"], rank) == of_rank(each["own"], rank)


def test_gathering_gives_rank_0_what_loading_gives(two):
    first, second = (each["job together"] for each in two)
    assert first["equal"]
    assert second["nothing"]
    assert not first["nothing"]
    assert first["notices"] == []


def test_kept_tensors_travel_too(two):
    for name in ("kept", "kept loaded"):
        for rank, tensor in enumerate(two[0]["job together"][name]):
            assert torch.equal(tensor, batch(rank, 2))


def test_a_process_without_a_run_is_said_to_have_none(two):
    notices, ranks = two[0]["job together"]["missing"]
    assert ranks == {1}
    assert notices == [
        "Rank 0 gave no run: it has no run.",
        "Of 2 processes 1 are here; rank 0 is missing.",
    ]


def statements(two, job):
    *found, nonfinite = two[0][job]
    assert two[1][job] == []
    return [
        dict(zip(("severity", "kind", "ranks", "step", "sentence", "detail"), each, strict=True))
        for each in found
    ], nonfinite


def worst(two, job):
    found, _ = statements(two, job)
    serious = [each for each in found if each["severity"] != "note"]
    return serious[0] if serious else None


def test_a_sound_job_has_notes_alone(two):
    found, nonfinite = statements(two, "job sound")
    assert nonfinite is None
    assert [(each["severity"], each["kind"]) for each in found] == [
        ("note", "parameters"),
        ("note", "inputs"),
    ]
    assert found[0]["sentence"] == "6 parameters are the same on ranks 0 and 1 in 4 steps"
    assert found[1]["sentence"] == "Ranks 0 and 1 were fed different data"


def test_a_gradient_that_is_not_averaged_is_found_where_it_was_taken(two):
    found = worst(two, "job alone")
    assert (found["kind"], found["severity"], found["step"]) == ("drift", "error", 2)
    assert "differ after the optimizer step of step 2" in found["sentence"]
    assert (
        "rank 1 took the gradient of its own backward alone: it was not averaged" in found["detail"]
    )


def test_a_backward_beside_the_wrapper_is_found(two):
    found = worst(two, "job beside")
    assert (found["kind"], found["step"]) == ("drift", 0)
    assert "no rank's gradient was averaged" in found["detail"]


def test_parameters_that_differ_from_the_start_are_named(two):
    found = worst(two, "job start")
    assert (found["kind"], found["severity"], found["step"]) == ("drift", "warning", 0)
    assert "from the start" in found["sentence"]
    assert "1 parameter: 3.bias; 5 others are the same" in found["detail"]


def test_a_step_of_another_size_is_told_from_another_gradient(two):
    found = worst(two, "job rate")
    assert (found["kind"], found["severity"], found["step"]) == ("drift", "error", 0)
    assert "the gradients were the same" in found["detail"]


def test_the_same_data_on_two_ranks_is_found(two):
    found = worst(two, "job same")
    assert (found["kind"], found["ranks"], found["step"]) == ("same_input", [0, 1], 0)
    assert found["sentence"] == "Ranks 0 and 1 were fed the same data in 4 of 4 forwards"


def test_a_rank_whose_gradient_sticks_out_is_named(two):
    found = worst(two, "job large")
    assert (found["kind"], found["ranks"]) == ("outlier", [1])


def test_nan_is_born_on_the_rank_that_made_it(two):
    found, (rank, step, module) = statements(two, "job nan")
    assert (rank, step, module) == (1, 2, "4")
    assert found[0]["kind"] == "non_finite"
    assert found[0]["ranks"] == [1]
    assert "NaN first appeared at step 2 on rank 1 in 4" in found[0]["sentence"]
    assert "then on rank 0 from step 2 on" in found[0]["detail"]


def test_parts_that_each_rank_has_are_no_drift(two):
    found, _ = statements(two, "job sharded")
    assert {each["severity"] for each in found} == {"note"}
    assert "6 parameters are parts on each rank, and not compared" in found[0]["detail"]


SCRIPT = """
import os, sys, torch, torch.distributed as dist
import probe_nb as probe
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(2, 1))
with probe.watch(model, live=False) as run:
    model(torch.full((3, 2), dist.get_rank() + 1.0)).sum().backward()
run.save(sys.argv[1])
dist.destroy_process_group()
"""


def test_what_torchrun_started_is_loaded_as_one_run(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*command, str(script), str(tmp_path / "job")], check=True, env=environment, timeout=280
    )
    run = probe.load(tmp_path / "job")
    rows = run.frame(role="input", module="(root)")
    assert dict(zip(rows["rank"], rows["max"], strict=True)) == {0: 1.0, 1: 2.0}
    gradients = run.frame(role="param_grad", leaf="weight.grad").sort_values("rank")["max"]
    pd.testing.assert_series_equal(  # the mean of the sums over three rows of 1 and of 2
        gradients, pd.Series([4.5, 4.5], dtype="Float64"), check_index=False, check_names=False
    )
