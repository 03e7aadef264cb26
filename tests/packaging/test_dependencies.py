"""What is declared is used, and what is used is declared."""

from __future__ import annotations

import ast
import functools
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.conftest import ROOT

pytestmark = pytest.mark.xdist_group("packaging")

MODULES = {"ipython": "IPython", "scikit-learn": "sklearn", "tensorboardx": "tensorboardX"}
"""What a distribution is imported as, where that is not its name."""

SERVES = {
    "ipywidgets": "anywidget is made of it, and takes one that is too old",
    "jupyterlab": "a program",
    "notebook": "a program",
    "ipykernel": "a program",
    "ipyparallel": "what the user's view comes from; known by what it can do",
    "torch-npu": "torch loads it by itself",
    "probe-nb": "extras of extras",
}
"""What is declared for users and not imported, and why."""

COMES_WITH = {"triton": "torch", "llvmlite": "numba", "yaml": "the user's file of functions"}
"""What is imported where it is there, and declared by nothing of ours."""

BY_NAME = ("import_module", "importlib.import_module", "_library")
"""What imports the module that it is given the name of."""

APART = {"scripts", "peers"}
"""Folders of scripts that run in environments of their own, beside msProbe and beside peers."""

FOR_USERS = ("notebook", "cluster", "xlsx", "npu", "tensorboard", "fast")


class Import(NamedTuple):
    module: str
    path: Path
    deep: bool


@functools.cache
def imports(folder: Path) -> list[Import]:
    """Return what the code of a folder imports from others, wherever in a file it stands."""
    found = []
    for path in folder.rglob("*.py"):
        tree = ast.parse(path.read_bytes())
        top = {id(node) for node in tree.body}
        for node in ast.walk(tree):
            found += [Import(name, path, id(node) not in top) for name in named(node)]
    own = {*sys.stdlib_module_names, "probe_nb", "__main__"}
    return [each for each in found if each.module not in own]


def named(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        names = [node.module]
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME:
        texts = [each.value for each in node.args if isinstance(each, ast.Constant)]
        names = [text for text in texts if re.fullmatch(r"[\w.]+", text)]
    else:
        names = []
    return [name.partition(".")[0] for name in names]


@pytest.fixture(scope="module")
def declared(metadata) -> list[Requirement]:
    return [Requirement(text) for text in metadata.get_all("Requires-Dist")]


def of_extra(declared: list[Requirement], extra: str | None) -> list[Requirement]:
    """Return what an extra asks for; None: what everybody gets."""
    if extra is None:
        return [each for each in declared if each.marker is None]
    return [each for each in declared if each.marker and each.marker.evaluate({"extra": extra})]


def with_extras(declared: list[Requirement], extra: str) -> set[str]:
    """Return all names that an extra brings directly, through extras of extras too."""
    names: set[str] = set()
    for each in [*of_extra(declared, None), *of_extra(declared, extra)]:
        inner = each.extras if each.name == "probe-nb" else ()
        names |= {each.name}.union(*(with_extras(declared, one) for one in inner))
    return names


def as_modules(names: set[str]) -> set[str]:
    return {MODULES.get(name, name.replace("-", "_")) for name in names}


def test_everything_that_is_declared_for_users_is_used(declared):
    used = {each.module.lower() for each in imports(ROOT / "probe_nb")}
    wanted = of_extra(declared, None)
    for extra in FOR_USERS:
        wanted = wanted + of_extra(declared, extra)
    names = {each.name for each in wanted} - set(SERVES)
    assert {name for name in names if MODULES.get(name, name).lower() not in used} == set()


def test_everything_that_is_imported_is_declared(declared):
    known = {each.name for each in of_extra(declared, None)}
    for extra in FOR_USERS:
        known |= with_extras(declared, extra)
    known = {module.lower() for module in as_modules(known)}
    found = {each.module for each in imports(ROOT / "probe_nb")} - set(COMES_WITH)
    assert {name for name in found if name.lower() not in known} == set()


def test_what_only_an_extra_brings_is_imported_where_it_is_needed_alone(declared):
    always = as_modules({each.name for each in of_extra(declared, None)})
    at_the_top = {each for each in imports(ROOT / "probe_nb") if not each.deep}
    others = {each.path.name for each in at_the_top if each.module not in always}
    compiled = {path.name for path in (ROOT / "probe_nb/stats/kernels").glob("[cg]pu_*.py")}
    assert others <= compiled, "files that are loaded where the compiler is there"


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "tools"])
def test_everything_that_the_checks_import_is_declared(declared, folder):
    known = as_modules(with_extras(declared, "test")) | set(COMES_WITH)
    found = {each for each in imports(ROOT / folder) if not APART & set(each.path.parts)}
    own = {"tests", "tools", "benchmarks", "hatch_build", "msprobe"}
    assert {each.module for each in found} - known - own == set()


def test_every_dependency_of_users_has_a_lower_bound(declared):
    wanted = of_extra(declared, None)
    for extra in FOR_USERS:
        wanted = wanted + of_extra(declared, extra)
    free = {each.name for each in wanted if not any(s.operator == ">=" for s in each.specifier)}
    # torch_npu goes by the version of torch; ipykernel comes with what runs notebooks
    assert free == {"torch-npu", "ipykernel"}


def test_every_dependency_is_pinned_for_the_project_itself(declared):
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {
        canonicalize_name(Requirement(line).name) for line in lines if line and line[0] != "#"
    }
    names = {canonicalize_name(each.name) for each in declared} - {"probe-nb", "torch-npu"}
    assert names - pinned == set()
