"""Bars in a pseudo terminal: after a second, gone at the end, and only where somebody looks."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb import progress as bars
from probe_nb.progress import along, progress

ROOT = Path(__file__).parents[2]
BAR = re.compile(r"\r *(\w[\w ]*): +(\d+)%\|")
SOON = "from probe_nb import progress as bars\nbars._DELAY = 0.0\n"
"""Whatever is told of is long."""

LONG = """
import itertools, sys, threading, time
ticks = itertools.count()
now = [1e9]
time.time = time.monotonic = lambda: now[0]
def wait():
    now[0] = 1e9 + (next(ticks) + 1) / 10
    pause(0.002)
pause = time.sleep
from probe_nb.progress import progress
def long(of=14, fails_at=99):
    with progress("Waiting", of) as told:
        for done in range(of):
            wait()
            told(1)
            if done == fails_at:
                raise ValueError
"""
"""What takes a tenth of a second for each, by a clock that no other work on the machine moves."""


class Terminal:
    """A script whose output goes to a terminal of 80 columns."""

    def __init__(self, script: str, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 80)) if hasattr(termios, "tcsetwinsize") else None
        unset = {k: v for k, v in os.environ.items() if not k.startswith("TQDM_")}
        environment = {"COLUMNS": "80", "LINES": "24", "PYTHONPATH": str(ROOT), **environment}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", script],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=unset | environment,
        )
        os.close(theirs)
        self.text = ""

    def until(self, word: str | None) -> str:
        """Read up to a word, or up to the end."""
        while word is None or word not in self.text:
            try:
                found = os.read(self._ours, 65_536)
            except OSError:  # the other end is closed
                break
            if not found:
                break
            self.text += found.decode(errors="replace")
        if word is None:
            self.process.wait(250)
            os.close(self._ours)
        return self.text


def seen(script: str, **environment: str) -> str:
    """Return all that was written to the terminal."""
    return Terminal(script, **environment).until(None)


def left(text: str) -> list[str]:
    """Return the lines that a terminal shows in the end."""
    lines, row, column = [""], 0, 0
    for each in re.findall(r"\x1b\[A|\r|\n|[^\r\n\x1b]+", text):
        if each == "\r":
            column = 0
        elif each == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif each == "\x1b[A":
            row -= 1
        else:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + each + line[column + len(each) :]
            column += len(each)
    return [line.rstrip() for line in lines if line.strip()]


def test_what_takes_longer_than_a_second_has_a_bar_that_is_gone_at_the_end():
    text = seen(LONG + "long(); print('done')")
    found = BAR.findall(text)
    assert {name for name, _ in found} == {"Waiting"}
    assert found[-1] == ("Waiting", "100")
    assert left(text) == ["done"]


def test_what_is_short_has_none():
    assert seen(LONG + "long(4); print('done')") == "done\r\n"


def test_a_bar_counts_what_was_done_before_it_appeared():
    shares = [int(share) for _, share in BAR.findall(seen(LONG + "long()"))]
    assert [share for share in shares if 0 < share < 60] == []  # ten of fourteen were done
    assert shares[-1] == 100


@pytest.mark.parametrize("value", ["1", "true"])
def test_it_is_turned_off_as_all_bars_of_tqdm_are(value):
    assert seen(LONG + "long(); print('done')", TQDM_DISABLE=value) == "done\r\n"
    later = "import os, tqdm\nos.environ['TQDM_DISABLE'] = '1'\n"
    assert seen(later + LONG + "long(); print('done')") == "done\r\n"


def test_an_error_takes_the_bar_away():
    text = seen(LONG + "try:\n    long(fails_at=12)\nexcept ValueError:\n    print('caught')")
    assert BAR.findall(text)
    assert left(text) == ["caught"]


def test_an_interrupt_takes_the_bar_away():
    heard = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    caught = "try:\n    long(10**6)\nexcept KeyboardInterrupt:\n    print('interrupted')"
    script = LONG + heard + caught  # a shell may have had it ignored
    terminal = Terminal(script)
    terminal.until("Waiting:")
    terminal.process.send_signal(signal.SIGINT)
    assert left(terminal.until(None)) in (["interrupted"], ["^Cinterrupted"])


def test_threads_have_bars_too_and_none_of_them_is_left():
    script = LONG + (
        "each = [threading.Thread(target=long) for _ in range(2)]\n"
        "[t.start() for t in each]; [t.join() for t in each]\n"
        "print(len(threading.enumerate()), 'thread')"
    )
    text = seen(script)
    assert BAR.findall(text)
    assert left(text) == ["1 thread"]


def test_where_nobody_looks_nothing_is_written():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SOON + LONG + "long(3)"],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=250,
        check=True,
    )
    assert (done.stdout, done.stderr) == (b"", b"")


def test_a_bar_that_cannot_be_made_is_no_error(monkeypatch):
    monkeypatch.setattr(bars, "_DELAY", 0.0)
    monkeypatch.setattr(sys, "stderr", None)  # as under pythonw
    assert [*along("abc", "Waiting", 3)] == ["a", "b", "c"]

    def broken(**_):
        raise RuntimeError("no")

    monkeypatch.setattr(bars, "_kind", broken)
    assert [*along("abc", "Waiting", 3)] == ["a", "b", "c"]


def test_a_bar_that_breaks_on_the_way_is_no_error(monkeypatch):
    class Broken:
        n = 0

        def __init__(self, **_):
            pass

        def update(self, _):
            raise OSError("the terminal is gone")

        close = update

    monkeypatch.setattr(bars, "_DELAY", 0.0)
    monkeypatch.setattr(bars, "_kind", lambda **_: Broken)
    with progress("Waiting", 2) as told:
        told(1)
        told(1)


# -- who has bars ---------------------------------------------------------------------------------


WATCHED = """
import torch, probe_nb as probe
from torch import nn
from probe_nb.store import merging
def recorded(**options):
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    with probe.watch(model, keep=probe.Keep("*", roles="input, output"), **options) as run:
        model(torch.ones(1, 2))
    return run, model
run, model = recorded()
run.save("one.parquet")
run.write_dump("dump")
import dataclasses, os
os.makedirs("job", exist_ok=True)
for rank in range(2):
    run.info.rank, run.info.world = rank, 2
    run.save(f"job/rank{rank}.parquet")
run.info.rank = run.info.world = None
bars._DELAY = 0.0
print("<begin>")
"""


LINES = {
    "probe.load('one.parquet')": ["Loading"],
    "probe.load('job')": ["Loading ranks", "Merging ranks"],
    "probe.read_dump('dump')": ["Reading"],
    "run.save('two.parquet')": ["Saving", "Saving tensors"],
    "run.write_dump('again')": ["Writing"],
    "probe.compare(run, run)": ["Comparing"],
    "probe.compare(run, run, progress=False)": [],
    "run.replay('(root)', model)": ["Replaying"],
}


def test_everything_that_may_be_long_tells_how_far_it_is(tmp_path):
    script = f"import os\nos.chdir({str(tmp_path)!r})\n" + SOON.replace("0.0", "99.0") + WATCHED
    for number, line in enumerate(LINES):
        script += f"_ = {line}\nprint('<{number}>')\n"
    text = seen(
        script, TQDM_MININTERVAL="0"
    )  # what is over in a tenth of a second is drawn as well
    told = [text[text.index("<begin>") : text.index("<0>")]]
    told += [text[text.index(f"<{n}>") : text.index(f"<{n + 1}>")] for n in range(len(LINES) - 1)]
    named = [list(dict.fromkeys(name for name, _ in BAR.findall(each))) for each in told]
    assert dict(zip(LINES, named, strict=True)) == LINES
    assert left(text)[-1 - len(LINES) :] == ["<begin>", *(f"<{n}>" for n in range(len(LINES)))]


class Heard:
    """Stands for tqdm, and notes what it is told."""

    made: ClassVar[list[Heard]] = []

    def __init__(self, *, desc, total, **_):
        self.what, self.total, self.n, self.open = desc, total, 0, True
        Heard.made.append(self)

    def update(self, more):
        assert self.open
        self.n += more

    def close(self):
        self.open = False


@pytest.fixture
def heard(monkeypatch):
    monkeypatch.setattr(bars, "_DELAY", 0.0)
    monkeypatch.setattr(bars, "_kind", lambda **_: Heard)
    monkeypatch.setattr(Heard, "made", [])
    return Heard.made


def test_what_is_told_comes_to_the_whole(heard, tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    with probe.watch(model, keep=probe.Keep("*", roles="input, output")) as run:
        for _ in range(3):
            model(torch.ones(1, 2))
    run.save(tmp_path / "run.parquet")
    probe.load(tmp_path / "run.parquet")
    run.write_dump(tmp_path / "dump")
    probe.read_dump(tmp_path / "dump")
    run.replay("(root)", model)
    sizes = [each.stat().st_size for each in (tmp_path / "dump").rglob("*.json")]
    assert [(each.what, each.total) for each in heard] == [
        ("Saving", len(run)),
        ("Saving tensors", sum(run.kept()["bytes"])),
        ("Loading", (tmp_path / "run.parquet").stat().st_size),
        ("Writing", 2 * len(run)),
        ("Reading", sum(sizes)),
        ("Replaying", 14),
    ]
    shares = {each.what: each.n / each.total for each in heard}
    assert 0.9 < shares.pop("Reading") <= 1  # a file that says nothing of any call is left alone
    assert [*shares.values()] == pytest.approx([1.0] * 5)
    assert not any(each.open for each in heard)


def test_a_comparison_tells_of_at_most_the_whole(heard):
    model = nn.Linear(2, 2)
    with probe.watch(model, keep="*") as run:
        model(torch.ones(1, 2))
    probe.compare(run, run)
    (bar,) = heard
    assert bar.total == 100
    assert 50 < bar.n <= 100


def test_gathering_tells_of_each(heard, monkeypatch):
    from probe_nb import distributed

    model = nn.Linear(2, 2)
    with probe.watch(model) as run:
        model(torch.ones(1, 2))

    class Engine:
        def apply_async(self, call, name):
            return self

        def get(self):
            return distributed._packed(lambda: run)

    class View:
        client: ClassVar = {0: Engine(), 1: Engine()}
        targets = (0, 1)

    both = probe.gather(View())
    assert np.unique(both.df["rank"]).tolist() == [0, 1]
    told = [(each.what, each.total, each.n) for each in heard if each.what == "Gathering engines"]
    assert told == [("Gathering engines", 2, 2)]
    assert not any(each.open for each in heard)


def test_a_bar_in_a_thread_is_told_of_in_that_thread(heard):
    def work():
        with progress("Waiting", 3) as told:
            for _ in range(3):
                told(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [(each.n, each.open) for each in heard] == [(3, False)] * 8
