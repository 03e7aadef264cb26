"""A file that was cut off, changed or filled with zeros is the run that was saved, or refused."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import warnings
import zlib
from random import Random

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import probe_nb as probe
from probe_nb.errors import ProbeWarning, RunFormatError
from probe_nb.store import beside, pieces, sealed
from probe_nb.store.values import Values
from tests.fuzz.targets import trained


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run with everything in it, in its two files."""
    folder = tmp_path_factory.mktemp("saved")
    trained(keep="*").save(folder / "run.parquet")
    return folder


@pytest.fixture(scope="module")
def whole(saved):
    return parts(probe.load(saved / "run.parquet"))


def parts(run):
    return run.info, [run.df, run.calls(), run.values(), run.kept()]


def loaded(path):
    """Return all parts of a run, None if it was refused with the name of its file."""
    try:
        return parts(probe.load(path))
    except RunFormatError as error:
        text = str(error)
    assert f"`{path}`" in text
    return None


def is_whole(found, whole):
    """Tell whether a run is all that was saved; part of it, or another one, fails."""
    if found is None:
        return False
    assert found[0] == whole[0]
    for one, other in zip(found[1], whole[1], strict=True):
        pd.testing.assert_frame_equal(one, other)
    return True


@pytest.fixture
def place(saved, tmp_path):
    shutil.copy(saved / "run.safetensors", tmp_path / "run.safetensors")
    return tmp_path / "run.parquet"


@pytest.mark.parametrize("tail", ["lost", "zeros"])
def test_a_run_that_ends_at_any_percent_of_its_file_is_refused(saved, whole, place, tail):
    data = (saved / "run.parquet").read_bytes()
    for percent in range(100):
        cut = data[: len(data) * percent // 100]
        place.write_bytes(cut if tail == "lost" else cut.ljust(len(data), b"\0"))
        assert loaded(place) is None, percent
    place.write_bytes(data)
    assert is_whole(loaded(place), whole)


def test_a_run_with_one_bit_changed_anywhere_is_refused(saved, place):
    data, rng = (saved / "run.parquet").read_bytes(), Random(3)
    for percent in range(300):
        made = bytearray(data)
        at = len(data) * percent // 300 + rng.randrange(len(data) // 300)
        made[at] ^= 1 << rng.randrange(8)
        place.write_bytes(made)
        assert loaded(place) is None, at


def test_a_seal_is_seen_by_nobody_else(saved, tmp_path):
    sound, path = saved / "run.parquet", tmp_path / "plain.parquet"
    data = sound.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    seal = data[len(data) - length - 8 - 16 : len(data) - length - 8]
    path.write_bytes(data.replace(seal, b""))  # as a writer of others leaves it
    assert pq.read_table(path).equals(pq.read_table(sound))
    assert probe.load(path).df.equals(probe.load(sound).df)
    before, behind = zlib.crc32(data[: len(data) - length - 24]), zlib.crc32(data[-length - 8 :])
    assert seal == b"probe_nb" + before.to_bytes(4, "little") + behind.to_bytes(4, "little")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"12345678", b"\xff" * 30, bytes(2**16)])
def test_what_has_no_footer_has_no_seal(content, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(content)
    sealed.check(path)


@pytest.mark.parametrize("tail", ["lost", "zeros"])
def test_tensors_that_end_at_any_percent_of_their_file_are_refused(saved, tmp_path, tail):
    data, path = (saved / "run.safetensors").read_bytes(), tmp_path / "run.parquet"
    shutil.copy(saved / "run.parquet", path)
    truth = probe.load(saved / "run.parquet").tensor("first", "input", step=1)
    answers = set()
    for percent in range(0, 100, 2):
        cut = data[: len(data) * percent // 100]
        made = cut if tail == "lost" else cut.ljust(len(data), b"\0")
        (tmp_path / "run.safetensors").write_bytes(made)
        run = probe.load(path)
        assert len(run.df) > 0  # the records need no tensors
        answers.add(answer(run, truth))
    assert answers == {"", "refused"} - ({""} if tail == "lost" else set())


def answer(run, truth):
    """Return "" for the right tensor, or that it was refused with the name of its file."""
    try:
        return "" if run.tensor("first", "input", step=1).equal(truth) else "wrong"
    except RunFormatError as error:
        return "refused" if "run.safetensors`" in str(error) else str(error)


@pytest.mark.parametrize("tail", ["lost", "zeros"])
def test_one_of_many_streamed_files_that_is_cut_costs_what_was_in_it_and_is_told(tmp_path, tail):
    folder = tmp_path / "kept"
    trained(keep=probe.Keep("*", roles="input", folder=str(folder)))
    truth = probe.load(folder).tensor("first", "input", step=1)
    every = sorted(folder.glob("*.safetensors"))
    for number, each in enumerate(every):
        (folder / f"9999999{number}.safetensors").write_bytes(each.read_bytes())
    path, data = every[0], every[0].read_bytes()
    answers = set()
    for percent in range(0, 100, 4):
        cut = data[: len(data) * percent // 100]
        path.write_bytes(cut if tail == "lost" else cut.ljust(len(data), b"\0"))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", ProbeWarning)
            there = probe.load(folder)
            assert there.tensor("first", "input", step=1).equal(truth)  # of the other file
        answers.add(len(told))
        assert all(f"`{path}`" in str(each.message) for each in told)
    assert 1 in answers


# -- small files that say they are large ------------------------------------------------------------

LOAD = """
    import resource, sys, pathlib
    import probe_nb as probe
    from probe_nb.errors import ProbeWarning, RunFormatError
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        run = probe.load(sys.argv[1], memory="16MiB")
        said = f"{len(run)} rows"
    except RunFormatError as error:
        said = str(error)
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base
    print(more // 1024, said)
"""


def read_apart(path):
    """Read in a process of its own; return the MiB that it took, and what was said."""
    code = [sys.executable, "-c", textwrap.dedent(LOAD), str(path)]
    said = subprocess.run(code, capture_output=True, text=True, timeout=250, check=True).stdout
    mebibytes, _, text = said.partition(" ")
    return int(mebibytes), text


def with_rows(saved, path, rows, group):
    """Write a sound file of the first row over and over, the first with all its metadata."""
    held = pq.read_table(saved / "run.parquet").slice(0, 1)
    notes = pq.read_metadata(saved / "run.parquet").metadata
    many = held.take(pa.array(np.zeros(rows, np.int32)))
    known = {key: text for key, text in notes.items() if key.startswith(b"probe_nb")}
    known = {key: text for key, text in known.items() if key == b"probe_nb"}
    options = {"compression": "zstd", "row_group_size": group}
    pq.write_table(many.replace_schema_metadata(known), path, **options)


def test_rows_that_lie_in_one_large_group_are_read_within_the_budget(saved, tmp_path):
    path = tmp_path / "run.parquet"
    with_rows(saved, path, 300_000, 300_000)
    mebibytes, said = read_apart(path)
    assert said.startswith("300000 rows")
    assert mebibytes < 250


def test_more_rows_than_the_bytes_can_hold_are_refused_before_they_are_read(
    saved, tmp_path, monkeypatch
):
    path = tmp_path / "run.parquet"
    with_rows(saved, path, 100_000, 100_000)
    monkeypatch.setattr(pieces, "_DENSE", 100_000 // path.stat().st_size)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", None)
    with pytest.raises(RunFormatError, match="cannot hold 100,000 rows"):
        probe.load(path)


@pytest.mark.parametrize("key", [beside.CALLS, beside.VALUES])
def test_a_small_table_beside_the_records_that_unpacks_to_gigabytes_is_refused(
    saved, tmp_path, key
):
    zeros = pa.table({"step": pa.array(np.zeros(2**27, np.int64))})
    text = beside.encode(zeros)
    assert len(text) < 2**20
    held = pq.read_table(saved / "run.parquet")
    known = dict(pq.read_metadata(saved / "run.parquet").metadata) | {key.encode(): text}
    known = {name: each for name, each in known.items() if name.startswith(b"probe_nb")}
    path = tmp_path / "run.parquet"
    pq.write_table(held.replace_schema_metadata(known), path)
    del zeros
    mebibytes, said = read_apart(path)
    assert f"`{key}`" in said
    assert "cannot hold" in said
    assert mebibytes < 150


def test_a_code_that_leads_outside_of_its_texts_is_refused():
    values = Values()
    table = values.to_table()
    codes = pa.DictionaryArray.from_arrays(pa.array([7], pa.int32()), ["x"], safe=False)
    at = table.column_names.index("kind")
    made = pa.table({n: codes if n == "kind" else pa.nulls(1) for n in table.column_names})
    assert at >= 0
    with pytest.raises(RunFormatError, match="damaged"):
        beside.decode(beside.encode(made))


# -- killed in the middle ---------------------------------------------------------------------------

KILLED = """
    import sys, torch, probe_nb as probe
    from torch import nn
    torch.set_num_threads(1)
    folder = sys.argv[1]
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    keep = probe.Keep("*", roles="output", folder=folder + "/kept")
    with probe.watch(model, keep=keep, memory="1MiB", live=False) as run:
        for step in range(100_000):
            model(torch.full((64, 64), float(step))).sum().backward()
            if step % 50 == 49:
                run.save(folder + "/run.parquet")
                print(len(run), flush=True)
"""


@pytest.mark.parametrize("seed", range(3))
def test_of_a_process_that_is_killed_all_that_was_said_to_be_saved_is_there(tmp_path, seed):
    (tmp_path / "tmp").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    ) as process:
        said = [int(process.stdout.readline()) for _ in range(2 + seed)]
        while not list((tmp_path / "kept").glob("*.safetensors")):
            said.append(int(process.stdout.readline()))
        time.sleep(Random(seed).random() * 0.5)
        process.send_signal(signal.SIGKILL)
        said += [int(line) for line in process.stdout.read().splitlines() if line]
    run = probe.load(tmp_path / "run.parquet")
    assert len(run) >= said[-1]
    kept = probe.load(tmp_path / "kept")
    there = kept.kept()
    assert len(there) > 0
    for row in there[there["module"] == "0"].iloc[:: max(len(there) // 20, 1)].itertuples():
        tensor = kept.tensor("0", "output", step=row.step)
        assert tensor.shape == (64, 64)
    for path in (tmp_path / "kept").glob("*.safetensors"):  # none is half there under its name
        assert path.stat().st_size > 0
    for path in (tmp_path / "tmp").glob("probe_nb-*/*.parquet"):  # rows that were moved to disk
        assert pq.read_table(path).num_rows > 0
