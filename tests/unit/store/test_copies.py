"""A run can be copied and pickled: a copy has the records and the files, and no session."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from types import FunctionType, ModuleType

import numpy as np
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.errors import SessionStateError
from probe_nb.exponents import Histogram
from probe_nb.store.columns import Columns
from tests import records
from tests.models import no_faults

STEPS = 120
SPILLS = 5_000


class Twice(nn.Module):
    """Its output is known without asking us."""

    def forward(self, x):
        return x * 2


def fed(model, steps):
    for step in steps:
        model(torch.tensor([float(step), -1.0]))


def recorded(memory):
    model = Twice()
    with no_faults(), probe.watch(model, roles="output", memory=memory) as run:
        fed(model, range(STEPS))
    assert (run.columns.spilled > 0) == (memory is not None)
    return run


def pickled(protocol):
    return lambda run: pickle.loads(pickle.dumps(run, protocol))


DEEP = [copy.deepcopy, *map(pickled, range(pickle.HIGHEST_PROTOCOL + 1))]
every_deep_copy = pytest.mark.parametrize(
    "copied", DEEP, ids=["deepcopy", *(f"pickle {n}" for n in range(len(DEEP) - 1))]
)
every_memory = pytest.mark.parametrize("memory", [None, SPILLS], ids=["in memory", "on disk"])


def holds(run, steps):
    """Say whether a run has these steps, by what the model must have returned."""
    frame = run.frame()
    assert frame["step"].tolist() == list(range(steps))
    assert frame["max"].tolist() == [max(2.0 * step, -2.0) for step in range(steps)]
    assert frame["min"].tolist() == [-2.0] * steps
    assert frame["type"].unique().tolist() == ["Twice"]
    assert frame["shape"].tolist() == [(2,)] * steps
    assert run.histogram("", step=3) == Histogram.of(np.array([6.0, -2.0]))
    return True


@every_memory
@every_deep_copy
def test_a_copy_answers_as_the_run_does(copied, memory):
    run = recorded(memory)
    made = copied(run)
    assert holds(made, STEPS)
    assert made.info == run.info
    assert made.columns.spilled == run.columns.spilled
    assert repr(made) == repr(run)
    assert made.columns.notices is made.info.notices


@every_memory
@every_deep_copy
def test_a_copy_of_an_open_run_is_closed_and_stays_as_it_is(copied, memory):
    model = Twice()
    with no_faults(), probe.watch(model, roles="output", memory=memory) as run:
        fed(model, range(STEPS))
        made = copied(run)
        assert (made.is_open, run.is_open) == (False, True)
        fed(model, range(STEPS, STEPS + 10))
        with pytest.raises(SessionStateError, match="closed"):
            made.step()
    assert holds(made, STEPS)
    assert holds(run, STEPS + 10)
    assert made.columns.spilled <= run.columns.spilled


def test_a_shallow_copy_is_closed_and_shares_the_records():
    model = Twice()
    with no_faults(), probe.watch(model, roles="output") as run:
        fed(model, range(STEPS))
        made = copy.copy(run)
        assert (made.is_open, run.is_open) == (False, True)
        assert made.columns is run.columns
        assert holds(made, STEPS)


def reached(start):
    """Return every object that can be reached from one, besides code."""
    found, todo = {}, [start]
    while todo:
        each = todo.pop()
        if id(each) not in found and not isinstance(each, (type, ModuleType, FunctionType)):
            found[id(each)] = each
            todo += gc.get_referents(each)
    return found


def test_a_copy_of_an_open_run_holds_neither_session_nor_model():
    model = Twice()
    with probe.watch(model, roles="output") as run:
        fed(model, range(3))
        repr(run)
        session = run._session
        assert id(session) in reached(run)
        for made in (copy.copy(run), *(copied(run) for copied in DEEP)):
            there = reached(made)
            assert id(session) not in there
            assert id(model) not in there
        data = pickle.dumps(run)
    assert b"probe_nb.session" not in data
    assert b"torch.nn" not in data
    assert b"probe_nb.view" not in data  # what a report has read is not carried either


def test_a_run_without_records_can_be_copied():
    for made in (copied(records.run([])) for copied in DEEP):
        assert len(made) == 0
        records.append(made.columns, [{"step": 4}])
        assert made.df["step"].tolist() == [4]


@every_deep_copy
def test_what_is_added_to_a_copy_is_its_own_and_known_texts_are_not_repeated(copied):
    run = records.run([{"module": "a"}, {"module": "b"}])
    made = copied(run)
    records.append(made.columns, [{"module": "b"}, {"module": "c"}])
    assert made.df["module"].tolist() == ["a", "b", "b", "c"]
    assert [site.module for site in made.columns.tables.sites.values] == ["a", "b", "c"]
    assert run.df["module"].tolist() == ["a", "b"]
    assert len(run.columns.tables.sites.values) == 2


_READER = """
import pickle, sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError("no torch here")
sys.meta_path.insert(0, NoTorch())
with open(sys.argv[1], "rb") as file:
    run = pickle.load(file)
folder = {part.path.parent for part in run.columns._blocks if hasattr(part, "path")}
print(len(run), run.frame(step=7)["max"].item(), *folder)
"""


@every_memory
def test_another_process_reads_a_pickle_without_torch_and_leaves_nothing(memory, tmp_path):
    run = recorded(memory)
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(run))
    del run
    gc.collect()
    done = subprocess.run(
        [sys.executable, "-c", _READER, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows, value, *folders = done.stdout.split()
    assert (rows, value) == (str(STEPS), "14.0")
    assert len(folders) == (memory is not None)
    assert not any(Path(folder).exists() for folder in folders)


# -- files -------------------------------------------------------------------------------------------


def folders(run):
    return {part.path.parent for part in run.columns._blocks if hasattr(part, "path")}


@every_deep_copy
def test_a_copy_and_its_run_may_go_in_any_order_and_the_files_with_the_last(copied):
    for first in (0, 1):
        pair = [recorded(SPILLS)]
        pair.append(copied(pair[0]))
        of_both = folders(pair[0]) | folders(pair[1])
        assert all(folder.exists() for folder in of_both)
        del pair[first]
        gc.collect()
        assert holds(pair[0], STEPS)
        pair.clear()
        gc.collect()
        assert not any(folder.exists() for folder in of_both)


def test_a_pickle_has_files_of_its_own_and_all_in_one_folder():
    run = recorded(SPILLS)
    made = pickle.loads(pickle.dumps(run))
    assert len(folders(made)) == 1
    assert not folders(made) & folders(run)
    parts = [part for part in run.columns._blocks if hasattr(part, "path")]
    (folder,) = folders(made)
    assert len(list(folder.glob("*.parquet"))) == len(parts) > 1


def test_runs_in_one_pickle_do_not_take_each_others_files():
    runs = [Columns(budget=1), Columns(budget=1)]
    for number, columns in enumerate(runs):
        for step in range(4):
            records.append(columns, [{"step": step, "call": number}])
    for number, made in enumerate(pickle.loads(pickle.dumps(runs))):
        assert made.spilled == 3
        assert made.arrays()["call"].tolist() == [number] * 4


def test_a_copy_goes_on_moving_rows_to_files_of_its_own():
    columns = Columns(budget=1)
    for step in range(3):
        records.append(columns, [{"step": step}])
    for copied in DEEP:
        made = copied(columns)
        for step in range(3, 6):
            records.append(made, [{"step": step, "call": 1}])
        assert made.arrays()["step"].tolist() == list(range(6))
        assert made.spilled == 5
    records.append(columns, [{"step": 3, "call": 2}] * 2)
    records.append(columns, [{"step": 4, "call": 2}])
    assert columns.arrays()["call"].tolist() == [0, 0, 0, 2, 2, 2]


def test_a_pickle_in_the_middle_of_the_recording_knows_every_code():
    columns, stop = Columns(budget=20_000), threading.Event()

    def write():
        step = 0
        while not stop.is_set():
            facts = {"module": f"m{step}", "shape": (step,), "dtype": f"d{step % 50}"}
            records.append(columns, [{"step": step, **facts}])
            step += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        made = [pickle.loads(pickle.dumps(columns)) for _ in range(15)]
    finally:
        stop.set()
        writer.join()
    for each in made:
        found = each.arrays()
        for step, site, shape in zip(found["step"], found["site"], found["shape"], strict=True):
            assert each.tables.sites.values[site].module == f"m{step}"
            assert each.tables.shapes.values[shape] == (step,)


def test_a_pickle_that_cannot_be_whole_is_none():
    run = recorded(SPILLS)
    (folder,) = folders(run)
    next(iter(sorted(folder.iterdir()))).unlink()
    with pytest.raises(FileNotFoundError, match=r"records of steps \d+ to \d+ are gone"):
        pickle.dump(run, io.BytesIO())
