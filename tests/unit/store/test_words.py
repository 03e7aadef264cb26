"""Columns of text, in each form that a writer gives them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from probe_nb.store.words import words

TEXTS = ["a", None, "b", "a"]
PLAIN = pa.array(TEXTS)


@pytest.mark.parametrize(
    "column",
    [PLAIN, PLAIN.dictionary_encode(), pa.chunked_array([PLAIN[:1], PLAIN[1:]])],
    ids=["plain", "coded", "in pieces"],
)
def test_a_column_of_text_is_read_in_every_form(column):
    codes, labels = words(pa.table({"checksum": column}), "checksum", absent=True)
    assert [None if code < 0 else labels[code] for code in codes] == TEXTS


@pytest.mark.parametrize(
    "column",
    [pa.nulls(3), pa.nulls(3, pa.string()), pa.nulls(3, pa.dictionary(pa.int8(), pa.null()))],
    ids=["of no type, as pandas 2 writes it", "text", "coded"],
)
def test_a_column_without_any_text_is_absent_everywhere(column):
    table = pa.table({"checksum": column})
    codes, labels = words(table, "checksum", absent=True)
    assert (codes.tolist(), labels) == ([-1, -1, -1], [])
    with pytest.raises(ValueError, match="has rows without text"):
        words(table, "checksum")


def test_numbers_are_no_text():
    with pytest.raises(TypeError, match="`shape` is not text"):
        words(pa.table({"shape": [1, 2]}), "shape")
