"""A fault that is planted anywhere in a random model is found where it was planted."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import probe_nb as probe
from probe_nb.analysis.origins import Origins, origin
from probe_nb.errors import NonFiniteError
from probe_nb.store.blocks import pick
from probe_nb.store.columns import Columns
from tests.models import no_faults


@dataclass(frozen=True)
class Fault:
    """What is planted: the kind, the block and the node in it, and the value."""

    kind: str
    block: int
    node: int
    value: float


class Spoil(torch.autograd.Function):
    """Hands on what it gets, and spoils the gradient."""

    @staticmethod
    def forward(ctx, x, value):
        ctx.value = value
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.value, None


class Node(nn.Module):
    """One layer; all it gives out is finite, whatever finite it is given."""

    def __init__(self, fault):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.fault = fault
        if fault is not None and fault.kind == "param":
            with torch.no_grad():
                self.weight[1] = math.nan

    def forward(self, x):
        y = torch.tanh(x * self.weight)
        if self.fault is not None and self.fault.kind == "own":
            y = y * self.fault.value
        if self.fault is not None and self.fault.kind == "own backward":
            y = y + Spoil.apply(x, self.fault.value)
        return y


class Block(nn.Module):
    """Nodes that take sums of what earlier ones gave."""

    def __init__(self, number, nodes, edges, fault):
        super().__init__()
        here = fault is not None and fault.block == number
        self.fault = fault if here else None
        self.nodes = nn.ModuleList(
            Node(fault if here and fault.node == node else None) for node in range(nodes)
        )
        self.edges = edges

    def forward(self, x):
        given = [x]
        for number, node in enumerate(self.nodes):
            taken = sum(given[each] for each in self.edges[number])
            if self.fault is not None and self.fault.node == number:
                if self.fault.kind == "between":
                    taken = taken * self.fault.value
                if self.fault.kind == "between backward":
                    taken = Spoil.apply(taken, self.fault.value)
            given.append(node(taken))
        y = sum(given[1:])
        return y * self.fault.value if self.fault is not None and self.fault.kind == "after" else y


def model_of(seed, sizes, fault):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    blocks = []
    for number, nodes in enumerate(sizes):
        edges = [
            sorted({node, *(draw.randrange(node + 1) for _ in range(2))}) for node in range(nodes)
        ]
        blocks.append(Block(number, nodes, edges, fault))
    return nn.Sequential(*blocks)


def train(model, fault):
    x = torch.randn(2, 3, requires_grad=True)
    y = model(x * fault.value if fault is not None and fault.kind == "fed" else x)
    loss = y.sum()
    (loss * fault.value if fault is not None and fault.kind == "loss" else loss).backward()


def expected(fault, sizes):
    """Say from the plan alone what is to be found: phase, module, and what lies on both sides."""
    node, block = f"{fault.block}.nodes.{fault.node}", f"{fault.block}"
    before = f"{fault.block}.nodes.{fault.node - 1}" if fault.node else block
    last = f"{fault.block}.nodes.{sizes[fault.block] - 1}"
    return {
        "own": ("forward", node, None),
        "between": ("forward", block, (before, node)),
        "after": ("forward", block, (last, block)),
        "fed": ("input", "", None),
        "param": ("parameter", node, None),
        "own backward": ("backward", node, None),
        "loss": ("backward", "", None),
    }[fault.kind]


sizes = st.lists(st.integers(1, 4), min_size=1, max_size=3)
places = st.tuples(st.integers(0, 2), st.integers(0, 3))
kinds = st.sampled_from(
    ["own", "between", "after", "fed", "param", "own backward", "between backward", "loss"]
)


def plan(shape, place, kind, value):
    block = place[0] % len(shape)
    return Fault(kind, block, place[1] % shape[block], value)


def check(origin, fault, shape):
    found = (origin.phase, origin.module, origin.between)
    if fault.kind != "between backward":
        assert found == expected(fault, shape)
        return
    phase, module, between = found
    assert phase == "backward"
    assert between is not None
    if fault.node == 0 and module != f"{fault.block}":  # what it took is what another block gave
        assert (module, between[1]) == ("", f"{fault.block - 1}")
    else:
        assert module == f"{fault.block}"


@settings(max_examples=80)
@given(st.integers(0, 99), sizes, places, kinds, st.sampled_from([math.nan, math.inf]))
def test_a_planted_fault_is_found_where_it_is(seed, shape, place, kind, value):
    fault = plan(shape, place, kind, value)
    model = model_of(seed, shape, fault)
    with no_faults(), probe.watch(model, live=False) as run:
        train(model, fault)
    check(run.first_nonfinite(), fault, shape)


@settings(max_examples=40)
@given(st.integers(0, 99), sizes, places, kinds, st.sampled_from([math.nan, math.inf]))
def test_a_watch_that_stops_says_what_the_whole_run_would_have_said(
    seed, shape, place, kind, value
):
    fault = plan(shape, place, kind, value)
    model = model_of(seed, shape, fault)
    with no_faults(), probe.watch(model, live=False) as whole:
        train(model, fault)
    with (
        no_faults(),
        pytest.raises(NonFiniteError) as raised,
        probe.watch(model, live=False, stop_on="nonfinite") as run,
    ):
        train(model, fault)
    assert raised.value.run is run
    assert not run.is_open
    assert raised.value.origin.sentence == whole.first_nonfinite().sentence
    assert run.first_nonfinite().sentence == whole.first_nonfinite().sentence


@settings(max_examples=40)
@given(
    seed=st.integers(0, 99),
    shape=sizes,
    place=places,
    kind=kinds,
    value=st.sampled_from([math.nan, math.inf, -math.inf]),
    cuts=st.lists(st.floats(0, 1), max_size=4),
)
def test_it_does_not_matter_in_what_portions_a_run_is_read(
    *, seed, shape, place, kind, value, cuts
):
    model = model_of(seed, shape, plan(shape, place, kind, value))
    with no_faults(), probe.watch(model, live=False) as run:
        for _ in range(3):
            train(model, plan(shape, place, kind, value))
            run.step()
    rows = run.columns.arrays()
    portions = Columns(run.columns.tables)
    ends = sorted({len(run), *(int(cut * len(run)) for cut in cuts)} - {0})
    live = Origins(portions)
    for begin, end in itertools.pairwise([0, *ends]):
        portion = pick(rows, np.arange(begin, end))
        portions.append(portion)
        live.add(portion, begin)
    whole = run.first_nonfinite()
    born = live.birth
    assert (None if born is None else origin(portions, born, run.info).sentence) == (
        None if whole is None else whole.sentence
    )


@settings(max_examples=20)
@given(st.integers(0, 99), sizes)
def test_a_sound_model_has_no_origin_and_does_not_stop(seed, shape):
    model = model_of(seed, shape, None)
    with no_faults(), probe.watch(model, live=False, stop_on="nonfinite") as run:
        train(model, None)
    assert run.first_nonfinite() is None
