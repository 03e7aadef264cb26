"""The magics on ipyparallel's engines, through `%%px`, and their runs brought together."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest

from tests.distributed.launch import ROOT

pytestmark = pytest.mark.xdist_group("distributed")


@pytest.fixture(scope="module", params=[2, 4])
def engines(request, tmp_path_factory):
    """Return what one notebook saw of so many engines."""
    folder = tmp_path_factory.mktemp("engines")
    command = [sys.executable, "-m", "tests.distributed.engines"]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "IPYTHONDIR": str(folder / "ipython"),
    }
    done = subprocess.run(
        [*command, str(request.param), str(folder / "out")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    if not (folder / "out").exists():
        pytest.fail(done.stdout[-3000:] + done.stderr[-3000:], pytrace=False)
    return request.param, pickle.loads((folder / "out").read_bytes())


def inputs(found):
    rows = [row for row in found["rows"] if row["role"] == "input"]
    return sorted((row["rank"], row["step"], row["max"]) for row in rows)


def test_the_newest_run_of_every_engine_becomes_one_run_with_the_number_as_rank(engines):
    number, found = engines
    expected = [(me, step, 10.0 * me + step + 1) for me in range(number) for step in range(3)]
    assert inputs(found["newest"]) == expected
    assert found["newest"]["notices"] == found["newest"]["warned"] == []
    assert found["newest"]["processes"] == {str(me): "stopped" for me in range(number)}
    orders = [row["order"] for row in found["newest"]["rows"]]
    assert orders == list(range(len(orders)))


def test_gradients_are_those_of_each_engines_own_data(engines):
    number, found = engines
    rows = [
        row
        for row in found["newest"]["rows"]
        if (row["role"], row["direction"]) == ("param_grad", "backward")
    ]
    assert sorted((row["rank"], row["step"], row["max"]) for row in rows) == [
        (me, step, 4 * (10.0 * me + step + 1)) for me in range(number) for step in range(3)
    ]


def test_kept_tensors_travel_with_their_run(engines):
    number, found = engines
    assert found["newest"]["kept"] == {me: [[10.0 * me + 2] * 3] * 4 for me in range(number)}


def test_a_run_is_chosen_by_its_variable_or_its_name(engines):
    number, found = engines
    assert inputs(found["second"]) == [(me, 0, -1.0) for me in range(number)]
    assert found["second"]["name"] == "second"
    assert inputs(found["variable"]) == inputs(found["newest"])
    assert inputs(found["named"]) == [(1, 0, -1.0)]


def test_an_open_watch_is_the_newest(engines):
    number, found = engines
    assert inputs(found["open"]) == [(me, 0, 7.0) for me in range(number)]
    assert set(found["open"]["processes"].values()) == {"open"}


def test_engines_without_such_a_run_are_named(engines):
    number, found = engines
    assert inputs(found["alone"]) == [(0, 0, -1.0)]
    told = [f"Engine {me} gave no run: it has no run `alone`; it has" for me in range(1, number)]
    for notice, warning, start in zip(
        found["alone"]["notices"], found["alone"]["warned"], told, strict=True
    ):
        assert notice.startswith(start)
        assert warning == f"probe_nb: {notice}"


def test_where_no_engine_has_a_run_that_is_an_error(engines):
    kind, text = engines[1]["none"]
    assert kind == "SelectionError"
    assert "Engine 0 gave no run: it has no run." in text


def test_what_is_no_view_is_refused(engines):
    kind, text = engines[1]["wrong"]
    assert kind == "ConfigError"
    assert text.startswith("`list` is no view of ipyparallel's engines and no run.")
