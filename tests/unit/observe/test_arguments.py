"""Arguments and results that are no tensors: `watch(values=True)`."""

from __future__ import annotations

import dataclasses
import enum
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import probe_nb as probe
from probe_nb.observe import arguments
from probe_nb.store.values import KINDS
from tests.models import no_faults


class Takes(nn.Module):
    """Takes anything, and gives it back."""

    def forward(self, *args, **kwargs):
        return args, kwargs


class Colour(enum.IntEnum):
    RED = 3


class Word(str):
    __slots__ = ()

    def __str__(self):
        raise AssertionError("code of the user's ran")

    __repr__ = __eq__ = __hash__ = __len__ = __str__


class Point(NamedTuple):
    x: object
    y: object


@dataclasses.dataclass
class Config:
    rate: float
    inner: object = None


def seen(*args, roles="input", **kwargs):
    """Return the leaf, kind and value of all that a call was given."""
    model = Takes()
    with no_faults(), probe.watch(model, values=True, roles=roles) as run:
        model(*args, **kwargs)
    found = run.values()
    assert set(found["role"]) <= {roles}
    assert set(found["direction"]) <= {"forward"}
    return list(zip(found["leaf"], found["kind"], found["value"], strict=True))


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (3, "int", 3),
        (-(2**70), "int", -(2**70)),
        (2.5, "float", 2.5),
        (True, "bool", True),
        ("text", "str", "text"),
        (None, "None", None),
        (slice(1, None, 2), "slice", [1, None, 2]),
        (slice(np.int64(1), torch.tensor(2)), "slice", [1, None, None]),
        (..., "ellipsis", "..."),
        (torch.Size([2, 3]), "torch.Size", [2, 3]),
        (torch.float16, "torch.dtype", "torch.float16"),
        (torch.device("cpu"), "torch.device", "cpu"),
        (torch.device("cuda", 1), "torch.device", "cuda:1"),
        (torch.channels_last, "torch.memory_format", "torch.channels_last"),
        (np.float32(1.5), "float32", 1.5),
        (np.int64(7), "int64", 7),
        (np.True_, type(np.True_).__name__, True),
        ([], "list", []),
        ((), "tuple", []),
        ({}, "dict", {}),
        (Colour.RED, "int", 3),
        (1j, "object", "complex"),
        (b"raw", "object", "bytes"),
        (print, "object", "builtin_function_or_method"),
        (np.ones(3), "object", "ndarray"),
        (nn.ReLU, "object", "type"),
    ],
)
def test_each_kind_of_value(value, kind, expected):
    assert seen(value) == [("0", kind, expected)]
    assert kind in KINDS or isinstance(value, np.generic)


def test_what_json_cannot_hold_is_known_by_its_class():
    assert seen(1 << 10**5, Word("w")) == [("0", "object", "int"), ("1", "str", "w")]


def test_nan_and_the_sign_of_zero_stay():
    found = [value for _, _, value in seen(float("nan"), float("-inf"), -0.0, 0.0)]
    assert np.isnan(found[0])
    assert found[1] == -np.inf
    assert np.signbit(found[2:]).tolist() == [True, False]


def test_numbers_that_are_equal_stay_of_their_types():
    found = seen(1, 1.0, True, np.float32(1))
    assert [(kind, type(value)) for _, kind, value in found] == [
        *[("int", int), ("float", float), ("bool", bool), ("float32", float)],
    ]


def test_paths_are_those_of_tensors():
    x, pair = torch.ones(1), (2, 2)
    found = seen(
        x,
        [x, 5, {"a": x, "b": None}],
        pair,
        pair,
        Point(x, 6),
        Config(0.5, [x]),
        k=pair,
        m={"n": 1},
    )
    assert [(leaf, value) for leaf, _, value in found] == [
        *[("1.1", 5), ("1.2.b", None), ("2.0", 2), ("2.1", 2), ("3.0", 2), ("3.1", 2)],
        *[("4.y", 6), ("5.rate", 0.5), ("kwargs.k.0", 2), ("kwargs.k.1", 2), ("kwargs.m.n", 1)],
    ]


def test_results_are_recorded_too():
    found = seen(torch.ones(1), 2, k="x", roles="output")
    assert [(leaf, value) for leaf, _, value in found] == [("0.1", 2), ("1.k", "x")]


@pytest.mark.parametrize(("result", "expected"), [(3, 3), (None, None), ("s", "s"), ([], [])])
def test_a_lone_result_is_the_first(result, expected):
    class Gives(nn.Module):
        def forward(self, _):
            return result

    with no_faults(), probe.watch(model := Gives(), values=True, roles="output") as run:
        model(torch.ones(1))
    assert run.values()[["leaf", "value"]].values.tolist() == [["0", expected]]


def test_of_tensors_alone_there_is_nothing():
    assert seen(torch.ones(1)) == []
    assert seen([torch.ones(1)], k=torch.ones(1)) == []


def test_no_code_of_the_users_runs():
    class Hostile:
        def _never(self, *_):
            raise AssertionError("code of the user's ran")

        __repr__ = __str__ = __eq__ = __hash__ = __bool__ = __len__ = __iter__ = _never
        __index__ = __int__ = __float__ = __getattr__ = __getattribute__ = _never

    class Number(int):
        __int__ = __index__ = __add__ = __eq__ = __hash__ = __repr__ = __str__ = Hostile._never

    class Real(float):
        __float__ = __int__ = __eq__ = __hash__ = __repr__ = __str__ = Hostile._never

    class Names(dict):
        __iter__ = __len__ = __getitem__ = items = keys = Hostile._never

    class Many(list):
        __iter__ = __len__ = __getitem__ = Hostile._never

    found = seen(Hostile(), Number(4), Real(0.5), Names(a=Number(1)), Many([Hostile()]))
    assert found == [
        ("0", "object", "Hostile"),
        ("1", "int", 4),
        ("2", "float", 0.5),
        ("3.a", "int", 1),
        ("4.0", "object", "Hostile"),
    ]


def test_what_holds_itself_and_what_is_nested_without_end_ends():
    ring = {}
    ring["self"] = ring
    ring["n"] = 1
    deep = 1
    for _ in range(100):
        deep = [deep]
    model = Takes()
    with no_faults(), probe.watch(model, values=True, roles="input") as run:
        model(ring, deep)
    assert run.values()[["leaf", "value"]].values.tolist() == [["0.n", 1]]
    assert any("more than 32 deep" in notice for notice in run.info.notices)


def test_more_than_can_be_looked_at_is_said():
    model = Takes()
    with no_faults(), probe.watch(model, values=True, roles="input") as run:
        model(list(range(10_000)))
    assert len(run.values()) == arguments.MOST - 1  # the list is one of them
    assert arguments.TOO_MANY in run.info.notices


def test_without_the_option_nothing_is_recorded():
    with no_faults(), probe.watch(model := Takes()) as run:
        model(torch.ones(1), 2)
    assert len(run.values()) == 0


def test_at_api_level_those_of_functions():
    x = torch.ones(2, 3)
    with (
        no_faults(),
        probe.watch(level="api", apis="all", values=True, roles="input,output") as run,
    ):
        x.to(torch.float64, copy=True)
        torch.sum(x, dim=-1, dtype=torch.float64)
        x[None, ..., 1:]
        x.view(3, 2)
        x.size()
        x.reshape(torch.Size([6]))
    found = run.values()
    assert list(
        zip(found["api"], found["role"], found["leaf"], found["kind"], found["value"], strict=True)
    ) == [
        ("Tensor.to", "input", "1", "torch.dtype", "torch.float64"),
        ("Tensor.to", "input", "kwargs.copy", "bool", True),
        ("Torch.sum", "input", "kwargs.dim", "int", -1),
        ("Torch.sum", "input", "kwargs.dtype", "torch.dtype", "torch.float64"),
        ("Tensor.__getitem__", "input", "1.0", "None", None),
        ("Tensor.__getitem__", "input", "1.1", "ellipsis", "..."),
        ("Tensor.__getitem__", "input", "1.2", "slice", [1, None, None]),
        ("Tensor.view", "input", "1", "int", 3),
        ("Tensor.view", "input", "2", "int", 2),
        ("Tensor.reshape", "input", "1", "torch.Size", [6]),
    ]


def test_calls_and_steps_are_those_of_the_rows():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Takes()

        def forward(self, x, n):
            return self.inner(x, n)[0][0] + self.inner(x, n + 1)[0][0]

    model = Twice()
    with no_faults(), probe.watch(model, values=True, roles="input") as run:
        for n in (10, 20):
            model(torch.ones(1), n)
    found = run.values()
    assert list(
        zip(
            found["step"],
            found["module"],
            found["type"],
            found["call"],
            found["value"],
            strict=True,
        )
    ) == [
        *[(0, "", "Twice", 0, 10), (0, "inner", "Takes", 0, 10), (0, "inner", "Takes", 1, 11)],
        *[(1, "", "Twice", 0, 20), (1, "inner", "Takes", 0, 20), (1, "inner", "Takes", 1, 21)],
    ]
    assert found["order"].tolist() == [1, 2, 3, 4, 5, 6]


def test_a_step_that_is_not_recorded_leaves_none():
    model = Takes()
    with no_faults(), probe.watch(model, values=True, steps="1", roles="input") as run:
        for n in range(3):
            model(torch.ones(1), n)
    assert run.values()["value"].tolist() == [1]
