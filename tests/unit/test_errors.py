"""Errors are what a caller would catch, and name what was probably meant."""

from __future__ import annotations

import pytest

from probe_nb import errors


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.ConfigError, ValueError),
        (errors.SelectionError, ValueError),
        (errors.ModelError, TypeError),
        (errors.SessionStateError, RuntimeError),
        (errors.RunFormatError, ValueError),
    ],
)
def test_every_error_is_one_of_ours_and_of_the_kind_python_has_for_it(kind, builtin):
    assert issubclass(kind, errors.ProbeError)
    assert issubclass(kind, builtin)


def test_the_warning_can_be_filtered_as_one_of_ours():
    assert issubclass(errors.ProbeWarning, UserWarning)


@pytest.mark.parametrize(
    ("name", "known", "words"),
    [
        ("layers.1", ["layers.0", "head"], " The closest is `layers.0`."),
        ("outputs", ["output", "input"], " The closest are `output`, `input`."),
        ("xyz", ["output"], ""),
        ("anything", [], ""),
        ("", [""], " The closest is `(root)`."),
    ],
)
def test_the_nearest_names_are_said_in_words(name, known, words):
    assert errors.closest(name, known) == words
