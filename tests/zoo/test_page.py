"""The page of the sweep: what was tried, what passed, each failure with its reason."""

from __future__ import annotations

import pytest
from torch import nn

from tests.zoo import collection, known
from tests.zoo.specimen import Specimen
from tools import zoo
from tools.zoo import Outcome

PASSED = Outcome("bert", "encoder", (), (), 250)
REMARKED = Outcome("reformer", "encoder", (), ("not the same twice",), 0)
FAILED = Outcome("nn.GRU-3-float32-eval", "torch.nn", ("`a|b` <wrong>",), (), 9)
OTHER = Outcome("nn.GRU-4-float32-eval", "torch.nn", (), (), 11)
CHOSEN = [Specimen("bert", "encoder", nn.Identity, lambda _: ((), {}))]
ALL = [PASSED, REMARKED, FAILED, OTHER]


def test_the_page_counts_what_was_tried_and_what_passed():
    page = zoo.page(ALL)
    assert "**3 of 4 passed**: 2 architectures of transformers and 1 modules of torch" in page
    assert "Of those that passed, 1 could be held to it only in part" in page
    assert "270 rows were compared" in page
    assert "| encoder | 2 | 2 | 2 | 250 |" in page
    assert "| torch.nn | 1 | 2 | 1 | 20 |" in page


def test_a_failure_stands_there_with_its_reason_or_without_one(monkeypatch):
    assert "| nn.GRU-3-float32-eval | `a\\|b` &lt;wrong> | not explained yet |" in zoo.page(ALL)
    monkeypatch.setitem(known.FAULTS, FAILED.name, "because")
    assert "| nn.GRU-3-float32-eval | `a\\|b` &lt;wrong> | because |" in zoo.page(ALL)


def test_what_could_not_be_held_stands_there_once_for_all_that_it_is_true_of():
    again = Outcome("other", "decoder", (), REMARKED.remarks, 0)
    assert "| not the same twice | other, reformer | 2 |" in zoo.page([*ALL, again])


def examining(outcomes, monkeypatch) -> None:
    """Let the command believe that this came of examining what was asked for."""
    monkeypatch.setattr(collection, "matching", lambda _: CHOSEN)
    monkeypatch.setattr(zoo, "swept", lambda *_: outcomes)


@pytest.mark.parametrize(("outcomes", "code"), [([PASSED, OTHER], 0), (ALL, 1), ([], 1)])
def test_the_command_fails_if_something_failed_or_nothing_was_examined(
    outcomes, code, monkeypatch, capsys
):
    examining(outcomes, monkeypatch)
    assert zoo.main(["bert"]) == code
    assert (
        f"{sum(not o.faults for o in outcomes)} of {len(outcomes)} passed"
        in capsys.readouterr().out
    )


def test_a_failure_that_is_explained_does_not_fail_the_command(monkeypatch):
    examining(ALL, monkeypatch)
    monkeypatch.setitem(known.FAULTS, FAILED.name, "because")
    assert zoo.main(["bert"]) == 0


def test_only_a_whole_sweep_writes_the_page(monkeypatch, tmp_path):
    monkeypatch.setattr(zoo, "PAGE", tmp_path / "zoo.md")
    examining(ALL, monkeypatch)
    zoo.main(["bert"])
    assert not zoo.PAGE.exists()
    zoo.main([])
    assert zoo.PAGE.read_text(encoding="utf-8") == zoo.page(ALL)


def test_what_is_written_of_a_specimen_is_what_its_examination_found():
    outcome = zoo.examined("nn.Linear-0-float32-train")
    inputs_and_outputs, parameters, gradients = 2, 2, 3
    rows = inputs_and_outputs + parameters + gradients
    assert outcome == Outcome("nn.Linear-0-float32-train", "torch.nn", (), (), rows)
    assert outcome.architecture == "nn.Linear"


def test_a_name_that_no_specimen_has_is_refused_in_words(capsys):
    with pytest.raises(SystemExit) as raised:
        zoo.main(["nobody-*"])
    assert raised.value.code == 2
    assert "no specimen is named like nobody-*" in capsys.readouterr().err
