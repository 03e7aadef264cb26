"""What is built can be installed: the wheel and the sdist hold the inspector's bundle, and need no Node.js."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, run

pytestmark = pytest.mark.xdist_group("packaging")

BUNDLE = "probe_nb/view/static/widget.js"


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


def test_the_wheel_describes_the_project(metadata):
    assert metadata["Name"] == "probe-nb"
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["License-File"] == "LICENSE"
    assert metadata.get_all("Project-URL") is None, "no address is known yet"
    users = {"notebook", "demo", "fast", "npu", "xlsx", "tensorboard", "cluster"}
    assert set(metadata.get_all("Provides-Extra")) == users | {"docs", "test", "dev"}


def test_the_licence_is_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/licenses/LICENSE"))
        assert archive.read(name) == (ROOT / "LICENSE").read_bytes()


def test_the_sdist_holds_the_bundle_and_its_sources(sdist):
    held = sdist_names(sdist)
    for name in ("package.json", "package-lock.json", "src/widget.ts"):
        assert f"probe_nb/view/frontend/{name}" in held
    assert BUNDLE in held
    assert [name for name in held if "node_modules" in name] == []


def tracked() -> set[str]:
    """Return the files of the project; of an unpacked sdist, which no git tracks, its tests."""
    if (ROOT / "PKG-INFO").is_file():
        return {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")}
    listed = run("git", "ls-files", "-z", cwd=ROOT).split("\0")
    return {name for name in listed if name and (ROOT / name).is_file()}


def test_the_sdist_holds_the_whole_project_so_that_its_tests_run_there(sdist):
    assert sorted(tracked() - set(sdist_names(sdist))) == []


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
