"""A disk that is full, or read-only, while something is written: the training goes on, bit by bit.

What was written before stays whole, nothing half is left under its name, and one warning says what
was lost. A full disk is a limit that the system itself holds; a read-only one refuses what would
change it, as the audit hooks of Python can.
"""

from __future__ import annotations

import csv
import io
import json
import os
import struct
import subprocess
import sys
import textwrap

import pytest

import probe_nb as probe

PROGRAM = """
    import errno, json, os, resource, signal, sys, warnings
    import torch, probe_nb as probe
    from torch import nn
    from probe_nb.debugger import PrecisionDebugger
    from probe_nb.errors import ProbeWarning
    from probe_nb.monitor import TrainerMon
    from probe_nb.reproduce.saving import random_save

    SINKS = ["spill", "kept", "csv", "tensorboard", "alerts", "debugger", "random"]

    kind, top = sys.argv[1:]
    fault, folder = "none", top
    torch.set_num_threads(1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    refusing = False

    def hook(event, args):
        if not refusing:
            return
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in ("os.mkdir", "os.rename"):
            path = os.path.abspath(os.fsdecode(args[0])) if not isinstance(args[0], int) else ""
            if path.startswith(top):
                raise OSError(errno.EROFS, "Read-only file system", path)

    sys.addaudithook(hook)

    def lose(on):
        global refusing
        if fault == "full":
            limit = 1000 if on else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        elif fault == "read-only":
            refusing = on

    def made():
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Sequential(nn.Linear(20, 20), nn.Tanh()) for _ in range(4)])
        return model, torch.optim.AdamW(model.parameters())

    def train(model, optimizer, each=lambda step: None, wait=lambda: None):
        for step in range(9):
            if step in (3, 6):
                wait()
                lose(step == 3)
            each(step)
            model(torch.full((3, 20), step / 9)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach().clone() for p in model.parameters()]

    truth = train(*made())
    fault = kind

    def run_of(sink, folder):
        model, optimizer = made()
        if sink == "spill":
            with probe.watch(model, optimizer=optimizer, memory=20_000, live=False) as run:
                found = train(model, optimizer)
            assert len(run.frame(step=0))
        elif sink == "kept":
            keep = probe.Keep("*", roles="input,output", folder=folder + "/kept")
            with probe.watch(model, optimizer=optimizer, keep=keep, live=False) as run:
                found = train(model, optimizer, wait=lambda: run.tensors._stream.finish())
        elif sink in ("csv", "tensorboard", "alerts"):
            os.environ["MONITOR_OUTPUT_DIR"] = folder + "/monitor"
            asked = {"xy_distribution": True, "ops": ["min", "norm"], "format": "csv"}
            asked |= {"format": "tensorboard"} if sink == "tensorboard" else {}
            rule = {"rule_name": "AnomalyNan", "args": {"threshold": 0.0}}
            asked |= {"alert": {"rules": [rule], "dump": True}} if sink == "alerts" else {}
            with TrainerMon(asked | {"step_count_per_record": 100}) as monitor:
                monitor.set_monitor(model, optimizer)
                found = train(model, optimizer)
        elif sink == "debugger":
            debugger = PrecisionDebugger(dump_path=folder + "/dump", task="statistics", level="mix")

            def each(step):
                if step:
                    debugger.stop()
                    debugger.step()
                debugger.start(model)

            found = train(model, optimizer, each)
            debugger.stop()
            debugger.step()
        elif sink == "random":
            calls = random_save(folder + "/random")
            found = train(model, optimizer, lambda step: [torch.rand(1) for _ in range(60)])
            calls.stop()
        return found

    for sink in SINKS:
        os.mkdir(f"{top}/{sink}")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = run_of(sink, f"{top}/{sink}")
            lose(False)
        assert all(map(torch.equal, truth, found)), f"{sink}: the training changed"
        ours = [str(each.message) for each in said if issubclass(each.category, ProbeWarning)]
        others = [str(each.message) for each in said if not issubclass(each.category, ProbeWarning)]
        print(json.dumps([sink, ours, others]), flush=True)
"""

SINKS = ["spill", "kept", "csv", "tensorboard", "alerts", "debugger", "random"]


@pytest.fixture(scope="module", params=["full", "read-only"])
def lost(request, tmp_path_factory):
    """Train once for each way of writing; return the folder, and what each warned of."""
    folder = tmp_path_factory.mktemp("lost")
    (folder / "tmp").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), request.param, str(folder)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env={**os.environ, "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"},
        cwd=folder,
    )
    said = [json.loads(line) for line in done.stdout.splitlines() if line]
    errors = done.stderr[-3000:]
    return request.param, folder, {sink: rest for sink, *rest in said}, errors


@pytest.mark.parametrize("sink", SINKS)
def test_a_lost_disk_costs_what_was_to_be_written_and_nothing_else(lost, sink):
    fault, folder, said, errors = lost
    assert "Traceback" not in errors, errors
    ours, others = said[sink]
    assert others == []
    assert 1 <= len(ours) <= 2, ours  # the second says at the end how much it was
    words = ("Read-only file system",) if fault == "read-only" else ("File too large",)
    assert any(word in ours[0] for word in words), ours
    assert not list(folder.rglob("*.part")), "something half is left"
    CHECKS[sink](folder / sink)


def whole_csv(folder):
    (path,) = folder.glob("monitor/*/actv_0-99.csv")
    rows = [*csv.reader(path.read_text().splitlines())]
    assert len({len(row) for row in rows}) == 1
    steps = {row[rows[0].index("step")] for row in rows[1:]}
    assert {"0", "1", "2", "6", "7", "8"} <= steps


def whole_events(folder):
    for path in folder.glob("monitor/*/*/events.*"):
        data, records = path.read_bytes(), 0
        while data:
            (size,) = struct.unpack_from("<Q", data)
            assert len(data) >= size + 16
            data, records = data[size + 16 :], records + 1
        assert records > 1


def whole_alerts(folder):
    (path,) = folder.glob("monitor/anomaly_detected/rank0/anomaly.json")
    found = json.loads(path.read_text())
    steps = {each["step"] for each in found.values()}
    assert {0, 1, 2, 6, 7, 8} <= steps


def whole_dump(folder):
    run = probe.read_dump(folder / "dump")  # the files of a step are written as the next begins
    assert set(run.df["step"]) == {0, 1, 5, 6, 7, 8}


def whole_kept(folder):
    run = probe.load(folder / "kept")
    there = run.kept()
    assert {0, 1, 2, 6, 7, 8} <= set(there[there["status"] == "kept"]["step"])
    for row in there[there["status"] == "kept"].itertuples():
        assert run.tensor(row.module, row.role, step=row.step).numel() == 60


def whole_random(folder):
    (path,) = folder.glob("random/*.csv")
    rows = [*csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""))]
    assert len({len(row) for row in rows}) == 1


def nothing(folder):
    assert list((folder.parent / "tmp").iterdir()) == []


CHECKS = {
    "csv": whole_csv,
    "tensorboard": whole_events,
    "alerts": whole_alerts,
    "debugger": whole_dump,
    "kept": whole_kept,
    "random": whole_random,
    "spill": nothing,
}


# -- what the user asks for: an error, and all is as it was -----------------------------------------

ASKED = """
    import json, pathlib, resource, signal, sys
    import torch, probe_nb as probe
    from torch import nn

    folder = sys.argv[1]
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    model = nn.Sequential(*[nn.Linear(30, 30) for _ in range(5)])
    with probe.watch(model, keep="*", live=False, level="mix") as run:
        for _ in range(3):
            model(torch.rand(20, 30)).sum().backward()
    acts = {
        "save": lambda: run.save(folder + "/run.parquet"),
        "dump": lambda: run.write_dump(folder + "/dump", overwrite=True),
        "csv": lambda: run.to_monitor_csv(folder + "/csv"),
        "board": lambda: run.to_tensorboard(folder + "/board"),
        "structure": lambda: run.structure().to_module_struct(folder + "/struct.json"),
    }
    files = lambda: {str(p): p.read_bytes() for p in pathlib.Path(folder).rglob("*") if p.is_file()}
    for again in (False, True):
        for name, act in acts.items():
            if again:
                act()
            before, said = files(), "nothing"
            resource.setrlimit(resource.RLIMIT_FSIZE, (600, resource.RLIM_INFINITY))
            try:
                act()
            except OSError as error:
                said = str(error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            after = files()
            changed = [p for p in before if after.get(p) != before[p]]
            print(json.dumps([name, again, said, changed, sorted(after.keys() - before.keys())]))
"""


def test_what_is_asked_for_and_finds_no_room_is_an_error_and_changes_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ASKED), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 10
    for name, again, said, changed, left in found:
        assert "File too large" in said, (name, again)
        assert changed == left == [], (name, again)


FULL_FILE = """
import resource, signal, sys
from probe_nb.appending import appended
from pathlib import Path

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
old, new = Path(sys.argv[1], "old"), Path(sys.argv[1], "new")
appended(old, b"one\\n")
resource.setrlimit(resource.RLIMIT_FSIZE, (7, 7))  # the system writes the first bytes, and no more
for path in (old, new):
    try:
        appended(path, b"two and more\\n")
    except OSError:
        continue
    sys.exit(1)
"""


def test_what_finds_no_room_is_not_added_in_part(tmp_path):
    subprocess.run([sys.executable, "-c", FULL_FILE, str(tmp_path)], check=True, timeout=250)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"old": b"one\n"}
