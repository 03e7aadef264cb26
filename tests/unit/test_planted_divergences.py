"""Planted divergences are where they are said to be, and what is named first is judged right."""

from __future__ import annotations

import pytest

from benchmarks.divergences import held_out, planted
from benchmarks.divergences.case import HELD_OUT, PLANTED, Case
from benchmarks.divergences.judge import Result, Said, asked, judged, verdict
from benchmarks.divergences.page import Results, figures, page
from benchmarks.divergences.proof import parted, traced

CASES = [*PLANTED.cases, *HELD_OUT.cases]
PAIRS = [*PLANTED.pairs, *HELD_OUT.pairs]

SAMPLE = [
    *("layer_epsilon", "batch_epsilon", "no_bias", "other_dropout", "stale_statistics", "gates"),
    *("heads", "dimension", "factor", "no_residual", "half", "quantised", "twice", "detached"),
    *("adam_epsilon", "clipped", "lost", "not_copied", "places", "renamed_epsilon", "again"),
]
SOUND = ["halves", "channels_last", "formulas", "in_bfloat16", "shuffled", "autocast", "doubled"]
"""Some of each, asked in every run of the tests; `python -m benchmarks.divergences` asks of all."""


def by_name(case):
    return case.name


@pytest.mark.parametrize("case", [c for c in CASES if c.name in SAMPLE], ids=by_name)
def test_the_first_bit_that_differs_is_where_it_was_planted(case):
    one, other = (traced(case.program(broken=broken)) for broken in (False, True))
    found = parted(one, other)
    assert found is not None
    if case.phases == ("forward",) and found.what in {"output", "buffer"}:
        assert case.names(found.module)
    if case.phases != ("forward",) and found.phase in case.phases and case.at != ("*",):
        paths = {seen.module for seen in one.seen}
        assert any(case.names(path) for path in paths)
    again = traced(case.program(broken=False))
    assert parted(one, again) is None  # and nothing else parts them


def test_the_sets_are_as_large_as_is_said_of_them():
    assert len(PLANTED.cases) >= 48
    assert len(HELD_OUT.cases) >= 14
    assert len(PLANTED.pairs) >= 14
    assert len({case.architecture for case in CASES}) >= 14
    for cases in ((*PLANTED.cases, *PLANTED.pairs), (*HELD_OUT.cases, *HELD_OUT.pairs)):
        names = [case.name for case in cases]
        assert sorted({n for n in names if names.count(n) > 1} - {"doubled", "twice"}) == []
    assert (planted.__name__, held_out.__name__) == (
        "benchmarks.divergences.planted",
        "benchmarks.divergences.held_out",
    )


@pytest.mark.parametrize("case", [c for c in PLANTED.cases if c.name in SAMPLE], ids=by_name)
def test_the_first_divergence_is_where_it_was_planted(case):
    result = judged(case, ["histograms"])
    assert result.verdicts == {"histograms": "right"}, result.said


@pytest.mark.parametrize("pair", [p for p in PLANTED.pairs if p.name in SOUND], ids=by_name)
def test_what_only_rounding_parts_is_no_divergence(pair):
    assert asked(pair, ["histograms"]).said == {"histograms": None}


def said(module, phase="forward"):
    return Said(module, phase, "", "", 1)


@pytest.mark.parametrize(
    ("told", "at", "phases", "mode", "expected"),
    [
        (None, ("fc",), ("forward",), "histograms", "nothing found"),
        (None, ("fc",), ("optimizer",), "histograms", "nothing found"),
        (None, ("fc",), ("optimizer",), "statistics", "not in it"),
        (said("fc"), ("fc",), ("forward",), "tensors", "right"),
        (said("fc.0"), ("fc",), ("forward",), "tensors", "wrong"),
        (said("fc.0"), ("fc", "fc.*"), ("forward",), "tensors", "right"),
        (said(""), ("",), ("forward",), "tensors", "right"),
        (said("fc"), ("fc",), ("backward",), "tensors", "right place, other phase"),
        (said("head"), ("fc",), ("forward",), "tensors", "wrong"),
    ],
)
def test_only_what_was_written_down_before_counts(told, at, phases, mode, expected):
    case = Case("a divergence", lambda: None, at, phases, plant=lambda _: None)
    assert verdict(case, told, mode) == expected


def test_the_figures_count_modules_and_alarms():
    def result(of, **modes):
        verdicts = dict(modes)
        told = {m: None if v == "not in it" else said("fc") for m, v in verdicts.items()}
        return Result(of, of, "mlp", "`fc`, forward", told, verdicts, note="its eps was 0")

    cases = [
        result("a", statistics="right", histograms="right"),
        result("b", statistics="wrong", histograms="right place, other phase"),
        result("c", statistics="not in it", histograms="wrong"),
    ]
    pairs = [
        Result("p", "p", "mlp", "", {"statistics": None, "histograms": None}, {}),
        Result("q", "q", "mlp", "", {"statistics": said("fc"), "histograms": None}, {}),
    ]
    results = Results("A set", cases, pairs, ("statistics", "histograms"))
    assert figures(results) == (
        "The first divergence names the planted module in **1 of 2 by statistics, 2 of 3 by "
        "histograms**, in 1 programs. Healthy pairs of which a divergence is reported: "
        "**1 of 2** (1 of 4 comparisons)."
    )
    text = page([results], "today")
    assert "| c | mlp | `fc`, forward | - | ✗ forward of `fc` |" in text
    assert "| q | mlp | forward of `fc` | nothing |" in text
    assert "* a: its eps was 0" in text
