"""A saved run is the same run: whole or not at all, read by nobody's pickle, refused with a reason."""

from __future__ import annotations

import json
import math
import os
import pickletools
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.errors import RunFormatError
from probe_nb.exponents import Histogram
from tests import records

HOSTILE = [
    "<script>alert(1)</script>",
    "quote\"s 'and' `ticks`",
    "new\nline\ttab\x00null",
    "ελληνικά 中文 🤯",
    "\u202eright to left",
    "'; DROP TABLE runs; --",
    "../../etc/passwd",
    "null",
    "",
    "x" * 10_000,
]


@pytest.fixture
def trained():
    """A run with every kind of value in it."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(5, 4)
    x[0, 0], x[1, 1], x[2, 2] = math.nan, math.inf, 1e-40
    with probe.watch(model, optimizer=optimizer, name="trained") as run:
        for batch in (torch.randn(5, 4), x, torch.empty(0, 4)):
            model(batch).sum().backward()
            optimizer.step()
    return run


def same(one: probe.Run, other: probe.Run) -> None:
    pd.testing.assert_frame_equal(one.df, other.df)
    assert one.info == other.info
    for row in range(len(one)):
        assert one.columns.histogram(row) == other.columns.histogram(row)


# -- identity ------------------------------------------------------------------------------------


def test_a_loaded_run_is_the_run_that_was_saved(trained, tmp_path):
    path = trained.save(tmp_path / "run.parquet")
    loaded = probe.load(path)
    same(trained, loaded)
    assert not loaded.is_open


def test_saving_a_loaded_run_changes_nothing(trained, tmp_path):
    again = probe.load(trained.save(tmp_path / "one"))
    same(trained, probe.load(again.save(tmp_path / "two")))


def test_a_loaded_run_answers_as_the_saved_one_does(trained, tmp_path):
    loaded = probe.load(trained.save(tmp_path / "run"))
    pd.testing.assert_series_equal(loaded.history("0", "output"), trained.history("0", "output"))
    assert loaded.histogram("0", "output", 0) == trained.histogram("0", "output", 0)
    pd.testing.assert_frame_equal(loaded.coverage(), trained.coverage())


def test_a_run_without_records_is_saved_and_loaded(tmp_path):
    empty = records.run([])
    same(empty, probe.load(empty.save(tmp_path / "empty")))


def test_every_value_a_column_can_hold_comes_back(tmp_path):
    rows = [
        {"max": math.inf, "min": -math.inf, "mean": -0.0, "std": 5e-324, "l2": 1.7e308},
        {"status": "meta", "training": -1, "shape": (0, 4)},
        {"zero_count": 2**62, "numel": 2**62, "step": 2**31 - 1, "order": 2**60, "shape": ()},
        {
            "status": "empty",
            "training": 1,
            "requires_grad": True,
            "recompute": True,
            "reused": True,
        },
        {"loss_scale": 65536.0, "role": "grad_output", "backward": 3, "device": "npu:0"},
        {"histogram": Histogram.of(np.array([2.0**-140, -1.0, 3.0, 1e30, -1e300]))},
    ]
    run = records.run(rows)
    loaded = probe.load(run.save(tmp_path / "run"))
    same(run, loaded)
    assert math.copysign(1, loaded.df["mean"].iloc[0]) == -1.0


def test_histogram_counts_beyond_four_billion_come_back(tmp_path):
    t = torch.tensor(3.0).expand(10**6, 10**6)
    model = nn.Identity()
    with probe.watch(model, roles="input") as run:
        model(t)
    loaded = probe.load(run.save(tmp_path / "run"))
    assert loaded.histogram("", "input").signed() == [(1, 1, 10**12)]


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_comes_back_as_it_was(text, tmp_path):
    run = records.run(
        [{"module": text, "leaf": text, "type": text, "model": text}],
        name=text,
        unobserved=[{"model": text, "module": text, "type": text, "reason": text}],
    )
    same(run, probe.load(run.save(tmp_path / "run")))


def test_an_open_run_is_saved_with_what_was_seen_so_far(tmp_path):
    model = nn.Linear(2, 2)
    with probe.watch(model, roles="input,output") as run:
        model(torch.ones(1, 2))
        loaded = probe.load(run.save(tmp_path / "run"))
        model(torch.ones(1, 2))
    assert (len(loaded), len(run)) == (2, 4)


# -- writing -------------------------------------------------------------------------------------


class Interrupted(BaseException):
    """What Ctrl-C, or a full disk, is to a write."""


def test_an_interrupted_write_leaves_the_old_file_whole_and_nothing_else(
    trained, tmp_path, monkeypatch
):
    path = trained.save(tmp_path / "run")
    before = path.read_bytes()

    def stops(number):
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", stops)
        with pytest.raises(Interrupted):
            records.run([{}]).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_half_way_leaves_no_file(trained, tmp_path, monkeypatch):
    write = pq.ParquetWriter.write_table

    def stops(writer, table, **options):
        write(writer, table, **options)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", stops)
    with pytest.raises(OSError, match="No space left"):
        trained.save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_folders_on_the_way_are_made_and_home_is_understood(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = trained.save("~/new/folder/run.parquet")
    assert path == tmp_path / "new" / "folder" / "run.parquet"
    same(trained, probe.load("~/new/folder/run.parquet"))


def test_a_folder_is_not_overwritten_by_a_run(trained, tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder"):
        trained.save(tmp_path)


# -- reading what is no run ------------------------------------------------------------------------


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file"):
        probe.load(tmp_path / "nothing")


def test_a_folder_is_not_a_run(tmp_path):
    with pytest.raises((RunFormatError, IsADirectoryError)):
        probe.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello", b"PAR1", b"PAR1" + bytes(100) + b"PAR1"])
def test_a_file_of_something_else_is_not_a_run(content, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(RunFormatError, match="not a saved run"):
        probe.load(path)


def test_a_parquet_file_of_something_else_is_not_a_run(tmp_path):
    pq.write_table(pa.table({"step": [1]}), tmp_path / "other")
    with pytest.raises(RunFormatError, match="not a saved run"):
        probe.load(tmp_path / "other")


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused_with_its_name(trained, tmp_path, keep):
    path = trained.save(tmp_path / "cut.parquet")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(RunFormatError, match=r"cut\.parquet"):
        probe.load(path)


def described(path, change) -> None:
    """Rewrite the description inside a saved run."""
    table = pq.read_table(path)
    about = json.loads(table.schema.metadata[b"probe_nb"])
    change(about)
    metadata = {b"probe_nb": json.dumps(about).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), path)


def test_a_run_of_a_newer_version_is_refused_and_says_what_to_do(trained, tmp_path):
    path = trained.save(tmp_path / "run")
    described(path, lambda about: about.update(version=about["version"] + 1))
    with pytest.raises(RunFormatError, match="Update with"):
        probe.load(path)


NEWER = {
    "a fact": lambda about: about["info"].update(unheard_of=1),
    "a fact of another kind": lambda about: about["info"].update(
        versions={"probe_nb": "9.0"}, devices={"cpu": 1}
    ),
}


@pytest.mark.parametrize("case", NEWER)
def test_what_a_newer_version_says_of_a_run_is_no_damage(trained, tmp_path, case):
    path = trained.save(tmp_path / "run")
    described(path, NEWER[case])
    with pytest.raises(RunFormatError, match="Update with: pip install") as caught:
        probe.load(path)
    assert "damaged" not in str(caught.value)


@pytest.mark.parametrize(
    ("theirs", "newer"),
    [("0.0.9", False), (probe.__version__, False), ("0.10.0", True), ("9.0.0rc1", True), ("x", False)],
)  # fmt: skip
def test_words_of_a_newer_version_are_no_damage(trained, tmp_path, theirs, newer):
    path = trained.save(tmp_path / "run")
    described(path, lambda about: about["info"]["versions"].update(probe_nb=theirs))
    table = pq.read_table(path)
    place = table.schema.names.index("status")
    table = table.set_column(place, "status", pa.array(["unheard_of"] * len(table)))
    pq.write_table(table, path)
    wrote = f"probe_nb {theirs} wrote it, and this is {probe.__version__} .*Update with"
    with pytest.raises(RunFormatError, match=wrote if newer else "it is damaged"):
        probe.load(path)


BROKEN = {
    "another format": lambda about: about.update(format="something"),
    "no version": lambda about: about.pop("version"),
    "a version that is text": lambda about: about.update(version="one"),
    "no description": lambda about: about.pop("info"),
    "a description of the wrong kind": lambda about: about.update(info=[1]),
    "an unknown fact": lambda about: about["info"].update(unheard_of=1),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_description_that_makes_no_sense_is_refused(trained, tmp_path, case):
    path = trained.save(tmp_path / "run")
    described(path, BROKEN[case])
    with pytest.raises(RunFormatError, match="run"):
        probe.load(path)


@pytest.mark.parametrize("column", ["status", "role", "direction", "hist_bins", "max", "shape"])
def test_a_run_with_a_column_missing_or_of_nonsense_is_refused(trained, tmp_path, column):
    path = trained.save(tmp_path / "run")
    table = pq.read_table(path)
    place = table.schema.names.index(column)
    nonsense = table.set_column(place, column, pa.array(["nonsense"] * len(table)))
    for broken in (table.drop_columns([column]), nonsense):
        pq.write_table(broken.replace_schema_metadata(table.schema.metadata), path)
        with pytest.raises(RunFormatError, match="damaged"):
            probe.load(path)


# -- no pickle ---------------------------------------------------------------------------------------


def test_a_file_holds_no_pickle(trained, tmp_path):
    whole = trained.save(tmp_path / "run").read_bytes()
    for protocol in (b"\x80\x03", b"\x80\x04\x95", b"\x80\x05\x95"):
        start = whole.find(protocol)
        while start >= 0:
            with pytest.raises((ValueError, IndexError, OverflowError)):
                list(pickletools.genops(whole[start:]))
            start = whole.find(protocol, start + 1)


def test_loading_never_unpickles_and_never_imports_torch(trained, tmp_path):
    path = trained.save(tmp_path / "run")
    script = f"""
import pickle, sys
import pandas, pyarrow.parquet
def refuse(*args, **kwargs): raise SystemExit("unpickled something")
pickle.load = pickle.loads = pickle.Unpickler = pickle._Unpickler = refuse
import probe_nb
run = probe_nb.load({str(path)!r})
assert len(run.df) == {len(trained)} and run.histogram("0", "output", 0).total == 15
assert "torch" not in sys.modules
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
