"""The real msProbe, in an environment and processes of its own: importing it patches torch."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.dumps import DUMPS, MsProbe
from tools import msprobe

Runs = Callable[..., str]
HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items):
    """Let one worker run what needs msProbe's dumps: they are made once."""
    for item in items:
        if item.path.is_relative_to(HERE) and "theirs" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("msprobe"))


@pytest.fixture(scope="session")
def msprobe_python() -> Path:
    """Return the interpreter that has msProbe; of several workers one installs it."""
    msprobe.FOLDER.parent.mkdir(exist_ok=True)
    with _locked(msprobe.FOLDER.with_suffix(".lock")):
        return msprobe.python()


@pytest.fixture(scope="session")
def run_msprobe(msprobe_python: Path) -> Runs:
    """Run a script, or `-c` code, where msProbe is; return what it printed."""

    def run(*args: str | Path, cwd: Path) -> str:
        return printed(msprobe_python, *args, cwd=cwd)

    return run


@pytest.fixture(scope="session")
def shared(tmp_path_factory) -> Path:
    """Return a folder that all workers of this run of the tests have in common."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "interop"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def msprobe_jobs(msprobe_python: Path, shared: Path) -> MsProbe:
    """Return msProbe for many commands at once."""
    return MsProbe(msprobe_python, shared)


@pytest.fixture(scope="session")
def theirs(msprobe_jobs: MsProbe, shared: Path) -> dict[str, Path]:
    """Return msProbe's own dumps, by the names of `DUMPS`: the first worker makes them."""
    folders = {name: shared / "theirs" / name for name in DUMPS}
    with _locked(shared / "theirs.lock"):
        if not (shared / "theirs").exists():
            msprobe_jobs.run(
                [
                    {"program": program, "config": config, "folder": str(folders[name])}
                    for name, (program, config) in DUMPS.items()
                ]
            )
    return {name: folder / "dump" for name, folder in folders.items()}


def printed(python: str | Path, *args: str | Path, cwd: Path) -> str:
    """Run a program in a folder, and return what it printed; a test fails with what went wrong."""
    where = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    found = subprocess.run(
        [str(python), *map(str, args)],
        cwd=cwd,
        env=where | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(cwd)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert found.returncode == 0, f"{found.stdout[-3000:]}\n{found.stderr[-6000:]}"
    return found.stdout


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time do what follows."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
