"""The front end has the names and codes of the Python side: written twice, so held together here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from probe_nb import view
from probe_nb.analysis.compare.judge import VERDICTS
from probe_nb.terms import ROLES, STATUSES
from probe_nb.view import wire

SOURCES = Path(view.__file__).parent / "frontend" / "src"
QUOTED = re.compile(r'"([^"]*)"')


def listed(file: str, begin: str) -> list[str]:
    """Return the strings of a list in a source file."""
    text = (SOURCES / file).read_text(encoding="utf-8")
    return QUOTED.findall(text[text.index(begin) :].partition("[\n")[2].partition("\n]")[0])


@pytest.mark.parametrize("name", ["COLUMNS", "PAIRS"])
def test_the_columns_are_the_same_in_the_same_order(name):
    assert listed("types.ts", f"export const {name} = ") == list(getattr(wire, name))


def test_every_status_has_its_word_at_its_code():
    text = (SOURCES / "words.ts").read_text(encoding="utf-8")
    part = text[text.index("const STATUSES") :].partition("\n];")[0]
    words = re.findall(r'^  \["([^"]*)"', part, re.MULTILINE)
    assert len(words) == len(STATUSES)
    for word, status in zip(words, STATUSES, strict=True):
        assert word.lower().split()[0] == status.split("_")[0]


def test_every_verdict_has_its_word():
    text = (SOURCES / "words.ts").read_text(encoding="utf-8")
    part = text[text.index("export const VERDICTS") :].partition("\n};")[0]
    assert set(re.findall(r"^  (\w+): \{", part, re.MULTILINE)) == set(VERDICTS)


def test_every_role_has_its_place():
    text = (SOURCES / "sites.ts").read_text(encoding="utf-8")
    known = QUOTED.findall(text[text.index("const ROLES") :])[0].split()
    assert set(known) >= set(ROLES)


def test_the_versions_are_the_same():
    text = (SOURCES / "decode.ts").read_text(encoding="utf-8")
    assert f"const RUN = {wire.VERSION};" in text
    assert f"const COMPARISON = {wire.COMPARED};" in text
    assert f"const MOMENTS = {wire.MOMENTS};" in text
    assert int(re.search(r"const MAGIC = (0x\w+);", text)[1], 16) == wire.MAGIC
