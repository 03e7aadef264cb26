"""The table of what is no tensor: what goes in comes out, from memory and from a file."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from probe_nb.errors import ProbeWarning
from probe_nb.store import values
from probe_nb.store.values import COLUMNS, Values
from probe_nb.terms import Site

SITE = Site("model", "fc", "Linear", "", "forward", "input", "1")
THINGS = [
    *[("int", 3), ("int", -(2**80)), ("float", 2.5), ("float", -math.inf), ("float", -0.0)],
    *[("bool", True), ("str", "text"), ("str", ""), ("None", None), ("slice", [None, 1, None])],
    *[("torch.Size", [2, 3]), ("torch.dtype", "torch.float32"), ("list", []), ("dict", {})],
    *[("float32", 1.5), ("object", "Model"), ("int", 3), ("bool", False), ("float", 0.0)],
]


@pytest.fixture
def table():
    made = Values()
    for number, (kind, value) in enumerate(THINGS):
        leaf = str(number % 2)
        site = Site("model", "fc", "Linear", "", "forward", "input", leaf)
        made.add(site, kind, value, step=number, micro_step=1, call=2, order=10 + number)
    return made


def things(found):
    return [(kind, type(value), repr(value)) for kind, value in found]


EXPECTED = [(kind, type(value), repr(value)) for kind, value in THINGS]


def test_rows_are_what_was_added_in_order(table):
    rows = list(table)
    assert things((row.kind, row.value) for row in rows) == EXPECTED
    assert [(row.step, row.micro_step, row.rank, row.order, row.call) for row in rows] == [
        (number, 1, -1, 10 + number, 2) for number in range(len(THINGS))
    ]
    assert [row.site.leaf for row in rows] == [str(number % 2) for number in range(len(THINGS))]


def test_the_frame_has_a_row_each_of_python_objects(table):
    frame = table.frame()
    assert tuple(frame.columns) == COLUMNS
    assert things(zip(frame["kind"], frame["value"], strict=True)) == EXPECTED
    assert frame["step"].tolist() == list(range(len(THINGS)))
    assert frame["rank"].isna().all()
    assert frame["order"].tolist() == [10 + number for number in range(len(THINGS))]
    assert set(frame["module"]) == {"fc"}
    assert set(frame["role"]) == {"input"}


def test_an_empty_one_has_a_frame_of_its_columns():
    assert tuple(Values().frame().columns) == COLUMNS
    assert len(Values().frame()) == len(Values()) == 0


def test_nan_stays_nan():
    table = Values()
    table.add(SITE, "float", math.nan, step=0)
    assert math.isnan(Values.from_table(table.to_table()).frame()["value"].item())


def test_it_survives_a_file_a_copy_and_a_pickle(table):
    for again in (
        Values.from_table(table.to_table()),
        pickle.loads(pickle.dumps(table)),
        copy.deepcopy(table),
    ):
        assert list(again) == list(table)
        pd.testing.assert_frame_equal(again.frame(), table.frame())
        again.add(SITE, "int", 1, step=0)
        assert len(again) == len(table) + 1


def test_text_that_cannot_be_written_is_escaped_and_too_long_text_is_cut():
    table = Values()
    table.add(SITE, "str", "a\ud800", step=0)
    table.add(SITE, "str", "x" * (values.LONGEST + 5), step=0)
    escaped, cut = table.frame()["value"]
    assert escaped == "a\\ud800"
    assert cut == "x" * values.LONGEST + f"… ({values.LONGEST + 5:,} characters)"


def fill(table, numbers):
    for number in range(numbers):
        table.add(SITE, "int", number, step=0)


def test_beyond_the_budget_values_are_refused_and_that_is_said():
    notices = []
    table = Values(budget=5_000, notices=notices)
    with pytest.warns(ProbeWarning, match=r"values that are no tensors took"):
        fill(table, 1_000)
    kept = len(table)
    assert 10 < kept < 50
    assert len(notices) == 1
    assert f"{kept:,} values" in notices[0]
    table.add(SITE, "int", 1, step=0)
    assert len(table) == kept


def test_values_that_repeat_cost_32_bytes_each():
    table = Values(budget=33_000)
    for _ in range(1_000):
        table.add(SITE, "int", 7, step=0)
    assert len(table) == 1_000


def broken(column, value):
    table = Values()
    table.add(SITE, "int", 7, step=0)
    made = table.to_table()
    place = made.schema.get_field_index(column)
    return made.set_column(place, column, pa.array([value]))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("direction", "sideways"),
        ("role", "shoe"),
        ("value", "{not json"),
        ("step", 2**40),
        ("module", None),
        ("value", None),
    ],
)
def test_a_damaged_table_is_refused(column, value):
    with pytest.raises((ValueError, TypeError)):
        Values.from_table(broken(column, value))


def test_a_table_of_something_else_is_refused():
    with pytest.raises((KeyError, ValueError)):
        Values.from_table(pa.table({"a": np.arange(3)}))
