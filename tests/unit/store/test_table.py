"""The schema of `run.df`: names, order and types are what notebooks are written against."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import torch
from torch import nn

import probe_nb as probe
from tests import records

# the public schema, spelt out: changing it breaks saved notebooks
SCHEMA = {
    "step": "int32",
    "micro_step": "int32",
    "rank": "Int64",
    "order": "int64",
    "call": "int32",
    "backward": "Int64",
    "model": "category",
    "module": "category",
    "type": "category",
    "api": "category",
    "direction": "category",
    "role": "category",
    "leaf": "category",
    "dtype": "category",
    "shape": "object",
    "device": "category",
    "numel": "Int64",
    "min": "Float64",
    "max": "Float64",
    "mean": "Float64",
    "std": "Float64",
    "l2": "Float64",
    "absmax": "Float64",
    "nan_count": "Int64",
    "posinf_count": "Int64",
    "neginf_count": "Int64",
    "zero_count": "Int64",
    "subnormal_count": "Int64",
    "at_max_count": "Int64",
    "training": "boolean",
    "recompute": "bool",
    "reused": "bool",
    "requires_grad": "bool",
    "loss_scale": "Float64",
    "checksum": "category",
    "status": "category",
}


def schema(frame: pd.DataFrame) -> dict[str, str]:
    return {name: str(dtype) for name, dtype in frame.dtypes.items()}


def test_the_columns_of_a_run_are_the_public_schema_in_its_order():
    model = nn.Linear(2, 2)
    with probe.watch(model) as run:
        model(torch.ones(1, 2)).sum().backward()
    assert list(run.df.columns) == list(SCHEMA)
    assert schema(run.df) == SCHEMA


def test_a_run_without_records_has_the_same_schema():
    assert schema(records.run([]).df) == SCHEMA


def test_what_was_not_computed_is_na_and_never_nan():
    frame = records.run([{"status": "empty", "numel": 0}, {"max": math.inf, "l2": 2.0}]).df
    absent, there = frame.iloc[0], frame.iloc[1]
    for name in ("min", "max", "mean", "std", "l2", "absmax", "loss_scale"):
        assert absent[name] is pd.NA, name
    assert (there["max"], there["l2"]) == (math.inf, 2.0)
    assert there["loss_scale"] is pd.NA
    assert frame["rank"].isna().all()
    assert frame["backward"].isna().all()
    assert not any(isinstance(v, float) and math.isnan(v) for v in frame["max"] if v is not pd.NA)


def test_a_statistic_that_is_there_is_the_float64_it_was_measured_as():
    exact = [0.1, 1e-320, 1.7976931348623157e308, -0.0]
    frame = records.run([{"mean": value} for value in exact]).df
    assert [float(v).hex() for v in frame["mean"]] == [v.hex() for v in exact]


def test_counts_beyond_four_billion_are_exact():
    assert records.run([{"zero_count": 10**18 - 1}]).df["zero_count"].tolist() == [10**18 - 1]


def test_text_columns_keep_their_categories_in_a_meaningful_order():
    frame = records.run([{"role": "grad_input"}, {"role": "input"}, {"role": "output"}]).df
    assert frame.sort_values("role")["role"].tolist() == ["input", "output", "grad_input"]
    directions = frame["direction"].cat.categories.tolist()
    assert directions == ["forward", "backward", "optimizer"]


def test_every_status_is_a_category_whether_it_occurs_or_not():
    categories = set(records.run([{}]).df["status"].cat.categories)
    assert categories == {
        *("ok", "empty", "no_finite", "meta", "unsupported", "passthrough", "stale_view"),
        *("skipped_budget", "private_format", "vmapped", "failed"),
        *("not_asked", "has_nan", "has_inf"),
    }


def test_shapes_are_tuples_and_codes_never_show():
    frame = records.run([{"shape": (2, 3)}, {"shape": ()}, {"shape": (0, 4)}]).df
    assert frame["shape"].tolist() == [(2, 3), (), (0, 4)]


def test_two_models_with_the_same_module_names_are_told_apart():
    frame = records.run([{"model": "gen"}, {"model": "disc"}, {"model": "gen"}]).df
    assert frame["model"].tolist() == ["gen", "disc", "gen"]
    assert frame["module"].tolist() == ["layer"] * 3


def test_changing_the_frame_does_not_change_the_run():
    run = records.run([{"max": 1.0}, {"max": 2.0}])
    frame = run.df
    frame["extra"] = 0
    del frame["max"]
    assert list(run.df.columns) == list(SCHEMA)


def test_a_value_written_into_the_frame_does_not_reach_the_run():
    run = records.run([{"max": 1.0}])
    frame = run.df
    frame.loc[0, "max"] = 99.0
    frame.loc[0, "step"] = 7
    assert run.df["max"].tolist() == [1.0]
    assert run.df["step"].tolist() == [0]
    assert run.columns.arrays()["max"].tolist() == [1.0]
    assert run.columns.arrays()["step"].tolist() == [0]


@pytest.mark.parametrize("training", [-1, 0, 1])
def test_training_has_three_values(training):
    value = records.run([{"training": training}]).df["training"].iloc[0]
    assert value is pd.NA if training < 0 else bool(value) is bool(training)
