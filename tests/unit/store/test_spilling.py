"""A run that exceeds its budget of memory is the same run, and a disk that fails harms nobody."""

from __future__ import annotations

import copy
import gc
import linecache
import math
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.analysis.tally import Tally
from probe_nb.errors import ProbeWarning, SelectionError
from probe_nb.run import Run
from probe_nb.store import blocks
from probe_nb.store import columns as store
from probe_nb.store.columns import Columns, Filter
from probe_nb.view import report
from probe_nb.view.frame import FrameBuilder, reading
from probe_nb.view.live import LiveView
from tests import records
from tests.models import no_faults

TINY = 20_000


def trained(memory, *, steps=12):
    """Train with values of every kind in it; the same each time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with no_faults(), probe.watch(model, optimizer=optimizer, memory=memory) as run:
        for step in range(steps):
            x = torch.randn(5, 4)
            if step == steps // 2:
                x[0, 0], x[1, 1], x[2, 2] = math.nan, math.inf, 1e-40
            model(torch.empty(0, 4) if step == 1 else x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return run


@pytest.fixture(scope="module")
def whole():
    return trained(None)


@pytest.fixture
def spilled():
    run = trained(TINY)
    assert run.columns.spilled > len(run) / 2
    return run


def of_rows(budget, blocks_of, **facts):
    """Return columns of blocks of so many rows, numbered in `step`, each with its own bins."""
    columns = Columns(budget=budget, **facts)
    row = 0
    for size in blocks_of:
        rows = [
            {"step": row + n, "histogram": records.Histogram.of(np.full((row + n) % 3, 2.0))}
            for n in range(size)
        ]
        records.append(columns, rows)
        row += size
    return columns


def all_of(run):
    """Everything, without the one warning that this is more than the run may take."""
    with pytest.warns(ProbeWarning, match="records into memory"):
        return run.df


# -- the same run ----------------------------------------------------------------------------------


def test_every_record_is_what_it_would_be_in_memory(whole, spilled):
    pd.testing.assert_frame_equal(all_of(spilled), whole.df)
    pd.testing.assert_frame_equal(spilled.df, whole.df)  # and warns once only


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"step": 0},
        {"step": 11},
        {"step": 10**12},
        {"step": [1, 7]},
        {"step": range(2, 9, 3)},
        {"step": slice(-3, None)},
        {"module": "0", "role": ["output", "param"]},
        {"module": "*", "status": "ok"},
        {"status": ["empty", "no_finite"]},
        {"type": "ReLU", "direction": "backward", "step": range(4, 8)},
        {"leaf": "weight", "micro_step": 0, "call": 0},
        {"rank": 0},
    ],
)
def test_every_filter_gives_the_same_rows_under_the_same_numbers(whole, spilled, filters):
    pd.testing.assert_frame_equal(spilled.frame(**filters), whole.frame(**filters))


def test_histories_histograms_and_what_is_missing_are_the_same(whole, spilled):
    for stat in ("absmax", "mean", "nan_count", "min"):
        for module, role in (("0", "output"), ("2", "grad_input"), ("", "input")):
            pd.testing.assert_series_equal(
                spilled.history(module, role, stat), whole.history(module, role, stat)
            )
    for step in (0, 3, 11):
        assert spilled.histogram("0", "output", step) == whole.histogram("0", "output", step)
    for row in range(len(whole)):
        assert spilled.columns.histogram(row) == whole.columns.histogram(row)
    pd.testing.assert_frame_equal(spilled.coverage(), whole.coverage())


def test_the_headline_and_the_report_are_the_same(whole, spilled):
    spilled.info.notices.clear()  # where the records are
    assert repr(spilled) == repr(whole)
    assert "NaN first appeared at step 6" in repr(whole)


def test_a_pattern_that_matches_nothing_is_refused_as_ever(spilled):
    with pytest.raises(SelectionError, match="No module matches `nothing`"):
        spilled.frame(module="nothing")
    with pytest.raises(SelectionError, match="has no `buffer` rows; it has "):
        spilled.history("0", "buffer")


def test_what_is_saved_is_the_whole_run(whole, spilled, tmp_path):
    loaded = probe.load(spilled.save(tmp_path / "run"))
    pd.testing.assert_frame_equal(loaded.df, whole.df)
    for row in range(len(whole)):
        assert loaded.columns.histogram(row) == whole.columns.histogram(row)
    assert loaded.info == spilled.info


def test_a_file_larger_than_the_budget_is_loaded_within_it(whole, tmp_path):
    path = whole.save(tmp_path / "run")
    with pq.ParquetWriter(tmp_path / "pieces", pq.read_schema(path)) as writer:
        writer.write_table(pq.read_table(path), row_group_size=20)
    loaded = probe.load(tmp_path / "pieces", memory=TINY)
    assert loaded.columns.spilled > 0
    pd.testing.assert_frame_equal(loaded.frame(), whole.df)
    assert repr(loaded) == repr(whole)


def test_an_open_run_answers_from_memory_and_disk_together():
    model = nn.Linear(2, 2)
    with probe.watch(model, roles="output", memory=2_000) as run:
        for step in range(30):
            model(torch.full((1, 2), float(step)))
            assert len(run) == step + 1
            assert run.frame(step=step)["step"].tolist() == [step]
            assert run.frame(step=0)["step"].tolist() == [0]
    assert run.columns.spilled > 0
    assert run.history("").index.tolist() == list(range(30))


@pytest.mark.parametrize("first", [0, 1, 4, 5, 11, 12])
@pytest.mark.parametrize("budget", [None, 1, 800, 1500])
def test_rows_from_any_number_on_come_in_order_with_their_bins(first, budget):
    whole, some = of_rows(None, (3, 1, 4, 4)), of_rows(budget, (3, 1, 4, 4))
    bins = int(whole.arrays()["hist_size"][:first].sum())
    for name, values in some.tail(first).items():
        cut = bins if name in blocks.RAGGED else first
        np.testing.assert_array_equal(values, whole.arrays()[name][cut:], err_msg=name)
        assert values.dtype == whole.arrays()[name].dtype
    pieces = list(some.chunks(first, ("step",)))
    assert np.concatenate([np.empty(0, int), *(p["step"] for _, p in pieces)]).tolist() == [
        *range(first, 12)
    ]
    assert [row for row, _ in pieces] == [int(p["step"][0]) for _, p in pieces]


def test_rows_are_found_across_row_groups_of_one_file(monkeypatch):
    monkeypatch.setattr(blocks, "GROUP", 4)
    columns = of_rows(1, (10, 10, 1))
    assert columns.spilled == 20
    rows, found = columns.where([Filter("step", lambda s: s % 5 == 3)], ("step", *blocks.HISTOGRAM))
    assert rows.tolist() == found["step"].tolist() == [3, 8, 13, 18]
    assert found["hist_size"].tolist() == [min(row % 3, 1) for row in (3, 8, 13, 18)]
    assert found["hist_counts"].tolist() == [2, 1]


# -- the budget --------------------------------------------------------------------------------------


def in_memory(columns):
    return [b for b in columns._blocks if isinstance(b, blocks.Block)]


def test_memory_holds_no_more_than_the_budget_and_the_newest_drain():
    columns = Columns(budget=TINY)
    for step in range(100):
        records.append(columns, [{"step": step}] * 20)
        held = in_memory(columns)
        assert sum(b.bytes for b in held) <= TINY
        assert held[-1].end == len(columns) == 20 * (step + 1)
    records.append(columns, [{"step": 100}] * 1000)
    assert [b.end - b.first for b in in_memory(columns)] == [1000]
    assert columns.spilled == 2000


def test_without_a_budget_nothing_leaves_memory():
    columns = of_rows(None, (50, 50))
    assert columns.spilled == 0
    assert columns._folder is None


def test_a_live_view_reads_nothing_back(monkeypatch):
    columns = Columns(budget=TINY)
    live = FrameBuilder(columns, records.info())
    read = []
    monkeypatch.setattr(blocks.Part, "_groups", lambda *_: read.append(1))
    for step in range(100):
        records.append(columns, [{"step": step, "max": float(step)}] * 20)
        live.update()
    assert columns.spilled > 1500
    assert live.tally.rows == 2000
    assert live.tally.latest["max"].tolist() == [99.0]
    assert not read


def test_one_notice_says_that_rows_move_to_disk_and_where(spilled):
    (notice,) = spilled.info.notices
    assert notice.startswith("At step ")
    assert "memory=19.53 KiB" in notice
    assert f"`{spilled.columns._folder.path}`" in notice


_SWEEP = """
import resource
from benchmarks import long_run
from probe_nb.run import Run
from probe_nb.terms import RunInfo
from probe_nb.view.frame import FrameBuilder

long_run.BINS = 2
peak = long_run.peak
columns = long_run.with_sites(32 * 2**20)
run = Run(RunInfo("long", "", {"model": "Net"}, 200, {}, {}, []), columns)
live = FrameBuilder(columns, run.info)
before = peak()
long_run.record(columns, 1000, live)
assert len(run.history("layers.3")) == 10_000
assert len(run.frame(step=5000)) == 200
print(len(columns), live.tally.rows, peak() - before)
"""


def test_two_million_records_fit_in_the_memory_that_was_given():
    done = subprocess.run(
        [sys.executable, "-c", _SWEEP], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    held, seen, above = map(int, done.stdout.split())
    assert held == 2_000_000
    assert seen > 1_900_000
    assert above < 160 * 2**20  # in memory alone they would take 400 MiB


# -- the folder --------------------------------------------------------------------------------------


def test_the_files_go_with_the_run():
    columns = of_rows(1, (5, 5, 5))
    folder = columns._folder.path
    assert len(list(folder.glob("*.parquet"))) == 2
    del columns
    gc.collect()
    assert not folder.exists()


def test_what_still_reads_keeps_the_files():
    columns = of_rows(1, (5, 5, 5))
    pieces = columns.chunks(names=("step",))
    del columns
    gc.collect()
    assert [step for _, piece in pieces for step in piece["step"].tolist()] == list(range(15))


def test_two_runs_have_two_folders():
    one, other = of_rows(1, (5, 5)), of_rows(1, (6, 6))
    assert one._folder.path != other._folder.path
    del one
    gc.collect()
    assert len(other.arrays()["step"]) == 12


def test_the_folder_is_where_the_user_wants_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert of_rows(1, (5, 5))._folder.path.parent == tmp_path


def test_the_folder_is_not_in_a_tmp_that_may_be_memory(monkeypatch):
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    assert of_rows(1, (5, 5))._folder.path.parent == Path("/var/tmp")


_ENDING = """
import os, sys
sys.path.insert(0, ".")
from tests.unit.store.test_spilling import of_rows
columns = of_rows(1, (5, 5, 5))
folder = columns._folder.path
child = os.fork()
if not child:
    columns = None
    import gc; gc.collect()
    sys.exit()
os.waitpid(child, 0)
print(folder.exists(), len(columns.arrays()["step"]), folder)
"""


def test_a_forked_child_leaves_the_files_and_the_end_of_python_removes_them():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _ENDING], capture_output=True, text=True, check=True
    )
    there, rows, folder = done.stdout.split()
    assert (there, rows) == ("True", "15")
    assert not Path(folder).exists()


_CHILD = """
import os, sys
sys.path.insert(0, ".")
from tests.unit.store.test_spilling import written
from probe_nb.store.columns import Columns

columns = Columns(budget=2_000)
written(columns, range(10))
assert columns.spilled
done, go = os.pipe()
if not os.fork():
    before = list(columns._folder.path.iterdir())
    os.read(done, 1)  # when the parent has moved more of its records to files
    written(columns, range(1_000, 1_040))
    mine = [step for step in range(10) for _ in "ab"]
    mine += [step for step in range(1_000, 1_040) for _ in "ab"]
    right = columns.arrays()["step"].tolist() == mine
    new = columns._folder.path
    columns = None
    os._exit(7 if right and not new.exists() else 1)
written(columns, range(10, 50))
os.write(go, b"x")
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
assert columns.arrays()["step"].tolist() == [step for step in range(50) for _ in "ab"]
assert len(list(columns._folder.path.iterdir())) > 10
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_that_records_on_leaves_its_parents_files_as_they_are():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _CHILD], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# -- what is read ------------------------------------------------------------------------------------


def counted(monkeypatch):
    read, groups = [], blocks.Part._groups
    monkeypatch.setattr(
        blocks.Part,
        "_groups",
        lambda part, *which: (read.append(part.first), groups(part, *which))[1],
    )
    return read


def test_a_report_reads_each_file_once_and_afterwards_only_what_is_new(monkeypatch):
    run = Run(records.info(), of_rows(1, (5, 5, 5, 5)))
    read = counted(monkeypatch)
    repr(run)
    assert read == [0, 5, 10]
    read.clear()
    repr(run)
    monkeypatch.setattr(report, "QUICK", 19)
    report.bundle(run)
    report.html_page(run)
    assert not read
    records.append(run.columns, [{"step": 99, "module": "late", "nan_count": 1}])
    assert "NaN first appeared at step 99 in late" in repr(run)
    assert not set(read) & {0, 5, 10}


def test_a_report_of_a_short_run_reads_it_once_more_for_its_history(monkeypatch):
    run = Run(records.info(), of_rows(1, (5, 5, 5, 5)))
    repr(run)
    read = counted(monkeypatch)
    report.bundle(run)
    steps_alone, whole = 1, 1
    assert {each: read.count(each) for each in read} == dict.fromkeys(
        (0, 5, 10), steps_alone + whole
    )


def test_what_a_live_view_has_read_is_not_read_again(monkeypatch):
    run = Run(records.info(), of_rows(1, (5, 5, 5, 5)))
    live = LiveView(run, final="line", display=lambda *_, **__: None)
    live.close()
    read = counted(monkeypatch)
    assert "20 records" in repr(run)
    assert not read


def test_a_report_that_was_interrupted_does_not_count_calls_twice(monkeypatch):
    run = Run(records.info(), of_rows(1, (5,)))
    repr(run)
    records.append(run.columns, [{"step": 5, "call": call} for call in range(3)])

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Tally, "_take_histograms", interrupted)  # half of the block is counted
        with pytest.raises(KeyboardInterrupt):
            repr(run)
    with reading(run) as builder:
        assert builder.tally.rows == 8
        assert builder.tally.latest["calls"].tolist() == [3]


def test_two_who_read_at_once_read_apart():
    run = Run(records.info(), of_rows(1, (5, 5)))
    repr(run)
    with reading(run) as one, reading(run) as other:
        assert one is not other
        assert one.tally.rows == other.tally.rows == 10
    assert len(run.readers) == 1


# -- a disk that fails ---------------------------------------------------------------------------------


def refusing(monkeypatch, error):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(blocks.pq, "write_table", refuse)


def written(columns, steps):
    for step in steps:
        records.append(columns, [{"step": step}] * 2)


FULL = OSError(28, "No space left on device")


def test_a_full_disk_ends_the_recording_at_a_row_that_is_known(monkeypatch):
    notices = []
    columns = of_rows(2_000, (2, 2), notices=notices)
    refusing(monkeypatch, FULL)
    with pytest.warns(ProbeWarning, match="No space left on device") as warned:
        written(columns, range(4, 100))
    held = len(columns)
    steps = columns.arrays()["step"]
    missing = int(steps[-1]) + 1
    assert steps.tolist() == [0, 1, 2, 3, *np.repeat(np.arange(4, missing), 2)]
    assert len(warned) == 1
    gap = f"{200 - 4 * 2 - (held - 4)} records of steps {missing} to 99 are missing"
    assert [gap in notice for notice in notices] == [False, True]
    assert sum(b.bytes for b in in_memory(columns)) <= 2_000
    assert [path.name for path in columns._folder.path.iterdir()] == ["owner"]


def test_recording_goes_on_when_there_is_room_again(monkeypatch):
    notices = []
    columns = of_rows(2_000, (2, 2), notices=notices)
    with monkeypatch.context() as patch:
        refusing(patch, FULL)
        with pytest.warns(ProbeWarning, match="No space left"):
            written(columns, range(4, 40))
    before = len(columns)
    written(columns, range(40, 80))
    steps = columns.arrays()["step"].tolist()
    assert steps[-2:] == [79, 79]
    there = set(steps)
    gap = sorted(set(range(80)) - there)
    assert gap == list(range(gap[0], gap[-1] + 1))
    assert before == 4 + 2 * (gap[0] - 4)
    (notice,) = [each for each in notices if "missing" in each]
    assert f"{2 * len(gap)} records of steps {gap[0]} to {gap[-1]} are missing" in notice
    assert columns.spilled > 0


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied"), MemoryError(), RuntimeError("of any kind")]
)
def test_whatever_is_wrong_with_the_disk_training_never_hears_of_it(monkeypatch, error):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(blocks.tempfile, "mkdtemp", refuse)
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    bare, x = copy.deepcopy(model), torch.randn(3, 2)
    with (  # noqa: PT031 - the warning comes somewhere inside
        pytest.warns(ProbeWarning, match="are missing"),
        probe.watch(model, memory=3_000) as run,
    ):
        for _ in range(20):
            assert torch.equal(model(x), bare(x))
    assert 0 < len(run) < 20 * 5
    assert any("are missing" in notice for notice in run.info.notices)
    assert len(run.df) == len(run)


_LIMITED = """
import resource, sys, warnings
import torch
import probe_nb as probe

resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))  # the system itself cuts each file
warnings.simplefilter("always")
model = torch.nn.Linear(2, 2)
with probe.watch(model, memory=60_000) as run:
    for _ in range(200):
        model(torch.ones(1, 2))
print(len(run), len(run.frame(step=0)), *run.info.notices, sep="\\n")
"""


def test_a_file_that_the_system_cuts_off_is_no_file(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    rows, first, _, notice = done.stdout.splitlines()
    assert 0 < int(rows) < 800
    assert int(first) == 4
    assert "File too large" in notice
    assert done.stderr.count("ProbeWarning") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_load_that_does_not_fit_is_an_error_and_not_half_a_run(whole, tmp_path, monkeypatch):
    path = whole.save(tmp_path / "run")
    with pq.ParquetWriter(tmp_path / "pieces", pq.read_schema(path)) as writer:
        writer.write_table(pq.read_table(path), row_group_size=20)
    refusing(monkeypatch, FULL)
    with (
        pytest.warns(ProbeWarning, match="No space left"),
        pytest.raises(OSError, match="are missing"),
    ):
        probe.load(tmp_path / "pieces", memory=TINY)


# -- interrupts and threads ----------------------------------------------------------------------------


class Interrupted(BaseException):
    """What Ctrl-C is."""


def interrupted_at(line, action):
    """Run an action and interrupt it at this line of the store; tell whether it had so many."""
    left, files = line, (store.__file__, blocks.__file__)

    def trace(frame, event, arg):
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        here = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and "with self._lock" not in here:  # Python takes no signal in there
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise Interrupted
        return trace

    sys.settrace(trace)
    try:
        action()
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    return False


def test_an_interrupt_at_any_line_leaves_a_run_that_can_be_read_and_written():
    line = 0
    while True:
        columns = of_rows(1_500, (2, 2, 2))
        row = {"step": 6}
        hit = interrupted_at(line, lambda c=columns, r=row: records.append(c, [r, r]))
        steps = columns.arrays()["step"].tolist()
        assert steps in ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6, 6]), line
        records.append(columns, [{"step": 7}] * 4)
        assert columns.arrays()["step"].tolist() == [*steps, 7, 7, 7, 7], line
        assert len(columns) == len(steps) + 4
        assert not [n for n in columns.notices if not n or "missing" in n]
        if not hit:
            break
        line += 1
    assert line > 40
    assert columns.spilled > 0


def test_several_threads_write_and_read_at_once():
    columns, faults, stop = Columns(budget=TINY), [], threading.Event()

    def write(number):
        for step in range(60):
            records.append(columns, [{"step": step, "micro_step": number}] * 5)

    def read():
        while not stop.is_set():
            _, found = columns.where([Filter("micro_step", lambda m: m == 0)], ("step",))
            steps = found["step"]
            if (np.diff(steps) < 0).any() or (np.bincount(steps)[:-1] != 5).any():
                faults.append(steps)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert not faults
    found = columns.arrays()
    assert columns.spilled > 0
    for number in range(2):
        mine = found["step"][found["micro_step"] == number]
        assert mine.tolist() == np.repeat(np.arange(60), 5).tolist()
