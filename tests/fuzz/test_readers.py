"""A small sample of `make fuzz`, the same files each time: a result or an error of ours."""

from __future__ import annotations

import pytest

from tests.fuzz.targets import TARGETS
from tools.fuzz import fuzz, kind

ROUNDS = {"run": 12, "ranks": 5, "kept": 12, "dump": 8, "mixed": 8}
"""Rounds of those that take long; of the others there are more."""


@pytest.mark.parametrize(
    "names", [["run", "ranks", "kept"], ["dump", "mixed", "arrays"], ["configs", "yaml", "lines"]]
)
def test_a_spoiled_file_is_a_result_or_an_error_of_ours(names):
    rounds = min(ROUNDS.get(name, 40) for name in names)
    found = fuzz(names, 0, 0, rounds)
    assert found == [], found[:2]


def test_findings_of_one_cause_are_of_one_kind():
    told = 'File "/x/probe_nb/a.py", line 3, in f\n    x\nValueError: {}'
    assert kind(told.format("one")) == kind(told.format("two"))
    assert kind(told.format("one")) != kind(told.replace("a.py", "b.py").format("one"))


def test_every_reader_reads_what_is_sound(tmp_path):
    for name, target in TARGETS.items():
        folder = tmp_path / name
        folder.mkdir()
        target.make(folder)
        assert any(folder.iterdir()), name
