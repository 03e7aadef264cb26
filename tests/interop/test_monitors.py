"""The training monitors beside msProbe's own, over the same seeded training."""

import csv
import json
import os
import subprocess
import sys

import pytest

from tools import msprobe as installed

FIRST = {
    "targets": {},
    "xy_distribution": True,
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "mg_direction": True,
    "ops": ["min", "max", "mean", "norm", "zeros", "nans"],
    "ndigits": 12,
    "alert": {"rules": [{"rule_name": "AnomalyNan", "args": {"threshold": 1e10}}], "dump": True},
}
SECOND = {
    "framework": "pytorch",
    "monitors": {
        name: {"enabled": True} for name in ("module", "weight_grad", "optimizer", "param")
    },
}
JOBS = {
    "first": {"version": 1, "config": FIRST, "batches": 1},
    "accumulated": {"version": 1, "config": FIRST, "batches": 2},
    "each": {"version": 1, "config": FIRST | {"monitor_mbs_grad": True}, "batches": 2},
    "target": {"version": 1, "config": FIRST | {"targets": {"pair": {}, "fc": {}}}, "batches": 1},
    "forward": {"version": 1, "config": FIRST | {"forward_only": True}, "batches": 1},
    "second": {"version": 2, "config": SECOND, "batches": 2},
}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Return the folders of both, by the name of the job."""
    base = tmp_path_factory.mktemp("monitors")
    pythons = {"real": str(installed.python()), "ours": sys.executable}
    for whose, python in pythons.items():
        jobs = [job | {"folder": str(base / whose / name)} for name, job in JOBS.items()]
        path = base / f"{whose}.json"
        path.write_text(json.dumps(jobs))
        done = subprocess.run(
            [python, "-m", "tests.interop.monitored", whose, str(path)],
            cwd=installed.ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return base


def tables(folder):
    """Return rows by file and key, and the columns by file."""
    found, columns = {}, {}
    for path in sorted(folder.rglob("*.csv")):
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
        columns[path.name] = reader.fieldnames
        seen = {}
        for row in rows:
            key = tuple(
                row.get(k)
                for k in ("vpp_stage", "name", "module_name", "scope", "step", "micro_step")
            )
            number = seen[key] = seen.get(key, -1) + 1  # the second monitor repeats a name
            found[path.name, key, number] = row
    return found, columns


def differences(theirs, ours):
    """Return the numbers that are not the same within what both round to."""
    found = []
    for op, value in theirs.items():
        mine = ours[op]
        if value == mine or op in ("name", "module_name", "scope"):
            continue
        try:
            a, b = float(value), float(mine)
        except ValueError:
            found.append((op, value, mine))
            continue
        largest = max(abs(float(theirs["min"])), abs(float(theirs["max"])))
        bound = {"mean": 1e-6 * largest, "norm": 1e-5 * abs(a), "zeros": 1e-6}.get(op, 0.0)
        if not (a == b or (a != a and b != b) or abs(a - b) <= bound + 2e-12):  # noqa: PLR0124
            found.append((op, value, mine))
    return found


@pytest.mark.parametrize("name", JOBS)
def test_each_number_is_msprobes(both, name):
    theirs, their_columns = tables(both / "real" / name)
    ours, our_columns = tables(both / "ours" / name)
    numbers = {key: row for key, row in theirs.items() if row["min"] != "nan"}
    # theirs alone: a file of ones before there is any momentum to compare a gradient with
    missing = {key for key in numbers.keys() - ours.keys() if key[0] != "other_0-0.csv"}
    assert missing == set()
    # ours alone: what arrived at the parameters, which the hook of the second monitor misses
    more = {
        row["scope"]
        for key in ours.keys() - numbers.keys()
        for row in [ours[key]]
        if "scope" in row
    }
    assert more <= {"unreduced"}
    if name != "second":
        assert ours.keys() - numbers.keys() == set()
    assert {n: c for n, c in their_columns.items() if n in our_columns} == our_columns
    wrong = {
        key: d
        for key in numbers.keys() & ours.keys()
        if (d := differences(numbers[key], ours[key]))
    }
    assert wrong == {}
    assert len(numbers) > 50


def test_what_is_written_in_their_order_is_in_ours(both):
    for name in ("actv", "param_origin", "param_updated", "grad_reduced", "exp_avg"):
        for file in (f"{name}_1-1.csv",):
            orders = []
            for whose in ("real", "ours"):
                (path,) = (both / whose / "accumulated").rglob(file)
                with path.open(newline="") as each:
                    orders.append([row["name"] for row in csv.DictReader(each)])
            assert orders[0] == orders[1]


def test_the_rule_of_nan_fires_only_for_the_inputs_that_have_no_gradient_there(both):
    found = {}
    for whose in ("real", "ours"):
        path = both / whose / "first" / "anomaly_detected" / "rank0" / "anomaly.json"
        found[whose] = {each["tag_name"] for each in json.loads(path.read_text()).values()}
    assert found["ours"] == set()
    assert all("input" in tag and "actv_grad" in tag for tag in found["real"])
