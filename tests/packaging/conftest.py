"""What is built once for all tests of the packaging: the sdist, the wheel, an environment with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: object, **options: object) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def path_without_node(folder: Path) -> str:
    """Return a PATH on which the shell's tools are found, and Node.js is not."""
    folder.mkdir()
    for name in ("sh", "env", "uname"):
        (folder / name).symlink_to(shutil.which(name))
    assert shutil.which("node", path=folder) is None
    assert shutil.which("npm", path=folder) is None
    return str(folder)


@pytest.fixture(scope="session")
def without_node(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("path") / "bin"
    return {**os.environ, "PATH": path_without_node(folder)}


@pytest.fixture(scope="session")
def sdist(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder, ROOT)
    (archive,) = folder.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="session")
def wheel(tmp_path_factory, sdist, without_node) -> Path:
    """Build the wheel from the sdist, on a machine without Node.js."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = (path for path in folder.iterdir() if path.is_dir())
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder]
    run(*command, source, env=without_node)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def metadata(wheel) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="session")
def installed(tmp_path_factory, wheel, without_node) -> Path:
    """Install the wheel, and nothing else, in an empty environment; return its interpreter."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index"]
    run(*pip, wheel, env=without_node)
    return python


@pytest.fixture(scope="session")
def site(installed) -> Path:
    """Return the folder of that environment that holds probe_nb, and nothing that it needs."""
    (folder,) = installed.parents[1].glob("lib/python*/site-packages")
    return folder
