"""What the documentation claims of tests, options and statuses is what there is."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path

import probe_nb
from probe_nb.reasons import REMEDIES
from probe_nb.terms import COUNTS, MODULE_ROLES, STATISTICS, STATUSES

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@cache
def functions(file: Path) -> set[str]:
    """Return the names of all functions and methods in a file."""
    if not file.exists():
        return set()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_every_test_that_a_page_names_exists():
    named = {found for page in PAGES for found in TEST.findall(read(page))}
    assert named
    tests = {
        file: {name for name in functions(ROOT / file) if name.startswith("test_")}
        for file, _ in named
    }
    assert {f"{file}::{name}" for file, name in named if name not in tests[file]} == set()


def test_every_delivered_feature_names_a_test():
    delivered = read("docs/features.md").split("## Delivered")[1].split("## Not there yet")[0]
    sections = re.split(r"^### ", delivered, flags=re.MULTILINE)[1:]
    assert {section.split()[0] for section in sections} == {
        *(f"A{n}" for n in range(1, 12)),
        *(f"B{n}" for n in range(1, 17)),
        *(f"C{n}" for n in range(1, 11)),
        *(f"D{n}" for n in range(1, 8)),
        *("E1", "E2", "E3", "E4", "E5", "E6", "E7", "E8", "Self-check"),
    }
    assert [section.split("\n")[0] for section in sections if not TEST.search(section)] == []


def test_every_number_status_and_role_is_explained():
    statistics, glossary = read("docs/statistics.md"), read("docs/glossary.md")
    for word in {*STATISTICS, *COUNTS, *STATUSES}:
        assert re.search(rf"^\|[^|]*`{word}`", statistics, re.MULTILINE), word
    for word in MODULE_ROLES:
        assert f"| `{word}` |" in glossary


def test_every_reason_of_the_coverage_has_a_heading():
    """A reason that is a status of rows stands in the table of statuses."""
    headings = set()
    for line in re.findall(r"^### (.+)$", read("docs/troubleshooting.md"), re.MULTILINE):
        headings |= {line, *line.split(", ")}
    assert REMEDIES.keys() - set(STATUSES) - headings == set()


def test_every_public_name_and_option_is_explained():
    """In the page of the magics, or where it is shown: nothing public has to be guessed."""
    pages = "\n".join(read(page) for page in PAGES)
    for name in set(probe_nb.__all__) - {"Run", "errors", "__version__"}:
        assert f"probe.{name}" in pages, name
    for name in {each for each in dir(probe_nb.Run) if not each.startswith("_")}:
        assert f"`run.{name}" in read("docs/magics.md"), name
    for option in inspect.signature(probe_nb.watch).parameters.keys() - {"model", "more", "models"}:
        assert re.search(rf"`(--)?{option.replace('_', '[-_]')}[=` ]", read("docs/magics.md")), (
            option
        )
