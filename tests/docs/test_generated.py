"""What a page says of the code follows from the code: options, thresholds, names, columns."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch

import probe_nb
import probe_nb.magics.extension  # imported here: IPython changes filters of warnings with it
from probe_nb.analysis.thresholds import DEFAULTS, Thresholds
from probe_nb.store.table import COLUMNS

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def generated():
    where = importlib.util.spec_from_file_location("generated", DOCS / "site/generated.py")
    module = importlib.util.module_from_spec(where)
    where.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_generated_parts_of_a_page_are_those_of_the_code(page, generated):
    """Where this fails, `python -m docs.site.generated` writes them anew."""
    now = page.read_text(encoding="utf-8")
    assert generated.written(now) == now


def test_the_pages_have_the_parts_that_they_should_have(generated):
    found = {
        (part["name"], part["words"].strip())
        for page in PAGES
        for part in generated.PART.finditer(text(page.name))
    }
    magics = {"probe_start", "probe_compare", "probe_save"}
    assert {("options", magic) for magic in magics} | {("thresholds", ""), ("errors", "")} <= found
    assert ("methods", "probe_nb.Run") in found


def test_a_part_that_is_out_of_date_is_written_anew(generated):
    old = "<!-- generated: options probe_save -->\n| `--gone` | | |\n<!-- /generated -->"
    new = generated.written(old)
    assert "--gone" not in new
    assert "`--no-backward`" in new
    assert generated.written(new) == new


def test_thresholds_are_named_with_the_values_that_they_have():
    """In the tables of kinds, where they are written by hand between the sentences."""
    page = text("findings.md")
    tables = page[page.index("## The kinds") : page.index("## Rules of your own")]
    known = vars(DEFAULTS)
    said = re.findall(r"`(\w+)` = ([\d.e+-]*\d)", tables)
    assert len(said) > 40
    assert [(name, value) for name, value in said if float(value) != known[name]] == []
    assert {name for name in known if f"`{name}`" not in page} == set()
    assert set(known) == set(Thresholds.__dataclass_fields__)


def columns() -> list[tuple[str, str]]:
    return re.findall(r"^\| `(\w+)` \| (\w+) \|", text("columns.md"), re.MULTILINE)


def test_the_columns_are_those_of_the_frame_in_their_order_with_their_types():
    with probe_nb.watch(torch.nn.Linear(2, 2), live=False) as run:
        pass
    assert [name for name, _ in columns()] == list(COLUMNS)
    assert columns() == [(name, str(run.df[name].dtype)) for name in COLUMNS]
