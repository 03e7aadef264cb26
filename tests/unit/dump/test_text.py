"""JSON of any state is read as far as it is whole, and what is not is told."""

import io
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe_nb.dump import text
from probe_nb.dump.text import members


def read(written, inside="data"):
    told = []
    data = written if isinstance(written, bytes) else written.encode()
    found = [tuple(each) for each in members(io.BytesIO(data), told.append, inside=inside)]
    return found, told


WHOLE = {
    "task": "statistics",
    "data": {"a": {"v": [1, 2.5, None, True, 'x"}{']}, "b": {}, "ü": [[]]},
    "z": 1,
}
EXPECTED = [
    ("task", "statistics", False),
    *((n, v, True) for n, v in WHOLE["data"].items()),
    ("z", 1, False),
]


def test_members_are_given_one_by_one_those_of_the_inner_object_too():
    assert read(json.dumps(WHOLE)) == (EXPECTED, [])
    assert read(json.dumps(WHOLE, indent=1, ensure_ascii=False)) == (EXPECTED, [])


def test_the_words_of_msprobe_for_what_is_not_finite_are_numbers():
    ((_, value, _),), told = read('{"data": {"a": [NaN, Infinity, -Infinity]}}')
    assert math.isnan(value[0])
    assert value[1:] == [math.inf, -math.inf]
    assert told == []


@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
def test_where_the_file_is_cut_for_reading_makes_no_difference(chunk, monkeypatch):
    monkeypatch.setattr(text, "_CHUNK", chunk)
    assert read(json.dumps(WHOLE, ensure_ascii=False)) == (EXPECTED, [])


def test_of_a_file_that_ends_anywhere_what_is_whole_is_there_and_the_rest_is_told_of():
    written = json.dumps(WHOLE)
    for end in range(len(written)):
        found, told = read(written[:end])
        assert found == EXPECTED[: len(found)]
        assert len(told) == 1


def test_a_file_that_ends_says_in_which_entry_and_how_many_were_read():
    found, told = read('{"data": {"a": {"v": 1}, "b": {"v": 2}, "c": {"v": [1, "x}"')
    assert [name for name, _, _ in found] == ["a", "b"]
    assert told == ["ends in the middle of `c`: the 2 entries before it were read"]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ("1" * 5000, "too many digits"),
        ("{'v': 1}", "no JSON"),
        ("nonsense", "no JSON"),
        ('{"v": tru}', "no JSON"),
    ],
)
def test_an_entry_that_cannot_be_read_is_skipped_and_the_next_is_read(bad, why):
    found, told = read('{"data": {"a": 1, "b": ' + bad + ', "c": {"v": 3}}}')
    assert found == [("a", 1, True), ("c", {"v": 3}, True)]
    assert len(told) == 1
    assert "`b`" in told[0]
    assert why in told[0]


@pytest.mark.parametrize(
    ("written", "why"),
    [("", "is empty"), ("[1]", "is no JSON object"), ("{1: 2}", "is no JSON from")],
)
def test_what_is_no_object_is_told_of(written, why):
    found, told = read(written)
    assert found == []
    assert why in told[0]


def test_an_entry_of_any_size_ends_the_reading_before_memory_does(monkeypatch):
    monkeypatch.setattr(text, "LARGEST", 2000)
    monkeypatch.setattr(text, "_CHUNK", 100)
    found, told = read('{"data": {"a": 1, "b": [' + ",".join(["1"] * 10_000) + "]}}")
    assert found == [("a", 1, True)]
    assert "more than 2,000 characters" in told[0]


def test_bytes_that_are_no_text_are_replaced():
    found, told = read(b'{"data": {"a\xff": 1}}')
    assert found == [("a�", 1, True)]
    assert told == []


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(max_size=5), x, max_size=4),
        max_leaves=20,
    ),
    st.integers(1, 40),
)
def test_every_value_is_read_as_json_reads_it(value, chunk):
    before, text._CHUNK = text._CHUNK, chunk
    try:
        found, told = read(json.dumps({"data": {"a": value, "b": 1}}))
    finally:
        text._CHUNK = before
    assert found == [("a", value, True), ("b", 1, True)]
    assert told == []


@given(st.binary(max_size=200))
def test_any_bytes_raise_nothing(data):
    read(data)
