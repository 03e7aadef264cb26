"""`seed_all`: the numbers of a fresh process that made the documented calls by hand."""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.backends import cudnn

from probe_nb.errors import ConfigError, ProbeError
from probe_nb.reproduce import seed_all

DRAW = """
drawn = [random.random(), random.gauss(0, 1), random.sample(range(100), 3),
         np.random.rand(2).tolist(), np.random.permutation(5).tolist(),
         torch.randn(2, 2).tolist(), torch.randperm(6).tolist(),
         torch.nn.functional.dropout(torch.ones(8)).tolist(), torch.nn.Linear(2, 2).weight.tolist()]
"""
HEAD = "import json, os, random, sys\nimport numpy as np, torch\n"
TELL = "\nprint(json.dumps(drawn))"
BY_HAND = "random.seed({0}); np.random.seed({0}); torch.manual_seed({0})"
TWICE = """
drawn = [twice(random.random), twice(lambda: random.choice(range(1000))), twice(lambda: random.uniform(0, 9)),
         twice(lambda: np.random.rand(2).tolist()), twice(lambda: np.random.normal(2., 3.)),
         twice(lambda: np.random.permutation(9).tolist()), twice(lambda: np.random.randint(1000)),
         twice(lambda: torch.randn(2, 2).tolist()), twice(lambda: torch.randperm(9).tolist()),
         twice(lambda: torch.zeros(3).normal_().tolist()), twice(lambda: torch.rand_like(torch.ones(2)).tolist()),
         twice(lambda: torch.bernoulli(torch.full((9,), .5)).tolist()), twice(lambda: torch.nn.Linear(2, 2).weight.tolist())]
"""


def said(code):
    """Return what a process of its own prints on its last line."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", HEAD + code + TELL]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def here(code, **more):
    names = {"random": random, "np": np, "torch": torch, **more}
    exec(code, names)
    return json.loads(json.dumps(names["drawn"]))


def test_numbers_are_those_of_a_fresh_process_that_was_seeded_by_hand():
    seeds = (1234, 0, 2**32 - 1)
    code = "\n".join(f"{BY_HAND.format(seed)}{DRAW}\nall_of_them.append(drawn)" for seed in seeds)
    expected = said(f"all_of_them = []\n{code}\ndrawn = all_of_them")
    for seed, numbers in zip(seeds, expected, strict=True):
        for options in ({}, {"mode": True}):
            with seed_all(seed, **options):
                assert here(DRAW) == numbers


def test_the_documented_means_come_out():
    with seed_all(seed=1234, mode=True):
        assert [round(torch.randn(2, 2).mean().item(), 4) for _ in range(2)] == [-0.0866, 0.2038]
    with seed_all(seed=1234, mode=True, is_enhanced=True):
        assert [round(torch.randn(2, 2).mean().item(), 4) for _ in range(2)] == [-0.0866, -0.0866]


def test_enhanced_each_random_call_gives_what_the_first_after_the_seed_gives():
    def by_hand(draw):
        exec(BY_HAND.format(77), {"random": random, "np": np, "torch": torch})
        return [draw()] * 2

    expected = here(TWICE, twice=by_hand)
    with seed_all(77, is_enhanced=True):
        assert here(TWICE, twice=lambda draw: [draw(), draw()]) == expected


def test_variables_and_switches_are_those_of_the_table(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with seed_all(9, mode=True):
        assert (os.environ["PYTHONHASHSEED"], os.environ["HCCL_DETERMINISTIC"]) == ("9", "True")
        assert (cudnn.enabled, cudnn.benchmark, cudnn.deterministic) == (False, False, True)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert "PYTHONHASHSEED" not in os.environ


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "7", None, True, np.int64(3), torch.tensor(3)])
def test_a_seed_that_is_none_is_refused_in_words(seed):
    state = torch.get_rng_state()
    with pytest.raises(
        ConfigError, match=r"`seed` is .*; give a whole number from 0 to 4294967295"
    ):
        seed_all(seed)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", ["mode", "rm_dropout", "is_enhanced"])
@pytest.mark.parametrize("value", [1, None, "yes", np.bool_(True)])
def test_a_switch_that_is_no_bool_is_refused_in_words(name, value):
    with pytest.raises(ProbeError, match=rf"`{name}` is .*; give True or False"):
        seed_all(**{name: value})


def test_a_mode_that_the_user_turned_on_stays_on_and_ours_does_not():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with seed_all(mode=False):
            assert torch.is_deterministic_algorithms_warn_only_enabled()
        with seed_all(mode=True):
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
            again = seed_all(mode=False)  # the cell is run again with another mode
            assert torch.is_deterministic_algorithms_warn_only_enabled()
            again.restore()
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = nn.Dropout(0.5), nn.Dropout2d(0.5), nn.Dropout3d(0.5)
        self.zero, self.alpha = nn.Dropout1d(0.5), nn.AlphaDropout(0.5)
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5)

    def forward(self, x):
        two = (
            self.two(x[None, :, :, None])[0, :, :, 0]
            + self.three(x[None, :, :, None, None])[0, :, :, 0, 0]
        )
        one = (
            self.one(x)
            + F.dropout(input=x, training=self.training)
            + F.dropout(x, 0.3, self.training, False)
            + self.alpha(x)
        )
        plain, _ = self.attention(x, x, x)
        return one + two + self.zero(x) + plain + self.attention(x, x, x, need_weights=False)[0]


def test_without_dropout_a_model_in_training_gives_what_it_gives_in_evaluation():
    model = Dropping()
    x = torch.randn(6, 4)
    expected = model.eval()(x)
    model.train()
    with seed_all(rm_dropout=True):
        state = torch.get_rng_state()
        assert torch.equal(model(x), expected)
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(Dropping().one(x), x)
        with pytest.raises(ValueError, match="between 0 and 1"):
            F.dropout(x, 1.5)
    assert not torch.equal(model(x), expected)


def test_without_dropout_compiled_code_drops_nothing_either():
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.9))
    compiled = torch.compile(model, backend="eager")
    x = torch.ones(5, 3)
    with seed_all(rm_dropout=True):
        assert torch.equal(compiled(x), model[0](x))
    assert (compiled(x) == 0).any()
    torch._dynamo.reset()


def test_a_loop_of_seeds_that_nobody_keeps_leaves_nothing_behind():
    outside = seed_all(0)
    kept = weakref.ref(seed_all(1))
    outside.restore()
    gc.collect()
    assert kept() is None


def test_switches_can_be_set_where_torch_has_frozen_them(monkeypatch):
    monkeypatch.setattr(torch.backends, "__allow_nonbracketed_mutation_flag", False)
    with seed_all():
        assert cudnn.deterministic
    assert not cudnn.deterministic


def test_numpy_may_be_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy.random", None)
    monkeypatch.delattr(np, "random")
    with seed_all(5, is_enhanced=True):
        assert torch.rand(1).item() == torch.rand(1).item()


def test_it_says_what_it_is():
    seeded = seed_all(5, rm_dropout=True)
    assert repr(seeded) == (
        "seed_all(5, mode=False, rm_dropout=True, is_enhanced=False): "
        "`.restore()` gives everything back"
    )
    seeded.restore()


def test_enhanced_every_function_that_torch_tags_as_drawing_is_fixed():
    """But layers that take their dropout into one operator, and parts of other functions."""
    recurrent = {"gru", "lstm", "miopen_rnn", "rnn_relu", "rnn_tanh"}
    names = {
        schema.name[6:]
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("aten::")
    }
    tagged = {
        name
        for name in names
        for overload in getattr(torch.ops.aten, name).overloads()
        if torch.Tag.nondeterministic_seeded
        in getattr(getattr(torch.ops.aten, name), overload).tags
    }
    rooms = {"torch": torch, "functional": F, "tensor": torch.Tensor}
    before = {(room, name): getattr(rooms[room], name, None) for room in rooms for name in tagged}
    with seed_all(is_enhanced=True):
        left = {
            name
            for (room, name), was in before.items()
            if was and getattr(rooms[room], name) is was
        }
    methods = {name for name in left if not hasattr(torch, name)}
    modules = {"random"}
    assert {name for name in left if not name.startswith("_")} == recurrent | modules
    assert methods == set()
    assert not left & {"_standard_gamma", "_sample_dirichlet"}  # which distributions call
