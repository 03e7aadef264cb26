"""Collectives at API level: inputs before, outputs after, process by process."""

from __future__ import annotations

import pytest

from tests.distributed.launch import launch

pytestmark = pytest.mark.xdist_group("distributed")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return [
        each["collectives"] for each in launch(tmp_path_factory.mktemp("two"), 2, "collectives")
    ]


def test_they_compute_what_they_do_without_a_watch(two):
    for rank in two:
        assert rank["seen"] == rank["bare"]


def test_names_are_replaced_at_api_level_alone_and_restored(two):
    assert [rank["replaced"] for rank in two] == [(True, False, True)] * 2


def found(rank, api, call=0):
    """Return what went in and came out: {(role, leaf): (smallest, largest)}."""
    rows = [r for r in rank["rows"] if (r["api"], r["call"]) == (f"Distributed.{api}", call)]
    assert {r["status"] for r in rows} <= {"ok"}
    return {(r["role"], r["leaf"]): (r["min"], r["max"]) for r in rows}


def test_inputs_are_those_before_and_outputs_those_after(two):
    for number, rank in enumerate(two):
        own = (number + 1.0, number + 1.0)
        assert found(rank, "all_reduce") == {("input", "0"): own, ("output", "0"): (3.0, 3.0)}
        assert found(rank, "broadcast") == {("input", "0"): own, ("output", "0"): (2.0, 2.0)}
        assert found(rank, "all_gather") == {
            ("input", "1"): own,
            ("output", "0"): (1.0, 1.0),
            ("output", "1"): (2.0, 2.0),
        }
        assert found(rank, "all_gather_into_tensor") == {
            ("input", "1"): own,
            ("output", "0"): (1.0, 2.0),
        }
        assert found(rank, "scatter")["output", "0"] == (float(number), float(number))


def test_of_point_to_point_the_sender_has_an_input_and_the_receiver_an_output(two):
    assert found(two[0], "send") == {("input", "0"): (1.0, 1.0)}
    assert found(two[1], "recv") == {("output", "0"): (1.0, 1.0)}


def test_the_output_of_a_call_that_still_runs_is_absent(two):
    for number, rank in enumerate(two):
        rows = [r for r in rank["rows"] if (r["api"], r["call"]) == ("Distributed.all_reduce", 1)]
        assert [(r["role"], r["status"]) for r in rows] == [
            ("input", "ok"),
            ("output", "unsupported"),
        ]
        assert rows[0]["max"] == number + 1
        assert rank["rank"] == number


def test_operations_in_a_batch_are_those_of_torch_before_in_and_after_the_watch(two):
    for number, rank in enumerate(two):
        came = [6.0 - number] * 2
        assert rank["operations"] == (came, came, True)
        rows = [r for r in rank["rows"] if r["api"] == "Distributed.batch_isend_irecv"]
        assert [(r["role"], r["leaf"], r["status"], r["max"]) for r in rows] == [
            ("input", "0.0.tensor", "ok", number + 5.0),
            ("output", "1.tensor", "unsupported", None),
        ]


def test_what_a_collective_wrote_over_a_tensor_is_seen_at_module_level_too(two):
    for number, rank in enumerate(two):
        assert rank["written_in_place"] == {"": number + 1.0, "first": number + 1.0, "last": 3.0}
