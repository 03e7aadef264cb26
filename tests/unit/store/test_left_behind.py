"""What a killed process left is removed by the next one, and nothing that anybody may still need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from probe_nb.store import left_behind
from probe_nb.store.blocks import Folder

KILLED = """
import os, signal
from probe_nb.store.blocks import Folder
folder = Folder()
(folder.path / "0.parquet").write_bytes(b"rows")
print(folder.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

FORKED = """
import os, pathlib, sys
from probe_nb.store import left_behind
from probe_nb.store.blocks import Folder
folder = Folder()
if not (child := os.fork()):
    os._exit(0)
os.waitpid(child, 0)
left_behind.sweep(pathlib.Path(sys.argv[1]))
assert folder.path.is_dir()
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return the place of temporary folders."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def abandoned(place: Path, name: str = "probe_nb-old") -> Path:
    """Return a folder whose owner is gone."""
    folder = place / name
    folder.mkdir()
    (folder / "0.parquet").write_bytes(b"rows")
    lock = left_behind.held(folder)
    assert lock is not None
    lock.close()
    return folder


def test_the_folder_of_a_killed_process_goes_with_the_next_that_is_made(place):
    process = subprocess.run(
        [sys.executable, "-c", KILLED], env=dict(os.environ), stdout=subprocess.PIPE, check=False
    )
    left = Path(process.stdout.decode().strip())
    assert left.parent == place
    assert (left / "0.parquet").exists()
    mine = Folder()
    assert not left.exists()
    assert mine.path.is_dir()


def test_a_folder_whose_owner_lives_stays(place):
    first, second = Folder(), Folder()
    left_behind.sweep(place)
    assert first.path.is_dir()
    assert second.path.is_dir()


def test_a_forked_child_that_ends_does_not_free_the_folder_of_its_parent(place):
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED, str(place)], check=True)


def test_a_folder_goes_with_its_run_and_its_lock_is_closed(place):
    folder = Folder()
    path, (lock,) = folder.path, folder._remove.peek()[2][-1]
    assert not lock.closed
    del folder
    assert not path.exists()
    assert lock.closed


def test_what_may_be_somebody_elses_stays(place, monkeypatch):
    unlocked = place / "probe_nb-unlocked"  # of an older version, or none of ours
    unlocked.mkdir()
    elsewhere = abandoned(place, "probe_nb-elsewhere")  # another computer, or before it was started
    (elsewhere / "owner").write_bytes(b"another boot")
    other_name = abandoned(place, "something")
    link = place / "probe_nb-link"
    link.symlink_to(other_name)
    left_behind.sweep(place)
    assert all(each.exists() for each in (unlocked, elsewhere, other_name, link))
    strangers = abandoned(place)
    monkeypatch.setattr("os.getuid", lambda: strangers.stat().st_uid + 1)
    left_behind.sweep(place)
    assert strangers.exists()
    monkeypatch.undo()
    left_behind.sweep(place)
    assert not strangers.exists()


@pytest.mark.parametrize("missing", ["fcntl", "_BOOT"])
def test_where_locks_cannot_be_had_nothing_is_removed(place, monkeypatch, missing):
    left = abandoned(place)
    monkeypatch.setattr(left_behind, missing, None if missing == "fcntl" else place / "nothing")
    folder = Folder()
    assert left.exists()
    assert [path.name for path in folder.path.iterdir()] in ([], [".owner"])
