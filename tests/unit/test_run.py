"""What a run answers, on rows written by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.errors import SelectionError, SessionStateError
from probe_nb.exponents import Histogram
from tests import records


def histogram(*values: float) -> Histogram:
    return Histogram.of(np.array(values))


@pytest.fixture
def run():
    rows = []
    for step in range(3):
        rows += [
            {"step": step, "module": "", "type": "Net", "max": 10.0 * step},
            {"step": step, "module": "layers.0", "role": "input", "leaf": "0"},
            {"step": step, "module": "layers.0", "role": "output", "leaf": "0", "max": 1.0 + step},
            {"step": step, "module": "layers.10", "role": "output", "type": "ReLU"},
            {"step": step, "module": "head", "role": "grad_output", "model": "other"},
            {"step": step, "module": "head", "role": "output", "status": "empty", "numel": 0},
        ]
    return records.run(rows)


# -- frame -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "rows"),
    [
        ({}, 18),
        ({"module": "layers.0"}, 6),
        ({"module": "layers.1"}, None),
        ({"module": "layers.*"}, 9),
        ({"module": "layers.?"}, 6),
        ({"module": ["head", "layers.10"]}, 9),
        ({"module": ""}, 3),
        ({"module": "(root)"}, 3),
        ({"module": "*"}, 18),
        ({"role": "output"}, 12),
        ({"role": "grad_*"}, 3),
        ({"direction": "backward"}, 3),
        ({"type": "ReLU"}, 3),
        ({"model": "other"}, 3),
        ({"status": "empty"}, 3),
        ({"step": 1}, 6),
        ({"step": [0, 2]}, 12),
        ({"step": range(1, 3)}, 12),
        ({"step": slice(1, None)}, 12),
        ({"step": slice(None, None, 2)}, 12),
        ({"step": np.int64(2)}, 6),
        ({"step": "0-1"}, 12),
        ({"step": "0,2"}, 12),
        ({"step": "::2"}, 12),
        ({"step": "1-99"}, 12),
        ({"step": "7-9"}, 0),
        ({"call": "0"}, 18),
        ({"step": 99}, 0),
        ({"step": 1, "module": "head", "role": "output"}, 1),
        ({"module": None, "step": None}, 18),
        ({"rank": pd.NA}, 0),
    ],
)
def test_filters_keep_the_rows_that_pass_all_of_them(run, filters, rows):
    if rows is None:
        with pytest.raises(SelectionError):
            run.frame(**filters)
    else:
        assert len(run.frame(**filters)) == rows


@pytest.mark.parametrize(
    ("filters", "words", "never"),
    [
        ({"step": "0-"}, ["`step` is '0-'", "10-20"], ["steps"]),
        ({"step": "3-1"}, ["`step` has `3-1`", "ends before it begins"], []),
        ({"role": "outputs"}, ["`output`", "Known: input, output"], ["This run has"]),
        ({"status": "bad"}, ["Known: ok, "], ["This run has"]),
        ({"module": "lyers"}, ["This run has `(root)`, `layers.0`, `layers.10`, `head`."], []),
        ({"model": "x"}, ["This run has `model`, `other`."], []),
        ({"module": "type:ReLU"}, ["""`run.frame(type="ReLU")`"""], []),
        ({"module": "!head"}, ["`!`", "`select=`"], []),
    ],
)
def test_a_filter_that_fits_nothing_says_what_would(run, filters, words, never):
    with pytest.raises(SelectionError) as error:
        run.frame(**filters)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert not any(word in str(error.value) for word in never), str(error.value)


def test_modules_of_one_path_in_two_models_are_counted_once():
    rows = [{"model": m, "module": f"layers.{n}"} for m in ("a", "b") for n in range(9)]
    with pytest.raises(SelectionError, match="This run has 9 different ones"):
        records.run(rows).frame(module="99")


def test_a_frame_keeps_the_row_numbers_of_the_run(run):
    frame = run.frame(module="head", role="output")
    assert frame.index.tolist() == [5, 11, 17]


def test_a_module_whose_name_is_a_pattern_is_found_by_its_name():
    run = records.run([{"module": "a[0]"}, {"module": "a0"}])
    assert run.frame(module="a[0]")["module"].tolist() == ["a[0]"]


def test_an_unknown_filter_is_refused_with_the_nearest(run):
    with pytest.raises(SelectionError, match=r"`modul`.*`module`"):
        run.frame(modul="head")


@pytest.mark.parametrize(
    ("filters", "near"),
    [
        ({"module": "haed"}, "`head`"),
        ({"module": "layer.0"}, r"`layers\.0`"),
        ({"role": "outputs"}, "`output`"),
        ({"type": "Relu"}, "`ReLU`"),
        ({"status": "emty"}, "`empty`"),
    ],
)
def test_a_pattern_that_matches_nothing_names_the_nearest(run, filters, near):
    with pytest.raises(SelectionError, match=near):
        run.frame(**filters)


def test_a_module_in_place_of_its_path_is_refused_in_words():
    model = nn.Sequential(nn.Linear(2, 2))
    with probe.watch(model, keep="*", live=False) as run:
        model(torch.ones(1, 2))
    questions = [
        lambda module: run.frame(module=module),
        lambda module: run.frame(module=["0", module]),
        run.inputs,
        lambda module: run.histogram(module, "output"),
        run.tensor,
    ]
    for ask in questions:
        for module, name in ((model[0], "Linear"), (model, "Sequential|Linear")):
            with pytest.raises(SelectionError, match=rf"`module` is given as a ({name}); give it"):
                ask(module)


def test_a_known_word_without_rows_gives_an_empty_frame(run):
    assert run.frame(status="meta").empty
    assert run.frame(direction="optimizer").empty


# -- history -----------------------------------------------------------------------------------------


SEVERAL = [
    {"step": 4, "call": 0, "numel": 1, "min": -5.0, "max": 1.0, "mean": 2.0, "std": 1.0, "l2": 3.0}
    | {"absmax": 5.0, "nan_count": 2},
    {"step": 4, "call": 1, "numel": 3, "min": -1.0, "max": 7.0, "mean": 6.0, "std": 2.0, "l2": 4.0}
    | {"absmax": 7.0, "nan_count": 3},
    {"step": 6, "numel": 2, "min": 0.0, "max": 0.5, "mean": 0.25, "std": 0.25, "l2": 0.5}
    | {"absmax": 0.5, "nan_count": 0},
]


@pytest.mark.parametrize(
    ("stat", "first", "second"),
    [
        ("min", -5.0, 0.0),
        ("max", 7.0, 0.5),
        ("absmax", 7.0, 0.5),
        ("l2", 5.0, 0.5),
        ("mean", (2.0 * 1 + 6.0 * 3) / 4, 0.25),
        ("std", (1.0 * 1 + 2.0 * 3) / 4, 0.25),
        ("nan_count", 5, 0),
    ],
)
def test_several_calls_of_a_step_are_joined_into_one_number(stat, first, second):
    history = records.run(SEVERAL).history("layer", stat=stat)
    assert history.index.tolist() == [4, 6]
    assert history.tolist() == [first, second]


def test_a_history_is_named_after_its_site(run):
    assert run.history("layers.0").name == "layers.0 output absmax"
    assert run.history("").name == "(root) output absmax"


def test_a_step_without_numbers_is_a_gap_in_the_history_and_not_a_zero():
    rows = [{"step": 0, "mean": 2.0}, {"step": 1, "status": "empty", "numel": 0}]
    for stat in ("mean", "max", "nan_count"):
        history = records.run(rows).history("layer", stat=stat)
        assert history.index.tolist() == [0, 1]
        assert history.isna().tolist() == [False, True]


DUMPED = {"std": math.nan, "zero_count": -1, "subnormal_count": -1, "at_max_count": -1}


@pytest.mark.parametrize("stat", ["std", "zero_count", "at_max_count"])
def test_a_number_that_a_source_never_had_is_refused_with_what_is_there(stat):
    rows = [{"step": step, "mean": 2.0, **DUMPED} for step in (0, 1)]
    there = "min, max, mean, l2, absmax, nan_count, posinf_count, neginf_count"
    with pytest.raises(SelectionError, match=f"`output` row.*number for `{stat}`.*{there}"):
        records.run(rows).history("layer", stat=stat)
    assert records.run(rows).history("layer", stat="mean").tolist() == [2.0, 2.0]
    whole = records.run([*rows, {"step": 2, "std": 3.0}]).history("layer", stat="std")
    assert whole.isna().tolist() == [True, True, False]


@pytest.mark.parametrize("status", ["not_asked", "meta", "skipped_budget", "has_nan", "failed"])
def test_where_nothing_was_measured_a_history_says_why(status):
    run = records.run([{"status": status, "step": step} for step in (0, 1)])
    with pytest.raises(SelectionError, match=f"Status `{status}`: "):
        run.history("layer", stat="l2")


def test_a_history_of_nothing_but_nan_is_a_gap_in_every_step():
    rows = [{"status": "no_finite", "nan_count": 4, "step": step} for step in (0, 1)]
    assert records.run(rows).history("layer", stat="mean").isna().tolist() == [True, True]
    assert records.run(rows).history("layer", stat="nan_count").tolist() == [4, 4]


def test_a_call_without_numbers_does_not_weigh_in_the_mean():
    rows = [{"mean": 2.0, "numel": 1}, {"status": "no_finite", "numel": 100, "nan_count": 100}]
    assert records.run(rows).history("layer", stat="mean").tolist() == [2.0]


def test_an_infinite_statistic_is_the_largest_of_its_step():
    rows = [{"l2": math.inf}, {"l2": 1.0}]
    assert records.run(rows).history("layer", stat="l2").tolist() == [math.inf]


def test_one_leaf_can_be_chosen():
    rows = [{"leaf": "hidden", "max": 1.0}, {"leaf": "logits", "max": 5.0}]
    run = records.run(rows)
    assert run.history("layer", stat="max", leaf="hidden").tolist() == [1.0]
    assert run.history("layer", stat="max").tolist() == [5.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stat": "median"}, r"`median` is not a statistic.*Known"),
        ({"stat": "nan_counts"}, "`nan_count`"),
        ({"role": "outputs"}, "`output`"),
        ({"role": "input"}, "no `input` rows; it has"),
        ({"module": "layers"}, r"`layers\.0`"),
    ],
)
def test_a_history_that_cannot_be_had_says_what_can(run, arguments, message):
    with pytest.raises(SelectionError, match=message):
        run.history(**{"module": "layers.10", **arguments})


ADDED = [
    {"leaf": "bias", "max": 1.0, "mean": 1.0, "numel": 1, "histogram": histogram(1.0)},
    {"leaf": "weight", "max": 2.0, "mean": 2.0, "numel": 3, "histogram": histogram(2.0, 2.0, 2.0)},
]
HELD = [
    {"leaf": "bias.grad", "max": 8.0, "mean": 8.0, "numel": 1, "histogram": histogram(8.0)},
    {"leaf": "weight.grad.shard", "max": 4.0, "mean": 4.0, "histogram": histogram(4.0)},
]


def gradients(rows):
    return records.run([{**row, "role": "param_grad"} for row in rows])


def test_a_gradient_is_not_counted_again_as_what_is_held_of_it():
    run = gradients(ADDED + HELD)
    assert run.history("layer", "param_grad", "max").tolist() == [2.0]
    assert run.history("layer", "param_grad", "mean").tolist() == [(1.0 + 3 * 2.0) / 4]
    assert run.histogram("layer", "param_grad") == histogram(1.0, 2.0, 2.0, 2.0)


def test_what_is_held_of_a_gradient_can_be_asked_for():
    run = gradients(ADDED + HELD)
    assert run.history("layer", "param_grad", "max", leaf="bias.grad").tolist() == [8.0]
    assert run.histogram("layer", "param_grad", leaf="*.grad*") == histogram(8.0, 4.0)


def test_where_only_what_is_held_is_known_it_is_what_is_joined():
    run = gradients(HELD)
    assert run.history("layer", "param_grad", "max").tolist() == [8.0]
    assert run.histogram("layer", "param_grad") == histogram(8.0, 4.0)


def test_an_output_that_happens_to_be_named_like_a_gradient_is_joined():
    rows = [{"leaf": "grad", "max": 5.0}, {"leaf": "0", "max": 1.0}]
    assert records.run(rows).history("layer", stat="max").tolist() == [5.0]


# -- histogram ---------------------------------------------------------------------------------------


def test_the_histograms_of_a_step_are_added_up():
    rows = [
        {"step": 1, "call": 0, "histogram": histogram(1.0, -4.0), "zero_count": 1},
        {"step": 1, "call": 1, "histogram": histogram(1.5), "nan_count": 2},
        {"step": 2, "histogram": histogram(1e-3)},
        {"step": 1, "call": 2, "status": "meta"},
    ]
    run = records.run(rows)
    assert run.histogram("layer", step=1) == histogram(1.0, -4.0, 1.5, 0.0, math.nan, math.nan)
    assert run.histogram("layer") == histogram(1e-3)


def test_a_step_without_a_histogram_says_which_steps_there_are():
    run = records.run([{"step": 3, "histogram": histogram(1.0)}, {"step": 5, "status": "meta"}])
    for step in (4, 5):
        with pytest.raises(SelectionError, match=rf"step {step}.*steps 3 to 5"):
            run.histogram("layer", step=step)


# -- the rest ----------------------------------------------------------------------------------------


def test_coverage_lists_what_was_not_seen_and_why():
    facts = {"model": "model", "module": "head", "type": "Linear", "reason": "never called"}
    frame = records.run([], unobserved=[facts]).coverage()
    assert frame[["model", "module", "type", "reason"]].to_dict("records") == [facts]
    assert frame["rows"].isna().all()
    assert "module(x)" in frame["remedy"].item()
    columns = ["module", "reason", "remedy", "type", "model", "rows"]
    assert list(frame.columns) == list(records.run([]).coverage().columns) == columns


def test_a_reason_of_an_older_version_is_shown_as_it_was_written():
    facts = {"model": "m", "module": "head", "type": "Linear", "reason": "some other words"}
    frame = records.run([], unobserved=[facts]).coverage()
    assert (frame["reason"].item(), frame["remedy"].item()) == ("some other words", "")


def test_a_closed_run_has_no_step_to_end():
    with pytest.raises(SessionStateError, match="closed"):
        records.run([]).step()


def test_a_run_says_how_many_records_it_has(run):
    assert len(run) == len(run.df) == 18
    assert not run.is_open


def test_the_frame_follows_the_run_as_it_grows(run):
    before = len(run.df)
    records.append(run.columns, [{"step": 9}])
    assert len(run.df) == before + 1
    assert run.frame(step=9)["module"].tolist() == ["layer"]


def test_the_doors_save_and_load_a_run(run, tmp_path):
    loaded = probe.load(probe.save(run, tmp_path / "run"))
    pd.testing.assert_frame_equal(loaded.df, run.df)


# -- what an optimizer saw of what was seen before ---------------------------------------------------


@pytest.mark.parametrize("leaf", [None, "weight"])
def test_what_an_optimizer_saw_is_not_joined_with_what_the_backward_saw(leaf):
    rows = [
        {"role": "param_grad", "leaf": "weight", "absmax": 2.0, "histogram": histogram(2.0)},
        {"role": "param_grad", "leaf": "weight", "absmax": 8.0, "histogram": histogram(8.0)}
        | {"direction": "optimizer"},
        {"role": "param_grad", "leaf": "weight", "absmax": 4.0, "module": "late"}
        | {"direction": "optimizer"},
    ]
    run = records.run(rows)
    assert run.history("layer", "param_grad", leaf=leaf).tolist() == [2.0]
    assert run.history("late", "param_grad", leaf=leaf).tolist() == [4.0]
    assert run.histogram("layer", "param_grad", leaf=leaf).signed() == [(1, 1, 1)]
