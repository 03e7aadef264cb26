"""Every planted fault is really there, and the first finding about it is judged as it should be."""

import pytest

from benchmarks.faults import blocks, planted, unseen
from benchmarks.faults.case import PLANTED, UNSEEN, Case
from benchmarks.faults.judge import Finding, Result, asked, judged, verdict
from benchmarks.faults.page import Results, figures, page
from benchmarks.faults.trace import traced

blocks.digits(1, 1)  # scikit-learn, when it is imported, changes the filters of warnings for good

FAULTS = [*PLANTED.faults, *UNSEEN.faults]
HEALTHY = [*PLANTED.healthy, *UNSEEN.healthy]

SAMPLE = [
    *("softmax_by_hand", "log_of_zero", "norm_without_eps", "fully_masked_row", "exploding_rnn"),
    *("dead_relu", "frozen_by_mistake", "learning_rate_100x", "cut_by_detach"),
    *("root_behind_where", "updates_rounded_away", "loss_scale_too_high", "batch_with_nan"),
    *("init_too_large", "head_not_in_the_loss"),
]
SOUND = [
    *("digits_cnn", "copying_transformer", "resnet", "lstm", "autocast_float16"),
    *("frozen_backbone", "healthy_gan", "healthy_vae", "bias_that_cancels"),
]
"""Some of each, asked in every run of the tests; `python -m benchmarks.faults` asks of all."""


def by_name(case):
    return case.name


@pytest.mark.parametrize("case", FAULTS, ids=by_name)
def test_the_fault_is_there_and_only_where_it_was_planted(case):
    trace = traced(case.program())
    assert case.proof(trace)
    for answer in case.at:
        assert any(case_of(at=(answer,)).names(module) for module in trace.parents), answer
    whole = traced(case.program(broken=False))
    assert not case.proof(whole)
    assert whole.first_bad() is None


@pytest.mark.parametrize("case", [case for case in HEALTHY if case.learns], ids=by_name)
def test_a_healthy_model_learns(case):
    losses = case.program().losses()
    assert len(losses) > 3
    assert sum(losses[-3:]) / 3 < 0.95 * max(losses[:2])


@pytest.mark.parametrize("case", [case for case in HEALTHY if not case.learns], ids=by_name)
def test_a_healthy_model_that_does_not_learn_keeps_finite(case):
    trace = traced(case.program())
    assert trace.first_bad() is None
    outputs = [seen.absmax for seen in trace.rows("output")]
    assert max(outputs) < 1e3


def test_the_sets_are_as_large_as_is_said_of_them():
    assert len(PLANTED.faults) >= 30
    assert len(UNSEEN.faults) >= 20
    assert min(len(PLANTED.healthy), len(UNSEEN.healthy)) >= 5
    names = [case.name for case in (*FAULTS, *HEALTHY)]
    assert len(set(names)) == len(names)
    assert (planted.__name__, unseen.__name__) == (
        "benchmarks.faults.planted",
        "benchmarks.faults.unseen",
    )


def test_the_first_finding_names_the_planted_module():
    results = [judged(case) for case in PLANTED.faults if case.name in SAMPLE]
    assert len(results) == len(SAMPLE)
    assert [(r.name, r.verdict, r.first) for r in results if r.verdict != "right"] == []


@pytest.mark.slow
def test_of_thirty_faults_the_first_finding_names_the_module_of_twenty_seven():
    others = [judged(case) for case in PLANTED.faults if case.name not in SAMPLE]
    missed = [(r.name, r.verdict, r.first) for r in others if "right" not in r.verdict]
    assert len(missed) <= len(PLANTED.faults) // 10, missed


@pytest.mark.parametrize("case", [h for h in HEALTHY if h.name in SOUND], ids=by_name)
def test_a_healthy_model_has_no_finding_above_a_note(case):
    assert asked(case).alarms == ()


def case_of(at=("fc", "fc.*"), kinds=("nonfinite",), roles=()):
    return Case("a fault", at, kinds, proof=bool, build=None, roles=roles)


def found(module, kind="non_finite", role="output", severity="error"):
    return Finding(severity, kind, module, role, f"{kind} in {module}")


@pytest.mark.parametrize(
    ("findings", "case", "expected"),
    [
        ((), case_of(), "nothing found"),
        ((found("fc"),), case_of(), "right"),
        ((found("fc.1"),), case_of(), "right"),
        ((found("fc", "dead"),), case_of(), "right place, wrong kind"),
        ((found("fc", "growing"),), case_of(kinds=("exploding",)), "right"),
        ((found("head"), found("fc")), case_of(), "wrong"),
        ((found("fcx"),), case_of(), "wrong"),
        ((found(""),), case_of(at=("",)), "right"),
        ((found("", role="output"),), case_of(at=("",), roles=("input",)), "wrong"),
        ((found("", role="input"),), case_of(at=("",), roles=("input",)), "right"),
    ],
)
def test_only_the_first_finding_counts(findings, case, expected):
    assert verdict(case, findings) == expected


def test_the_figures_count_places_kinds_and_alarms():
    faults = [
        Result("a", "a", "`fc`", (found("fc"),), "right"),
        Result("b", "b", "`fc`", (found("fc", "dead"),), "right place, wrong kind"),
        Result("c", "c", "`fc`", (found("head"),), "wrong"),
        Result("d", "d", "`fc`", (), "nothing found"),
    ]
    healthy = [
        Result("e", "e", "", (found("fc", severity="note"),)),
        Result("f", "f", "", (found("fc", severity="note"), found("x", severity="warning"))),
    ]
    told = figures(Results("A set", faults, healthy, healthy[:1]))
    assert told == (
        "**2 of 4** first findings name the planted module (1 also with the right kind of fault); "
        "1 name another, 1 programs had no finding. Healthy models with a finding above note: "
        "**1 of 2**; the same programs without their fault: 0 of 1."
    )


def test_the_page_shows_what_was_planted_and_what_was_said():
    result = Result("a | b", "a", "`fc`", (found("", "dead"),), "wrong")
    text = page([Results("A set", [result], [], [])], "today")
    assert "| a \\| b | `fc` | error, dead, `(root)`: dead in | wrong |" in text
