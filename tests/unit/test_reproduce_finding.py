"""`find_random`: each function that draws, how often, and at which line; results as without it."""

# ruff: noqa: NPY002 - the functions that are looked for
from __future__ import annotations

import functools
import inspect
import random
import secrets
import sys
import threading
from pathlib import Path
from random import choice

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.random import randn
from torch import nn

import probe_nb
from probe_nb.errors import ProbeWarning, SessionStateError
from probe_nb.reproduce import find_random
from tests.models import no_faults

x = torch.full((1, 2, 8, 4), -1.0)
own_torch, own_numpy, own_python = torch.Generator(), np.random.default_rng(0), random.Random(0)
legacy = np.random.RandomState(0)

TORCH = {
    "torch.rand": lambda: torch.rand(2),
    "torch.randn": lambda: torch.randn(2),
    "torch.randint": lambda: torch.randint(3, (2,)),
    "torch.randperm": lambda: torch.randperm(4),
    "torch.rand_like": lambda: torch.rand_like(x),
    "torch.randn_like": lambda: torch.randn_like(x),
    "torch.randint_like": lambda: torch.randint_like(x, 3),
    "torch.normal": lambda: torch.normal(torch.zeros(2), 1.0),
    "torch.bernoulli": lambda: torch.bernoulli(x.abs() / 2),
    "torch.multinomial": lambda: torch.multinomial(torch.ones(3), 2),
    "torch.poisson": lambda: torch.poisson(x.abs()),
    "torch.binomial": lambda: torch.binomial(x.abs() * 8, x.abs() / 2),
    "torch._standard_gamma": lambda: torch.distributions.Gamma(2.0, 1.0).sample(),
    "torch.dropout": lambda: torch.dropout(x, 0.5, train=True),
    "torch.rrelu": lambda: torch.rrelu(x, training=True),
    "torch.lstm": lambda: LSTM(x[0]),
    "torch.Tensor.uniform_": lambda: x.clone().uniform_(),
    "torch.Tensor.normal_": lambda: nn.init.normal_(torch.empty(3)),
    "torch.Tensor.bernoulli_": lambda: x.clone().bernoulli_(),
    "torch.Tensor.cauchy_": lambda: x.clone().cauchy_(),
    "torch.Tensor.exponential_": lambda: F.gumbel_softmax(x),
    "torch.Tensor.geometric_": lambda: x.clone().geometric_(0.5),
    "torch.Tensor.log_normal_": lambda: x.clone().log_normal_(),
    "torch.Tensor.random_": lambda: x.clone().random_(),
    "torch.Tensor.multinomial": lambda: torch.ones(3).multinomial(1),
    "torch.nn.functional.dropout": lambda: nn.Dropout()(x),
    "torch.nn.functional.dropout1d": lambda: nn.Dropout1d()(x[0]),
    "torch.nn.functional.dropout2d": lambda: F.dropout2d(x),
    "torch.nn.functional.dropout3d": lambda: F.dropout3d(x),
    "torch.nn.functional.alpha_dropout": lambda: nn.AlphaDropout()(x),
    "torch.nn.functional.feature_alpha_dropout": lambda: F.feature_alpha_dropout(x, training=True),
    "torch.nn.functional.rrelu": lambda: nn.RReLU()(x),
    "torch.nn.functional.scaled_dot_product_attention": lambda: (
        F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
    ),
}  # fmt: skip
LSTM = nn.LSTM(4, 4, 2, dropout=0.5)
PYTHON = {
    "random.random": random.random,
    "random.choice": lambda: choice([1, 2]),
    "random.shuffle": lambda: random.shuffle([1, 2, 3]),
    "random.gauss": lambda: random.gauss(0, 1),
    "random.randint": lambda: random.randint(0, 9),
    "random.sample": lambda: random.sample(range(9), 3),
    "random.uniform": lambda: random.uniform(0, 1),
    "random.getrandbits": lambda: random.getrandbits(8),
    "random.Random.random": own_python.random,
    "random.Random.choices": lambda: own_python.choices([1, 2], k=3),
    "random.SystemRandom.choice": lambda: secrets.choice([1, 2]),
}
NUMPY = {
    "numpy.random.rand": lambda: np.random.rand(2),
    "numpy.random.randn": lambda: randn(2),
    "numpy.random.normal": lambda: np.random.normal(size=2),
    "numpy.random.permutation": lambda: np.random.permutation(4),
    "numpy.random.choice": lambda: np.random.choice(4, 2),
    "numpy.random.ranf": lambda: np.random.ranf(2),
    "numpy.random.Generator.normal": lambda: own_numpy.normal(size=2),
    "numpy.random.Generator.integers": lambda: own_numpy.integers(9),
    "numpy.random.Generator.shuffle": lambda: own_numpy.shuffle([1, 2, 3]),
    "numpy.random.RandomState.rand": lambda: legacy.rand(2),
    "numpy.random.default_rng": lambda: np.random.default_rng(None),
}


def line_here(offset=0):
    return inspect.currentframe().f_back.f_lineno + offset


@pytest.mark.parametrize(("name", "draw"), [*TORCH.items(), *PYTHON.items(), *NUMPY.items()])
def test_a_call_is_named_counted_and_located(name, draw):
    with no_faults(), find_random() as found:
        for _ in range(3):
            draw()
    (row,) = found.df.to_dict("records")
    assert (row["api_name"], row["count"], row["library"]) == (
        name,
        3,
        name.split(".")[0].replace("random", "python"),
    )
    assert Path(row["file"]) == Path(__file__)
    if draw.__name__ == "<lambda>":
        assert row["line"] - draw.__code__.co_firstlineno in {0, 1}
    else:
        assert row["code"] == "draw()"
    assert row["code"] in Path(__file__).read_text()


@pytest.mark.parametrize(
    "quiet",
    [
        lambda: nn.Dropout().eval()(x),
        lambda: F.dropout(x, 0.0),
        lambda: F.scaled_dot_product_attention(x, x, x),
        lambda: torch.empty(0).normal_(),
        lambda: torch.rand(3, device="meta"),
        lambda: (random.getstate(), np.random.get_state(), torch.get_rng_state()),
        lambda: np.random.default_rng(3),
        lambda: np.random.RandomState(3),
    ],
)
def test_what_draws_nothing_is_no_random_call(quiet):
    with no_faults(), find_random() as found:
        quiet()
    assert len(found) == 0


def test_whose_generator_it_is_is_told():
    with find_random() as found:
        torch.rand(2, generator=own_torch)
        torch.rand(2, generator=torch.default_generator)
        own_numpy.random(), np.random.mtrand._rand.rand(2)
        own_python.random(), random.random()
    rows = found.df[["api_name", "generator"]].to_numpy().tolist()
    assert rows == [
        ["torch.rand", "own"],
        ["torch.rand", "global"],
        ["numpy.random.Generator.random", "own"],
        ["numpy.random.RandomState.rand", "global"],
        ["random.Random.random", "own"],
        ["random.random", "global"],
    ]


def test_functions_that_c_code_calls_are_found_with_the_line():
    with find_random() as found:
        here = line_here(1)
        list(map(torch.rand, [2, 3]))
        functools.partial(torch.randn, 3)()
    rows = found.df[["api_name", "count", "line"]].to_numpy().tolist()
    assert rows == [["torch.rand", 2, here], ["torch.randn", 1, here + 1]]


def test_the_stack_has_the_users_lines_innermost_first_and_none_of_torchs():
    class Mine(nn.Module):
        def forward(self, x):
            return F.dropout(x)

    model = nn.Sequential(Mine())
    with find_random() as found:
        model(x)
    first, second = found.df["stack"][0].splitlines()[:2]
    assert first.endswith("in forward: return F.dropout(x)")
    assert second.endswith("innermost_first_and_none_of_torchs: model(x)")
    assert "torch/nn" not in found.df["stack"][0]
    assert "probe_nb/" not in found.df["stack"][0].replace(
        str(Path(probe_nb.__file__).parents[1]), ""
    )


def test_draws_in_a_backward_are_found():
    from torch.utils.checkpoint import checkpoint

    layer = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    leaf = torch.ones(2, 4, requires_grad=True)
    out = checkpoint(layer, leaf, use_reentrant=False, preserve_rng_state=False)
    with find_random() as found:
        here = line_here(1)
        out.sum().backward()
    rows = found.df[["api_name", "count", "line"]].to_numpy().tolist()
    assert rows == [["torch.nn.functional.dropout", 1, here]]


def test_operators_of_other_libraries_are_found_by_what_they_do():
    library = torch.library.Library("probe_tests", "DEF")
    library.define("noise(Tensor x) -> Tensor")
    library.define("quiet(Tensor x) -> Tensor")
    library.impl("noise", lambda x: x + torch.rand(2), "CPU")
    library.impl("quiet", lambda x: x + 1, "CPU")
    with find_random() as found:
        torch.ops.probe_tests.noise(torch.ones(2))
        torch.ops.probe_tests.quiet(torch.ones(2))
    assert list(found.df["api_name"]) == ["torch.ops.probe_tests.noise"]
    library._destroy()


def test_what_is_drawn_unseen_is_said():
    with find_random() as found:
        threads = [
            threading.Thread(target=draw)
            for draw in (lambda: torch.rand(3), lambda: np.random.rand(3), random.random)
        ]
        for each in threads:
            each.start()
            each.join()
    assert len(found) == 0
    assert [note.split("generator of ")[1].split()[0] for note in found.notes] == [
        "python",
        "torch",
        "numpy",
    ]
    assert "note: Numbers of the global generator of torch were drawn" in repr(found)


def test_beside_a_profiler_in_c_it_says_what_it_cannot_see():
    import cProfile

    profiler = cProfile.Profile()
    profiler.enable()
    try:
        with find_random() as found:
            F.dropout(x), np.random.rand(2), random.random()
        assert sys.getprofile() is profiler
    finally:
        profiler.disable()
    names = list(found.df["api_name"])
    if sys.version_info >= (3, 12):  # where it no longer takes a profile function's place
        assert (names.pop(), found.notes) == ("random.random", ())
    else:
        assert found.notes[0].startswith("Another profiler runs here")
        assert len(found.notes) == 2
    assert names == ["torch.nn.functional.dropout", "numpy.random.rand"]


def test_a_fault_of_ours_is_said_once_and_is_never_the_users(monkeypatch):
    from probe_nb.reproduce import frames

    def broken(frame):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(frames, "nearest", broken)
    found = find_random()

    def draw():
        with found:
            assert torch.rand(2).shape == (2,)
            assert len(np.random.rand(3)) == 3
            assert 0 <= random.random() < 1

    with pytest.warns(ProbeWarning, match="could not be listed") as told:
        draw()
    assert len(told) == 1
    assert "Some calls are missing: ZeroDivisionError: ours" in found.notes


def test_the_users_error_keeps_its_kind_and_message():
    with find_random() as found:
        with pytest.raises(TypeError):
            np.random.rand("three")
        with pytest.raises(IndexError):
            random.choice([])
        with pytest.raises(RuntimeError):
            torch.rand(-1)
    assert list(found.df["api_name"]) == ["numpy.random.rand", "random.choice"]


def test_a_block_inside_a_block_and_both_see_the_same():
    with find_random() as outside, find_random() as inside:
        F.dropout(x), np.random.rand(2), own_numpy.normal(), random.random(), torch.rand(1)
    assert inside.df.to_dict() == outside.df.to_dict()
    assert len(inside) == 5


def test_it_can_be_opened_again_but_not_twice_at_once():
    found = find_random()
    with found:
        torch.rand(1)
        with pytest.raises(SessionStateError, match="open"):
            found.__enter__()
    torch.rand(1)
    with found:
        torch.rand(1)
    assert found.df["count"].sum() == 2


def test_under_seed_all_enhanced_calls_are_still_found_once():
    with probe_nb.reproduce.seed_all(3, is_enhanced=True), find_random() as found:
        torch.rand(1), np.random.rand(2), random.random(), F.dropout(x)
    names = {"torch.rand", "numpy.random.rand", "random.random", "torch.nn.functional.dropout"}
    assert set(found.df["api_name"]) == names


def test_names_of_files_are_escaped_where_they_are_shown():
    code = compile("import torch\nwith found: torch.rand(2)", "<b>mine</b>.py", "exec")
    found = find_random()
    exec(code, {"found": found, "__name__": "mine"})
    assert "&lt;b&gt;mine" in found._repr_html_()
    assert "<b>mine" not in found._repr_html_()
    assert list(found.df["file"]) == ["<b>mine</b>.py"]


def test_a_generator_that_cannot_be_read_makes_the_row_unknown(monkeypatch):
    from probe_nb.devices import generators

    monkeypatch.setattr(generators, "positions", lambda: {torch.device("cuda", 0): None})
    with find_random() as found:
        torch.rand(2)
        torch.ones(2).relu()
    assert found.df[["api_name", "generator"]].to_numpy().tolist() == [["torch.rand", "unknown"]]
