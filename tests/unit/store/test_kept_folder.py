"""Tensors are streamed into a folder as they come: whole files, whatever happens."""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.errors import ConfigError, ProbeWarning, RunFormatError, SelectionError
from probe_nb.store import listing, stream
from probe_nb.store.keeping import Tensors
from probe_nb.store.kept import Kept
from probe_nb.store.stream import Stream
from probe_nb.terms import RunInfo
from tests.models import no_faults


def info():
    return RunInfo("", "", {"model": "Linear"}, 1, {}, {}, [])


def watched(folder, steps=3, **options):
    model = nn.Linear(2, 2)
    with probe.watch(model, keep=probe.Keep("(root)", folder=folder, **options)) as run:
        for step in range(steps):
            model(torch.full((1, 2), float(step)))
    return run


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("probe_nb")]


def test_each_tensor_is_in_a_file_when_the_watch_is_over_and_none_in_memory(tmp_path):
    with no_faults():
        run = watched(tmp_path / "kept")
    assert threads() == []
    assert all(isinstance(kept.data, tuple) for kept in run.tensors.known())
    assert run.tensors._bytes == 0
    for step in range(3):
        assert run.tensor("(root)", step=step).tolist() == [[step, step]]
    assert not [path for path in (tmp_path / "kept").iterdir() if path.suffix == ".part"]


def test_the_folder_alone_gives_a_run_with_tensors_and_says_that_it_has_no_records(tmp_path):
    run = watched(tmp_path / "kept")
    alone = probe.load(tmp_path / "kept")
    assert alone.kept().equals(run.kept())
    assert alone.tensor("(root)", step=1).tolist() == [[1.0, 1.0]]
    assert (alone.info.models, alone.info.ended, alone.info.steps) == (
        {"model": "Linear"},
        "finished",
        3,
    )
    assert len(alone) == 0
    assert "No records were saved here\n  a folder of kept tensors holds tensors alone" in repr(
        alone
    )


def test_the_files_are_read_by_the_library_without_us(tmp_path):
    import safetensors.torch

    watched(tmp_path / "kept")
    found = {}
    for path in sorted((tmp_path / "kept").glob("*.safetensors")):
        found |= {(path.name, key): t for key, t in safetensors.torch.load_file(path).items()}
    assert [t.tolist() for t in found.values()] == [[[s, s]] for s in (0.0, 1.0, 2.0)]


def test_a_folder_of_another_run_is_left_alone_and_one_beside_it_is_made(tmp_path):
    first = watched(tmp_path / "kept")
    before = {path: path.read_bytes() for path in (tmp_path / "kept").iterdir()}
    second = watched(tmp_path / "kept", steps=1)
    third = watched(tmp_path / "kept", steps=2)
    assert {path: path.read_bytes() for path in (tmp_path / "kept").iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "kept-2", "kept-3"]
    runs = [probe.load(tmp_path / name) for name in ("kept", "kept-2", "kept-3")]
    assert [len(run.kept()) for run in runs] == [3, 1, 2]
    assert first.info.notices == []
    assert "kept-2" in second.info.notices[0]
    assert "kept-3" in third.info.notices[0]


def test_a_tensor_is_there_while_it_is_on_its_way(tmp_path, monkeypatch):
    free = threading.Event()
    write = stream.tensors.write
    monkeypatch.setattr(stream.tensors, "write", lambda *a, **k: (free.wait(), write(*a, **k))[1])
    model = nn.Linear(2, 2)
    with probe.watch(model, keep=probe.Keep("(root)", folder=tmp_path / "kept")) as run:
        model(torch.ones(1, 2))
        assert run.tensor("(root)").tolist() == [[1.0, 1.0]]
        assert not list((tmp_path / "kept").glob("*.safetensors"))
        free.set()
    assert run.tensor("(root)").tolist() == [[1.0, 1.0]]
    assert len(list((tmp_path / "kept").glob("*.safetensors"))) == 1


def test_what_the_disk_is_too_slow_for_is_not_kept_and_nobody_waits(tmp_path, monkeypatch):
    free = threading.Event()
    write = stream.tensors.write
    monkeypatch.setattr(stream.tensors, "write", lambda *a, **k: (free.wait(), write(*a, **k))[1])
    model = nn.Linear(2, 2)
    keep = probe.Keep("(root)", folder=tmp_path / "kept", memory=20)
    with no_faults(), probe.watch(model, keep=keep) as run:
        for step in range(4):  # of 8 bytes each; were it waited for, this would take for ever
            model(torch.full((1, 2), float(step)))
        free.set()
    assert run.kept()["status"].tolist() == ["kept"] * 2 + ["not kept: budget"] * 2
    alone = probe.load(tmp_path / "kept")
    assert alone.kept().equals(run.kept())
    with pytest.raises(SelectionError, match="not kept: budget"):
        alone.tensor("(root)", step=3)


def test_a_folder_that_cannot_be_made_is_said_before_anything_is_watched(tmp_path):
    (tmp_path / "file").write_text("mine")
    model = nn.Linear(2, 2)
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"`folder` is `.*file.*`, which cannot be made"):
            probe.start(model, keep=probe.Keep("(root)", folder=folder))
    assert (tmp_path / "file").read_text() == "mine"


REFUSED = {
    "an alert": {"alerts": {"x": "nonsense("}},
    "a function": {"level": "api", "apis": "relu"},
    "a scaler": {"scaler": object()},
}


@pytest.mark.parametrize("options", REFUSED.values(), ids=REFUSED)
def test_a_watch_that_is_refused_leaves_no_folder(tmp_path, options):
    model, keep = nn.Linear(2, 2), probe.Keep("(root)", folder=tmp_path / "kept")
    with pytest.raises(ConfigError):
        probe.start(model, keep=keep, live=False, **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["probe_nb.session.cpu.warm", "probe_nb.doors._show"])
def test_a_watch_that_is_interrupted_while_it_opens_leaves_the_folder_to_the_next(
    tmp_path, monkeypatch, place
):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            watched(tmp_path / "kept")
    run = watched(tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert run.info.notices == []
    assert [int(t[0, 0]) for t in (run.tensor("(root)", step=step) for step in range(3))] == [
        0,
        1,
        2,
    ]


FULL = """
import resource, signal, sys, warnings
import torch, probe_nb as probe
from torch import nn

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
model = nn.Linear(1000, 2)
keep = probe.Keep("(root)", folder=sys.argv[1])
run = probe.start(model, keep=keep, live=False)
outs = [model(torch.ones(1, 1000)) for _ in range(2)]
run.tensors._stream.finish()
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))  # a disk with no room
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    outs += [model(torch.ones(1, 1000)) for _ in range(3)]
    run.tensors._stream.finish()
    outs.append(model(torch.ones(1, 1000)))
    probe.stop()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert len(outs) == 6
told = [str(each.message) for each in said]
assert len([each for each in told if "cannot be written" in each]) == 1, told
assert [each for each in run.info.notices if "cannot be written" in each], run.info.notices
assert run.kept()["status"].tolist() == ["kept"] * 2 + ["not kept: disk"] * 4
assert len(run.df) == 6 * 4
try:
    run.tensor("(root)", step=3)
except probe.errors.SelectionError as error:
    assert "not kept: disk" in str(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are those of Unix")
def test_where_the_disk_is_full_training_goes_on_and_the_user_is_told_once(tmp_path):
    command = [sys.executable, "-c", FULL, str(tmp_path / "kept")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    alone = probe.load(tmp_path / "kept")
    assert alone.kept()["status"].tolist() == ["kept"] * 2
    assert alone.tensor("(root)", step=1).sum() == 1000
    assert not list((tmp_path / "kept").glob("*.part"))


KILLED = """
import sys, time
import torch, probe_nb as probe
from torch import nn

model = nn.Linear(300, 2)
probe.start(model, keep=probe.Keep("(root)", roles="input,output", folder=sys.argv[1]), live=False)
for step in range(10**9):
    model(torch.full((4, 300), float(step)))
    print(step, flush=True)
    time.sleep(0.002)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system cannot kill")
def test_of_a_process_that_is_killed_all_is_there_but_the_last_moment(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "kept")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        done = 0
        while done < 150 or len(list((tmp_path / "kept").glob("*.safetensors"))) < 3:
            done = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        done += len(process.stdout.read().splitlines())
    run = probe.load(tmp_path / "kept")
    assert run.info.ended == "unknown: it was killed, or is still open"
    kept = run.kept()
    inputs = kept[kept["role"] == "input"]["step"].tolist()
    assert inputs == list(range(len(inputs)))  # nothing is missing in between
    assert 3 <= len(inputs) <= done + 2  # one in each file, at least
    for step in (0, inputs[len(inputs) // 2], inputs[-1]):
        assert torch.equal(run.tensor("(root)", step=step), torch.full((4, 300), float(step)))
    whole = {path.suffix for path in (tmp_path / "kept").iterdir() if path.suffix != ".part"}
    assert whole == {".json", ".safetensors"}


UNSTOPPED = """
import sys
import torch, probe_nb as probe
model = torch.nn.Linear(2, 2)
probe.start(model, keep=probe.Keep("(root)", folder=sys.argv[1]), live=False)
for step in range(5):
    model(torch.full((1, 2), float(step)))
"""


def test_a_script_that_ends_without_a_stop_leaves_all_it_kept(tmp_path):
    command = [sys.executable, "-c", UNSTOPPED, str(tmp_path / "kept")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert (done.returncode, done.stderr) == (0, "")
    assert probe.load(tmp_path / "kept").kept()["step"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_that_was_forked_off_while_the_thread_held_the_lock_does_not_wait_for_it(tmp_path):
    kept = Tensors(None, stream=Stream(str(tmp_path / "kept"), info()))
    kept.open()
    held, done = threading.Event(), threading.Event()

    def holds():
        with kept._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=holds)
    thread.start()
    held.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forks with threads
        pid = os.fork()
    if not pid:
        signal.alarm(250)
        os._exit(7 if kept.finish() == [] else 1)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_reads_what_was_kept_and_writes_nothing(tmp_path):
    model = nn.Linear(2, 2)
    with probe.watch(model, keep=probe.Keep("(root)", folder=tmp_path / "kept")) as run:
        model(torch.ones(1, 2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of forks with threads
            pid = os.fork()
        if not pid:
            try:
                signal.alarm(250)
                there = run.tensor("(root)").tolist() == [[1.0, 1.0]]
                model(torch.zeros(1, 2))
                probe.stop()
                run.tensors.finish()
                os._exit(7 if there and len(run.kept()) == 1 else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        model(torch.full((1, 2), 2.0))
    assert [probe.load(tmp_path / "kept").tensor("(root)", step=s)[0, 0] for s in (0, 1)] == [1, 2]


def test_one_damaged_file_does_not_hide_the_others(tmp_path):
    model = nn.Linear(2, 2)
    with probe.watch(model, keep=probe.Keep("(root)", folder=tmp_path / "kept")) as run:
        for step in range(3):
            model(torch.full((1, 2), float(step)))
            run.tensors._stream.finish()
    second = sorted((tmp_path / "kept").glob("*.safetensors"))[1]
    second.write_bytes(second.read_bytes()[:-5])
    alone = probe.load(tmp_path / "kept")
    with pytest.warns(ProbeWarning, match=second.name):
        assert alone.kept()["step"].tolist() == [0, 2]
    with pytest.raises(RunFormatError, match=second.name):
        run.tensor("(root)", step=1)
    second.unlink()
    with pytest.raises(FileNotFoundError, match=second.name):
        run.tensor("(root)", step=1)


def test_files_of_another_run_in_the_folder_are_not_taken_for_its_own(tmp_path):
    watched(tmp_path / "a")
    watched(tmp_path / "b", steps=1)
    (stranger,) = (tmp_path / "b").glob("*.safetensors")
    stranger.rename(tmp_path / "a" / "99999999.safetensors")
    assert len(probe.load(tmp_path / "a").kept()) == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"format": "another", "version": 1, "id": "a", "info": {}}',
        None,
    ],
)
def test_a_folder_that_is_none_of_ours_is_refused_in_words(tmp_path, text):
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunFormatError, match="no folder into which a run streamed tensors"):
        probe.load(tmp_path)


@pytest.mark.parametrize("change", [{"version": 99}, {"info": {"unheard_of": 1}}])
def test_a_folder_of_a_newer_version_is_refused_as_that(tmp_path, change):
    about = {"format": "probe_nb tensors", "version": 1, "id": "a", "info": {}}
    (tmp_path / "run.json").write_text(json.dumps({**about, **change}))
    with pytest.raises(RunFormatError, match=r"a newer version than this.*Update with"):
        probe.load(tmp_path)


def test_what_it_says_of_the_run_is_json_that_anyone_reads(tmp_path):
    watched(tmp_path / "kept")
    about = json.loads((tmp_path / "kept" / "run.json").read_text())
    assert about["info"]["config"]["keep"]["select"] == ["(root)"]
    assert about["info"]["ended"] == "finished"


WHERE = dict.fromkeys(("step", "call", "leaf", "micro_step", "direction", "model"))


def entry(step, size):
    return Kept("m", "a", "forward", "input", "0", step, 0, 0, -1, "uint8", (size,), size)


def test_many_small_tensors_share_files_and_large_ones_do_not_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "_CHUNK", 1000)
    monkeypatch.setattr(stream.Stream, "pause", 0.3)
    kept = Tensors(None, stream=Stream(str(tmp_path / "kept"), info()))
    kept.open()
    for step in range(100):
        kept.take(entry(step, 10), lambda: np.zeros(10, np.uint8))
    kept.take(entry(100, 5000), lambda: np.zeros(5000, np.uint8))
    kept.take(entry(101, 10), lambda: np.zeros(10, np.uint8))
    assert kept.finish() == []
    files = list((tmp_path / "kept").glob("*.safetensors"))
    assert 2 <= len(files) <= 20
    assert [each.step for each in kept.known()] == [*range(102)]
    assert all(each.data.result().nbytes == each.bytes for each in kept.known())


def test_of_very_many_in_files_the_older_ones_take_no_memory_and_are_read_when_asked_for(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(listing, "LISTED", 10)
    monkeypatch.setattr(stream, "_CHUNK", 40)
    monkeypatch.setattr(stream.Stream, "pause", 0.0)
    gc.collect()
    before = sum(type(each) is Kept for each in gc.get_objects())
    run = watched(tmp_path / "kept", steps=100)
    gc.collect()
    assert sum(type(each) is Kept for each in gc.get_objects()) - before <= 30
    found = run.kept()
    assert found["step"].tolist() == [*range(100)]
    assert set(found["status"]) == {"kept"}
    for step in (0, 50, 99):
        assert run.tensor("(root)", step=step).tolist() == [[step, step]]
    again = pickle.loads(pickle.dumps(run))
    assert again.kept()["step"].tolist() == [*range(100)]
    assert again.tensor("(root)", step=3).tolist() == [[3, 3]]


def test_where_older_ones_are_in_files_what_the_disk_refuses_is_listed_too(tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "LISTED", 10)
    kept = Tensors(25, stream=Stream(str(tmp_path / "kept"), info()))
    kept.open()
    for step in range(60):
        kept.take(entry(step, 10), lambda: np.zeros(10, np.uint8))
        kept.take(entry(step, 30), lambda: np.zeros(30, np.uint8))  # more than the budget
        kept.finish()
    known = kept.known()
    assert [each.step for each in known] == [step for step in range(60) for _ in range(2)]
    assert [each.status for each in known] == ["kept", "not kept: budget"] * 60
    assert kept.tensor("a", "input", **WHERE | {"step": 1}).tolist() == [0] * 10


def test_a_stream_that_was_finished_goes_on_when_more_comes(tmp_path):
    kept = Tensors(None, stream=Stream(str(tmp_path / "kept"), info()))
    kept.open()
    for step in range(3):
        kept.take(entry(step, 10), lambda step=step: np.full(10, step, np.uint8))
        kept.finish()
        kept.finish()
        assert threads() == []
    assert [each.data.result()[0] for each in kept.known()] == [0, 1, 2]
    assert Path(tmp_path / "kept").is_dir()
