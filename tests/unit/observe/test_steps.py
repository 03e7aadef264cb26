"""Which step and micro step a forward belongs to, counted by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import probe_nb as probe


def when(run):
    """Return (step, micro step) of every root forward, in the order in which they ran."""
    rows = run.df[(run.df["module"] == "") & (run.df["role"] == "output")]
    return list(zip(rows["step"].tolist(), rows["micro_step"].tolist(), strict=True))


class Loop:
    """A training loop whose parts are called one by one: f, b, o are forward, backward, step."""

    def __init__(self, optimizers=1):
        self.model = nn.Linear(2, 1)
        self.optimizers = [
            torch.optim.SGD(self.model.parameters(), 0.01) for _ in range(optimizers)
        ]
        self.losses = []

    def run(self, script, **options):
        """Do what each letter says; A and B step the first and the second optimizer."""
        with probe.watch(self.model, live=False, **options) as run:
            for letter in script.replace(" ", ""):
                self.do(letter, run)
        return run

    def do(self, letter, run):
        if letter == "f":
            self.losses.append(self.model(torch.ones(3, 2)).sum())
        elif letter == "e":
            self.model.eval()
            with torch.no_grad():
                self.model(torch.ones(3, 2))
            self.model.train()
        elif letter == "b":
            self.losses.pop().backward()
        elif letter == "|":
            run.step()
        else:
            self.optimizers["oAB".index(letter) // 2].step()  # o and A are one


LITERAL = [
    ("one forward a step", "fbo fbo fbo", [(0, 0), (1, 0), (2, 0)]),
    ("accumulation", "fbfbo fbfbo f", [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]),
    ("two forwards and one backward", "ffbbo ffbbo", [(0, 0), (0, 1), (1, 0), (1, 1)]),
    ("evaluation follows the step", "fbo ee fbo e f", [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]),
    ("evaluation before the step", "fb e o fbo", [(0, 0), (0, 1), (1, 0)]),
    ("an optimizer that steps twice", "fboo fbo f", [(0, 0), (1, 0), (2, 0)]),
    ("nothing after the last step", "fbo", [(0, 0)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("script", "expected"), [c[1:] for c in LITERAL], ids=[c[0] for c in LITERAL]
)
def test_with_an_optimizer_a_step_ends_at_the_first_forward_after_it_stepped(script, expected):
    loop = Loop()
    assert when(loop.run(script, optimizer=loop.optimizers[0])) == expected


@pytest.mark.parametrize(
    "options", [{}, {"roles": "output"}, {"roles": "input,output,param"}], ids=str
)
@pytest.mark.parametrize(
    ("script", "expected"),
    [c[1:] for c in LITERAL if c[1][:2] == "fb"],
    ids=[c[0] for c in LITERAL if c[1][:2] == "fb"],
)
def test_without_one_any_optimizer_of_a_watched_parameter_serves(script, expected, options):
    assert when(Loop().run(script, **options)) == expected


def test_an_optimizer_of_other_parameters_ends_no_step():
    loop = Loop()
    other = nn.Linear(1, 1)
    loop.optimizers[0] = torch.optim.SGD(other.parameters())
    assert when(loop.run("fbo fbo fbo")) == [(0, 0), (0, 1), (0, 2)]


def test_an_optimizer_that_was_not_named_ends_no_step():
    loop = Loop(optimizers=2)
    assert when(loop.run("fbA fbA fbB fbA", optimizer=loop.optimizers[1])) == [
        (0, 0), (0, 1), (0, 2), (1, 0)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("last", "expected"),
    [("B", [(0, 0), (0, 1), (1, 0), (1, 1)]), ("A", [(0, 0), (1, 0), (1, 1), (2, 0)])],
)
def test_of_two_optimizers_the_last_named_ends_the_step(last, expected):
    loop = Loop(optimizers=2)
    named = loop.optimizers if last == "B" else loop.optimizers[::-1]
    assert when(loop.run("fbA fbB fbA fbB", optimizer=named)) == expected


def test_in_pure_inference_each_forward_is_a_step():
    assert when(Loop().run("eee")) == [(0, 0), (1, 0), (2, 0)]


def test_inference_turns_into_training_with_the_first_backward():
    assert when(Loop().run("ee fbfbo f")) == [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0)]


def test_micro_batches_fix_the_number_of_forwards_in_a_step():
    expected = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)]
    assert when(Loop().run("eeeeeee", micro_batches=3)) == expected
    assert when(Loop().run("fbfbfbo fbfbfbo f", micro_batches=3)) == expected
    assert when(Loop().run("fbo fbo fbo fbo fbo fbo fbo", micro_batches=3)) == expected


def test_from_the_first_call_of_step_on_only_that_ends_steps():
    loop = Loop()
    found = when(loop.run("fbo f| fbo fbo e| e", optimizer=loop.optimizers[0]))
    assert found == [(0, 0), (1, 0), (2, 0), (2, 1), (2, 2), (3, 0)]


def test_a_step_without_a_forward_is_counted_when_ended_by_hand():
    assert when(Loop().run("e|| e")) == [(0, 0), (2, 0)]


@pytest.mark.parametrize(
    ("steps", "recorded"),
    [
        ("0", [0]), ("1,3-4", [1, 3, 4]), ("::2", [0, 2, 4]), ("1:4", [1, 2, 3]), (3, [3]),
        ([0, 5], [0, 5]), (range(2, 4), [2, 3]), ("9", []), (None, [0, 1, 2, 3, 4, 5]),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("named", [True, False], ids=["optimizer", "none"])
def test_steps_chooses_what_is_recorded_and_changes_no_number(steps, recorded, named):
    loop = Loop()
    options = {"optimizer": loop.optimizers[0]} if named else {}
    script = "fbfbo" * 6
    run = loop.run(script, steps=steps, **options)
    assert when(run) == [(step, micro) for step in recorded for micro in (0, 1)]
    assert set(run.df["step"]) == set(recorded)
    assert run.info.steps == 6


def test_a_session_begins_at_the_number_it_is_given():
    assert when(Loop().run("fbo fbo fbo", first_step=100)) == [(100, 0), (101, 0), (102, 0)]
    assert when(Loop().run("fbo fbo fbo", first_step=100, steps="1,101")) == [(101, 0)]


def test_a_line_search_evaluates_within_one_step():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    evaluations = []

    def closure():
        optimizer.zero_grad()
        evaluations[-1] += 1
        loss = (model(torch.ones(3, 2)) - 5).square().sum()
        loss.backward()
        return loss

    with probe.watch(model, optimizer=optimizer, live=False) as run:
        for _ in range(2):
            evaluations.append(0)
            optimizer.step(closure)
    assert min(evaluations) > 1
    assert when(run) == [(step, n) for step in range(2) for n in range(evaluations[step])]


def test_a_gradient_carries_the_step_of_its_forward():
    loop = Loop()
    run = loop.run("fo fo bb", optimizer=loop.optimizers[0])
    rows = run.df[run.df["role"] == "grad_output"]
    assert rows["step"].tolist() == [1, 0]


def test_training_says_whether_the_module_was_in_training_mode():
    run = Loop().run("fb e f")
    rows = run.df[run.df["role"] == "output"]
    assert rows["training"].tolist() == [True, False, True]


def test_calls_are_counted_within_a_step_and_across_its_micro_steps():
    loop = Loop()
    run = loop.run("fbfbo fbe", optimizer=loop.optimizers[0])
    rows = run.df[run.df["role"] == "output"]
    assert rows["call"].tolist() == [0, 1, 0, 1]


def test_forwards_of_two_watched_models_share_their_steps():
    first, second = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()])
    with probe.watch(first=first, second=second, optimizer=optimizer, live=False) as run:
        for _ in range(2):
            second(first(torch.ones(1, 2))).sum().backward()
            optimizer.step()
    rows = run.df[run.df["role"] == "output"]
    found = list(zip(rows["model"], rows["step"], rows["micro_step"], strict=True))
    assert found == [("first", 0, 0), ("second", 0, 1), ("first", 1, 0), ("second", 1, 1)]
