"""Distances of histograms against a count of the values themselves."""

from __future__ import annotations

import numpy as np
import pytest

from probe_nb.analysis.compare import histograms
from probe_nb.exponents import Histogram
from tests import records


def columns_of(*values):
    rows = [
        {
            "histogram": Histogram.of(np.asarray(v, float)),
            "zero_count": int((np.asarray(v) == 0).sum()),
        }
        for v in values
    ]
    for row in rows:
        row["histogram"] = Histogram(row["histogram"].bins, row["histogram"].counts)
    return records.run(rows).columns


def measured(a, b, noise=0.0):
    one, other = columns_of(a), columns_of(b)
    row = np.array([0])
    distance, moved = histograms.apart(one, row, other, row, np.array([noise]))
    return bool(histograms.same(one, row, other, row)[0]), float(distance[0]), float(moved[0])


def test_the_same_values_are_no_distance_apart():
    assert measured([1.0, -2.0, 0.0], [1.5, -3.0, 0.0]) == (True, 0.0, 0.0)


def test_each_value_in_another_bin_is_its_share():
    assert measured([1.0, 1.0, 1.0, 4.0], [2.0, 1.0, 1.0, 4.0])[1] == 0.25


def test_a_neighbouring_bin_is_no_move_and_a_farther_one_is():
    assert measured([1.0] * 4, [1.9999, 2.0, 0.99, 1.0])[2] == 0.0
    assert measured([1.0] * 4, [8.0, 1.0, 1.0, 1.0])[2] == 0.25
    assert measured([1.0] * 4, [0.0, 0.0, 1.0, 1.0])[2] == 0.5


def test_below_the_noise_nothing_moves():
    assert measured([1.0, 1e-9, -1e-12], [1.0, -1e-15, 0.0], noise=1e-8)[2] == 0.0
    assert measured([1.0, 1e-3, 1.0], [1.0, 0.0, 1.0], noise=1e-8)[2] == pytest.approx(1 / 3)


def test_it_is_symmetric():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=500), rng.standard_cauchy(500)
    assert measured(a, b) == measured(b, a)


def test_many_rows_are_as_one(monkeypatch):
    rng = np.random.default_rng(1)
    a = [rng.normal(size=50) * 2.0**k for k in range(20)]
    b = [rng.normal(size=50) * 2.0 ** (k % 3) for k in range(20)]
    one, other = columns_of(*a), columns_of(*b)
    rows, back = np.arange(20), np.arange(20)[::-1].copy()
    alone = [measured(x, y)[1:] for x, y in zip(a, b[::-1], strict=True)]
    monkeypatch.setattr(histograms, "_CHUNK", 3)
    distance, moved = histograms.apart(one, rows, other, back, np.zeros(20))
    assert list(zip(distance, moved, strict=True)) == alone


def test_the_share_below_a_size_is_that_of_the_values():
    values = np.array([0.0, 0.25, 0.3, 1.0, -4.0])
    columns = columns_of(values)
    assert histograms.below(columns, np.array([0]), np.array([0.5 - 1e-9]))[0] == 0.5
