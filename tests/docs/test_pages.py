"""The pages of the documentation: their code runs, their links lead somewhere, nothing in them is private."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.run_page import blocks

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_CODE = [page for page in PAGES if blocks(page.read_text(encoding="utf-8"))]
LINK = re.compile(
    r"\]\((?P<to>[^)#\s]+)?(?:#(?P<part>[^)\s]+))?\)|(?:src|srcset)=\"(?P<file>[^\"]+)\""
)
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
RUNNER = Path(__file__).with_name("run_page.py")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    """Start a process that runs pages, each in a fork: what is slow to import is imported once."""
    folder = str(tmp_path_factory.mktemp("runner"))
    settings = {
        "PYTHONPATH": str(ROOT),
        "IPYTHONDIR": folder,
        "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": folder,
        "OMP_NUM_THREADS": "1",
    }
    with subprocess.Popen(
        [sys.executable, "-W", "error", str(RUNNER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **settings},
    ) as process:
        yield process
        process.stdin.close()


def ran(runner, page: Path, folder: Path) -> int:
    runner.stdin.write(json.dumps([str(page), str(folder)]) + "\n")
    runner.stdin.flush()
    return int(runner.stdout.readline())


@pytest.mark.xdist_group("pages")
@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, runner):
    before = tmp_path / "dump_path/step2/proc1/dump.json"  # as another process left it
    before.parent.mkdir(parents=True)
    before.write_text("{}", encoding="utf-8")
    assert ran(runner, page, tmp_path) == 0, (tmp_path / "printed").read_text("utf-8")[-8000:]


@pytest.mark.xdist_group("pages")
@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("```pycon\n>>> 1 + 1\n3\n```\n", "the block at page.md:2 shows something else"),
        ("# Page\n\n```python\n1 / 0\n```\n", "the block at page.md:4 failed"),
        ("```ipython\nimport os\n```\n```python\nos._exit(3)\n```\n", ""),
    ],
)
def test_a_page_that_is_wrong_is_found(page, said, tmp_path, runner):
    (tmp_path / "page.md").write_text(page, encoding="utf-8")
    assert ran(runner, tmp_path / "page.md", tmp_path) != 0
    assert said in (tmp_path / "printed").read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.replace("`", "")) for heading in headings]
    return {each.strip().lower().replace(" ", "-") for each in plain}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_links_of_a_page_lead_to_files_and_headings_that_exist(page):
    missing = []
    for link in LINK.finditer(FENCED.sub("", page.read_text(encoding="utf-8"))):
        to = link["to"] or link["file"] or ""
        if "://" in to:
            continue
        target = (page.parent / to) if to else page
        if not target.exists() or (link["part"] and link["part"] not in anchors(target)):
            missing.append(link.group())
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_names_no_path_of_a_machine(page):
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.:/])/(home|root|work|tmp|Users)/|[A-Z]:\\\\Users", text)


def test_the_index_leads_to_every_page():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert {each for each in pages if f"({each})" not in index} == set()


def cells(line: str) -> int:
    """Count the cells of a row as GitHub does: a bar inside of code parts cells too, unless escaped."""
    return len(re.findall(r"(?<!\\)\|", line)) - 1


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted((ROOT / "docs/decisions").glob("*.md"))], ids=name
)
def test_the_rows_of_a_table_have_as_many_cells_as_its_head(page):
    text, torn = FENCED.sub("", page.read_text(encoding="utf-8")), []
    for table in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        head, *rows = table.strip().split("\n")
        torn += [row for row in rows if cells(row) != cells(head)]
    assert torn == []
