"""Append-only columns: what goes in comes out, at a bounded price per record."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from probe_nb.exponents import Histogram
from probe_nb.store.columns import Columns
from probe_nb.store.table import DTYPES
from tests import records

RAGGED = ("hist_bins", "hist_counts")


def histogram(*values: float) -> Histogram:
    return Histogram.of(np.array(values))


def filled(*blocks: int) -> Columns:
    """Columns of several blocks; the row numbers stand in `step`, each row with its own bins."""
    columns, row = Columns(), 0
    for size in blocks:
        rows = []
        for _ in range(size):
            there = histogram(*[2.0**e for e in range(row % 3)])
            rows.append({"step": row, "histogram": there})
            row += 1
        records.append(columns, rows)
    return columns


def test_rows_come_out_in_the_order_in_which_they_went_in():
    columns = filled(3, 1, 4)
    assert len(columns) == 8
    assert columns.arrays()["step"].tolist() == list(range(8))


def test_every_column_is_there_in_its_own_type_even_without_rows():
    for columns in (Columns(), filled(2), filled(2, 3)):
        arrays = columns.arrays()
        assert {name: arrays[name].dtype for name in DTYPES} == {
            name: np.dtype(dtype) for name, dtype in DTYPES.items()
        }
        assert {"hist_size", *RAGGED} <= set(arrays)


def test_an_empty_block_adds_nothing():
    columns = filled(2)
    records.append(columns, [])
    assert len(columns) == 2


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("first", [0, 3, 4, 8])
def test_the_tail_is_what_was_added_since(first, joined):
    columns = filled(3, 1, 4)
    whole = filled(3, 1, 4).arrays()
    if joined:
        columns.arrays()
    tail = columns.tail(first)
    skipped = int(whole["hist_size"][:first].sum())
    for name, values in tail.items():
        rest = whole[name][skipped if name in RAGGED else first :]
        np.testing.assert_array_equal(values, rest, err_msg=name)


def test_the_tail_follows_blocks_that_come_after_a_join():
    columns = filled(3, 1)
    columns.arrays()
    records.append(columns, [{"step": 4, "histogram": histogram(1.0, -2.0)}])
    tail = columns.tail(4)
    assert tail["step"].tolist() == [4]
    assert tail["hist_bins"].tolist() == [127, 128 + 256]
    assert columns.tail(3)["step"].tolist() == [3, 4]


def test_each_row_has_its_own_histogram():
    values = [[1.0, 1.5, -8.0], [], [0.25], [2.0**-140, 1e30]]
    columns = Columns()
    records.append(columns, [{"histogram": histogram(*v)} for v in values[:2]])
    assert columns.histogram(0) == histogram(1.0, 1.5, -8.0)
    records.append(columns, [{"histogram": histogram(*v)} for v in values[2:]])
    for row, v in enumerate(values):
        assert columns.histogram(row) == histogram(*v)


def test_a_histogram_holds_what_no_bin_can():
    columns = Columns()
    counts = {"zero_count": 3, "nan_count": 2, "posinf_count": 1, "neginf_count": 4}
    records.append(columns, [{"histogram": histogram(1.0), **counts}])
    found = columns.histogram(0)
    assert found is not None
    assert (found.zero, found.nan, found.posinf, found.neginf, found.total) == (3, 2, 1, 4, 11)


def test_a_record_without_numbers_has_no_histogram():
    columns = Columns()
    records.append(columns, [{"status": "meta"}])
    assert columns.histogram(0) is None


def test_a_record_costs_at_most_two_hundred_bytes_without_its_histogram():
    columns = Columns()
    for _ in range(10):
        records.append(columns, [{} for _ in range(100)])
    arrays = columns.arrays()
    assert sum(values.nbytes for values in arrays.values()) <= 200 * 1000


def test_the_histogram_costs_six_bytes_per_filled_bin():
    columns = Columns()
    records.append(columns, [{"histogram": histogram(*[2.0**e for e in range(40)])}])
    arrays = columns.arrays()
    assert sum(arrays[name].nbytes for name in RAGGED) == 6 * 40


def test_equal_texts_and_shapes_are_kept_once():
    columns = filled(50)
    tables = columns.tables
    kept = (tables.sites, tables.dtypes, tables.shapes, tables.devices)
    assert [len(table.values) for table in kept] == [1, 1, 1, 1]


def test_rows_appended_while_others_read_are_never_torn():
    columns, stop, faults = Columns(), threading.Event(), []

    def read():
        while not stop.is_set():
            arrays = columns.arrays()
            if len({len(values) for name, values in arrays.items() if name not in RAGGED}) != 1:
                faults.append("columns of different lengths")
            if arrays["hist_size"].sum() != len(arrays["hist_bins"]):
                faults.append("bins of another state")

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(200):
        records.append(columns, [{"step": step, "histogram": histogram(1.0)}])
    stop.set()
    reader.join()
    assert not faults
    assert columns.arrays()["step"].tolist() == list(range(200))
