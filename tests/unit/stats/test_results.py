"""Rows of results: numbered in order, in as many chunks as it takes, filled now or later."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from probe_nb.stats.numbers import Numbers
from probe_nb.stats.results import LOST, ROWS, Results
from probe_nb.stats.summary import Reducer
from tests.measuring import compiled, drained, rows


def one(value: float) -> Numbers:
    """Return the numbers of a tensor of one positive element."""
    bins = np.zeros(512, np.int64)
    bins[127 + math.floor(math.log2(value))] = 1
    return Numbers(1, value, value, value, 0.0, bins=bins)


def test_results_of_many_chunks_keep_their_numbers_and_their_bins():
    results = Results()
    numbers = [results.put(one(float(1 + i % 7))) for i in range(2 * ROWS + 5)]
    assert numbers == list(range(2 * ROWS + 5))
    assert len(results) == 2 * ROWS + 5
    found = rows(results.taken())
    assert [statistics["max"] for statistics, _, _ in found] == [1.0 + i % 7 for i in numbers]
    assert [bins for _, _, bins in found] == [
        {(1, math.floor(math.log2(1 + i % 7))): 1} for i in numbers
    ]


def test_the_compiled_loops_go_on_in_the_next_chunk():
    reducer = Reducer()
    assert compiled() is not None
    for i in range(ROWS + 3):
        reducer.see(torch.full((3,), float(i + 1)), once=True)
    found = drained(reducer)
    assert [statistics["max"] for statistics, _, _ in found] == [i + 1.0 for i in range(ROWS + 3)]
    assert [sum(bins.values()) for _, _, bins in found] == [3] * (ROWS + 3)
    reducer.see(torch.full((3,), 8.0), once=True)
    assert drained(reducer)[0][2] == {(1, 3): 3}


def test_a_row_that_comes_later_stands_where_it_was_reserved():
    results = Results()
    late = results.reserve()
    results.put(one(2.0))
    never = results.reserve()
    results.fill(late, one(4.0))
    found = results.taken()
    assert found.statistics[:, 1].tolist()[:2] == [4.0, 2.0]
    assert math.isnan(found.statistics[never, 1])
    assert found.counts[never].tolist() == [LOST] * 6
    assert [found.bins[s : s + 1].tolist() for s in found.starts[:2]] == [[129], [128]]
    assert found.sizes.tolist() == [1, 1, 0]


def test_zeros_that_are_not_stored_count_and_fill_no_bin():
    results = Results()
    row = results.put(one(3.0))
    results.add_zeros(row, 2)
    ((statistics, counts, bins),) = rows(results.taken())
    values = np.array([3.0, 0.0, 0.0])
    assert statistics["mean"] == pytest.approx(values.mean())
    assert statistics["std"] == pytest.approx(values.std())
    assert (statistics["min"], counts["zero_count"], bins) == (0.0, 2, {(1, 1): 1})


def test_nothing_is_left_after_it_was_taken():
    results = Results()
    for _ in range(ROWS + 1):
        results.put(one(1.0))
    results.taken()
    assert len(results) == 0
    assert results.put(one(1.0)) == 0
    assert len(rows(results.taken())) == 1
