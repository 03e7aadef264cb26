"""The examples in the docstrings of public names run, and show what they say."""

from __future__ import annotations

import doctest
import inspect

import pytest

import probe_nb

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NAMES = [name for name in probe_nb.__all__ if callable(getattr(probe_nb, name))]


def examples(name: str) -> doctest.DocTest:
    text = inspect.getdoc(getattr(probe_nb, name)) or ""
    return doctest.DocTestParser().get_doctest(text, {}, f"probe.{name}", None, None)


@pytest.mark.parametrize("name", [name for name in NAMES if examples(name).examples])
def test_the_example_of_a_public_name_runs(name):
    said: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(examples(name), out=said.append)
    assert said == []


def test_what_makes_or_checks_a_run_has_an_example():
    assert {name for name in NAMES if examples(name).examples} >= {
        *("watch", "start", "self_check", "Run")
    }
