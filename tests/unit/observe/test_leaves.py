"""The names of tensors inside nested arguments and results."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.observe.leaves import arguments, results
from tests.museum.containers import Answer, ModelOutput, Pair

A, B, C = torch.ones(1), torch.ones(2), torch.ones(3)


class Point(NamedTuple):
    """A named tuple with a nested part."""

    x: Any
    rest: Any = None


@dataclass
class Node:
    """A dataclass that can contain itself."""

    value: Any
    next: Any = field(default=None, repr=False)


@dataclass
class Late:
    """A dataclass with a field that is never set."""

    value: Any
    absent: Any = field(init=False)


RESULTS = [
    (A, [("0", A)]),
    ((A, B), [("0", A), ("1", B)]),
    ([A, [B, [C]]], [("0", A), ("1.0", B), ("1.1.0", C)]),
    ((A, (B, C)), [("0", A), ("1.0", B), ("1.1", C)]),
    ({"logits": A, "aux": [B, None, "text", 3]}, [("logits", A), ("aux.0", B)]),
    ({0: A, (1, 2): B}, [("0", A), ("(1, 2)", B)]),
    (collections.OrderedDict(b=A, a=B), [("b", A), ("a", B)]),
    (ModelOutput(loss=A, hidden_states=(B, C)), [("loss", A), ("hidden_states.0", B), ("hidden_states.1", C)]),
    (Answer(A, [B]), [("logits", A), ("extra.0", B)]),
    (Pair(A, None), [("mean", A)]),
    (Point(A, {"k": Point(B)}), [("x", A), ("rest.k.x", B)]),
    ((A, A), [("0", A), ("1", A)]),
    (Node, []),
    (Late(A), [("value", A)]),
    (None, []), (3, []), ("text", []), ((), []), ([None, True, 1.5, b"x"], []), (object(), []),
    (torch.nn.Parameter(A), [("0", A)]),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), RESULTS)
def test_each_tensor_of_a_result_has_its_path(value, expected):
    found = results(value, set())
    assert [name for name, _ in found] == [name for name, _ in expected]
    assert all(torch.equal(t, e) for (_, t), (_, e) in zip(found, expected, strict=True))


def test_arguments_are_named_by_place_and_by_keyword():
    given = (A, {"hidden": B}, None, 3)
    found = arguments(given, {"mask": C, "past": [(A, B)]}, set())
    assert [name for name, _ in found] == [
        "0", "1.hidden", "kwargs.mask", "kwargs.past.0.0", "kwargs.past.0.1",
    ]  # fmt: skip


def test_a_packed_sequence_is_its_data():
    packed = torch.nn.utils.rnn.pack_sequence([C, B])
    assert [(name, t is packed.data) for name, t in results((packed, A), set())] == [
        ("0.data", True),
        ("1", False),
    ]


def test_the_very_tensors_are_handed_over():
    assert results([A], set())[0][1] is A


@pytest.mark.parametrize("kind", [list, dict, Node])
def test_a_structure_that_contains_itself_comes_to_an_end(kind):
    if kind is list:
        value = [A]
        value.append(value)
    elif kind is dict:
        value = {"a": A}
        value["self"] = value
    else:
        value = Node(A)
        value.next = value
    found = results(value, set())
    assert 1 <= len(found) < 50
    assert all(t is A for _, t in found)


def test_a_container_that_changes_its_size_while_it_is_read_is_read_once():
    class Grows(dict):
        """Adds a key whenever a value is looked up."""

        def __getitem__(self, key):
            self[f"{key}+"] = None
            return super().__getitem__(key)

    assert [name for name, _ in results(Grows(a=A, b=B), set())] == ["a", "b"]


def test_rows_carry_the_names_and_not_what_is_no_tensor():
    class Model(nn.Module):
        """Takes and gives some of everything."""

        def forward(self, x, *, mask=None, options=None):
            return {"y": x * 2, "n": [x.argmax(), None, "text"]}

    model = Model()
    with probe.watch(model, live=False) as run:
        x, mask = torch.ones(2, requires_grad=True), torch.zeros(2, dtype=torch.bool)
        model(x, mask=mask, options={"s": A})["y"].sum().backward()
    found = list(zip(run.df["role"], run.df["leaf"], strict=True))
    assert found == [
        ("input", "0"), ("input", "kwargs.mask"), ("input", "kwargs.options.s"),
        ("output", "y"), ("output", "n.0"), ("grad_output", "y"), ("grad_input", "0"),
    ]  # fmt: skip
