"""What is built can be installed: the wheel and the sdist hold the inspector's bundle, and need no Node.js."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("packaging")

ROOT = Path(__file__).parents[2]
BUNDLE = "probe_nb/view/static/widget.js"


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


@pytest.fixture(scope="module")
def without_node(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("path") / "bin"
    return {**os.environ, "PATH": path_without_node(folder)}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder, ROOT)
    (archive,) = folder.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
def installed(tmp_path_factory, wheel, without_node) -> Path:
    """Install the wheel, and nothing else, in an empty environment; return its interpreter."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index"]
    run(*pip, wheel, env=without_node)
    return python


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def sdist_names(sdist: Path) -> list[str]:
    with tarfile.open(sdist) as archive:
        return [name.partition("/")[2] for name in archive.getnames()]


def test_the_wheel_holds_the_bundle(wheel):
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(BUNDLE) == (ROOT / BUNDLE).read_bytes()


def test_the_wheel_holds_the_package_alone(wheel):
    tops = {name.partition("/")[0] for name in names(wheel)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"probe_nb"}
    assert [name for name in names(wheel) if "node_modules" in name or "frontend" in name] == []
    assert [name for name in names(wheel) if name.endswith((".ts", "package.json"))] == []


def test_the_wheel_holds_every_module(wheel):
    package = ROOT / "probe_nb"
    modules = {
        path.relative_to(ROOT).as_posix()
        for path in package.rglob("*.py")
        if "frontend" not in path.parts
    }
    assert modules
    assert modules <= set(names(wheel))


def test_the_wheel_describes_the_project(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    assert metadata["Name"] == "probe-nb"
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["License-File"] == "LICENSE"
    extras = {"notebook", "demo", "fast", "npu", "test", "dev", "xlsx", "tensorboard", "cluster"}
    assert set(metadata.get_all("Provides-Extra")) == extras


def test_the_sdist_holds_the_bundle_and_its_sources(sdist):
    held = sdist_names(sdist)
    for name in ("package.json", "package-lock.json", "src/widget.ts"):
        assert f"probe_nb/view/frontend/{name}" in held
    assert BUNDLE in held
    assert [name for name in held if "node_modules" in name] == []


def test_an_installed_wheel_offers_the_bundle_and_its_version(installed, wheel, tmp_path):
    """The door imports nothing heavy, so it opens where not even torch is installed."""
    script = f"""
import sys
from importlib.resources import files
import probe_nb
assert probe_nb.__file__.startswith(sys.prefix), probe_nb.__file__
assert (files(probe_nb) / {BUNDLE.partition("/")[2]!r}).stat().st_size > 1000
print(probe_nb.__version__)
"""
    version = run(installed, "-I", "-c", script, cwd=tmp_path).strip()
    assert wheel.name.startswith(f"probe_nb-{version}-")
