"""The names of tensors inside nested arguments and results."""

from __future__ import annotations

import collections
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BatchEncoding

import probe_nb as probe
from probe_nb.observe.leaves import TOO_DEEP, arguments, results
from tests.models import no_faults
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
    ((_, found),) = results(value, set())
    assert found is A


def test_a_container_that_changes_its_size_while_it_is_read_is_read_once():
    class Grows(dict):
        """Adds a key whenever a value is looked up."""

        def __getitem__(self, key):
            self[f"{key}+"] = None
            return super().__getitem__(key)

    assert [name for name, _ in results(Grows(a=A, b=B), set())] == ["a", "b"]


@dataclass
class Branch:
    """A node of a tree that knows the node above."""

    value: Any
    above: Any = field(default=None, repr=False)
    below: list[Any] = field(default_factory=list)

    def grow(self, depth, width=3):
        if depth:
            self.below = [Branch(self.value + n, self).grow(depth - 1) for n in range(1, width)]
        return self


def test_of_a_tree_whose_nodes_know_their_parents_each_tensor_has_one_row():
    class Reads(nn.Module):
        def forward(self, node):
            return node.below[0].value

    model, tree = Reads(), Branch(A).grow(3)
    with no_faults(), probe.watch(model, roles="input", live=False) as run:
        assert model(tree) is tree.below[0].value
    names = [""]
    for _ in range(3):
        names += [f"{name}below.{n}." for name in names for n in (0, 1)]
    assert sorted(run.df["leaf"]) == sorted({f"0.{name}value" for name in names})
    assert len(run) == 1 + 2 + 4 + 8


@pytest.mark.parametrize("kind", [list, tuple, dict, Node])
def test_a_container_that_is_reached_twice_is_entered_by_its_first_path(kind):
    shared = {"a": A, "b": A} if kind is dict else Node(A, B) if kind is Node else kind([A, A])
    once = [name for name, _ in results({"x": shared}, set())]
    assert len(once) == 2
    assert [name for name, _ in results({"x": shared, "y": [shared], "z": C}, set())] == [
        *once,
        "z",
    ]
    named = [f"kwargs.{name}" for name in once]
    assert [name for name, _ in arguments((), {"x": shared, "y": shared}, set())] == named


def test_lists_that_double_at_every_level_take_no_longer_than_they_are():
    value = [A]
    for _ in range(30):
        value = [value, value]
    assert [name for name, _ in results(value, set())] == [".".join("0" * 31)]


def nested(depth):
    value = A
    for _ in range(depth):
        value = [value]
    return value


def test_what_lies_too_deep_is_said_once_in_the_run():
    class Nests(nn.Module):
        def forward(self, depth):
            return nested(depth)

    model = nn.Sequential(Nests())
    with no_faults(), probe.watch(model, roles="output", live=False) as run:
        model(32)
        assert run.df["leaf"].tolist() == [".".join("0" * 32)] * 2
        assert run.info.notices == []
        model(33)
        model(100)
    assert len(run) == 2
    assert run.info.notices == [TOO_DEEP]


class Lazy(Mapping):
    """Makes what is asked for."""

    def __getitem__(self, key):
        return torch.rand(2)

    def __iter__(self):
        return iter(["a"])

    def __len__(self):
        return 1


class Alive:
    """Draws a random number, which everybody could notice, whatever is asked of it."""

    def draws(self, *_):
        torch.rand(1)
        raise RuntimeError("asked")

    __getattribute__ = __getitem__ = __iter__ = __len__ = __str__ = __eq__ = draws
    __class__ = property(draws)
    keys = values = items = __contains__ = __bool__ = __format__ = __repr__ = draws
    __hash__ = object.__hash__


class AliveDict(Alive, dict):
    """A dict that is read in no other way than past its class."""


class AliveList(Alive, list):
    """A list of the kind."""


class AliveTuple(Alive, tuple):
    """A tuple of the kind."""

    __slots__ = ()
    _fields = property(Alive.draws)


@dataclass(eq=False, repr=False)
class AliveData(Alive):
    """A dataclass of the kind; one of its fields is computed."""

    value: Any
    computed: Any = None


AliveData.computed = property(Alive.draws, lambda *_: None)


@dataclass
class Slotted:
    """A dataclass whose second slot is never filled."""

    __slots__ = ("empty", "value")
    value: Any
    empty: Any

    def __init__(self, value):
        self.value = value


class Passes(nn.Module):
    """Returns what it is given."""

    def forward(self, x, **_):
        return x


STORED = [
    (lambda: AliveDict(a=A, b=[B]), ["0.a", "0.b.0"]),
    (lambda: AliveList([A, {"k": B}]), ["0.0", "0.1.k"]),
    (lambda: AliveTuple([A, B]), ["0.0", "0.1"]),
    (lambda: AliveData(A), ["0.value"]),
    (lambda: Slotted(A), ["0.value"]),
    (lambda: {Alive(): A, "plain": B}, ["0.<Alive 0>", "0.plain"]),
    (lambda: BatchEncoding({"input_ids": A, "mask": B}), ["0.input_ids", "0.mask"]),
    (Alive, []),
    (Lazy, []),
]


@pytest.mark.parametrize(("make", "names"), STORED)
def test_what_is_stored_is_read_and_no_code_of_the_users_is_run_for_it(make, names):
    model = nn.Sequential(Passes())
    value = make()
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with no_faults(), probe.watch(model, roles="input", live=False) as run:
        assert model(value) is value
        assert torch.equal(torch.rand(4), expected)
    assert [leaf for leaf in run.df["leaf"].tolist() if leaf in names] == names * 2
    assert len(run) == 2 * len(names)


def test_a_mapping_that_is_not_read_is_named_once():
    model = nn.Sequential(Passes())
    with no_faults(), probe.watch(model, live=False) as run:
        model(Lazy())
        model({"x": Lazy(), "y": A})
    assert run.info.notices == [
        "what a `Lazy` holds was not looked at: reading it runs code of its own"
    ]
    assert set(run.df["leaf"]) == {"0.y", "y"}


def test_of_a_tensordict_the_entries_are_read_where_it_keeps_them():
    class TensorDict(Lazy):
        """Keeps its entries as the class of this name does."""

        def __init__(self, **entries):
            self._tensordict = entries

    value, unread = TensorDict(a=A, inner=TensorDict(b=B)), set()
    assert [name for name, _ in results(value, unread)] == ["a", "inner.b"]
    assert unread == set()


class Head(enum.Enum):
    """Names of outputs."""

    CLASS = 1

    def __str__(self):
        raise RuntimeError("asked")


class Text(str):
    """A key that is a text and more."""

    __slots__ = ()

    def __str__(self):
        raise RuntimeError("asked")

    __format__ = __repr__ = __str__


KEYS = [
    (Head.CLASS, "Head.CLASS"),
    (Text("name"), "name"),
    (np.int64(7), "7"),
    (torch.float16, "torch.float16"),
    (("user", "likes", 3), "('user', 'likes', 3)"),
    ((Text("a"), 1), "<tuple 0>"),
    (A, "<Tensor 0>"),
    (frozenset({1}), "<frozenset 0>"),
]


@pytest.mark.parametrize(("key", "name"), KEYS, ids=[name for _, name in KEYS])
def test_a_key_is_written_as_it_is_or_known_by_its_place(key, name):
    assert [leaf for leaf, _ in results({key: B}, set())] == [name]


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
