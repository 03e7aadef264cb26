"""Inference token by token: which forwards of the model `token_range` records."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, cache_utils

import probe_nb as probe
from probe_nb.errors import ConfigError
from tests.models import no_faults

PROMPT = torch.tensor([[3, 1, 4, 1]])


@pytest.fixture(scope="module")
def gpt():
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 32, "vocab_size": 20}
    special = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **special)).eval()


def generate(model, **options):
    torch.manual_seed(1)
    return model.generate(
        PROMPT, attention_mask=torch.ones_like(PROMPT), max_new_tokens=6, do_sample=True, **options
    )


def lengths(run, module="transformer.wte"):
    """Return step -> how many tokens were fed, which tells the prompt from what followed."""
    rows = run.df[(run.df["module"] == module) & (run.df["role"] == "input")]
    return {step: shape[1] for step, shape in zip(rows["step"], rows["shape"], strict=True)}


def test_generate_draws_the_same_tokens_and_each_forward_is_a_step(gpt):
    expected = generate(gpt)
    with no_faults(), probe.watch(gpt, live=False) as run:
        found = generate(gpt)
    assert torch.equal(found, expected)
    assert lengths(run) == {0: 4, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1}
    assert set(run.df["micro_step"]) == {0}


@pytest.mark.parametrize(
    ("asked", "steps"),
    [((2, 4), [2, 3, 4]), ((0, 0), [0]), ([5, 99], [5]), ("1, 2", [1, 2]), ((50, 60), [])],
    ids=str,
)
def test_only_the_tokens_of_the_range_are_recorded_both_ends_included(gpt, asked, steps):
    expected = generate(gpt)
    with no_faults(), probe.watch(gpt, token_range=asked, live=False) as run:
        found = generate(gpt)
    assert torch.equal(found, expected)
    assert sorted(set(run.df["step"])) == steps
    assert set(lengths(run)) == set(steps)
    assert run.info.steps == 6
    parameters = run.df[run.df["role"] == "param"]
    assert sorted(set(parameters["step"])) == steps


def test_the_cache_is_recorded_as_it_grows_once_and_not_at_every_layer(gpt):
    with probe.watch(gpt, token_range=(0, 2), live=False) as run:
        generate(gpt)
    cache = run.df[run.df["leaf"].str.contains(".layers.", regex=False)]
    assert set(cache["module"]) == {"", "transformer"}
    assert set(cache["role"]) == {"output"}
    rows = cache[(cache["module"] == "") & cache["leaf"].str.endswith(".layers.1.keys")]
    assert rows["shape"].tolist() == [(1, 2, 4, 4), (1, 2, 5, 4), (1, 2, 6, 4)]
    # the keys of a layer are the second third of what its projection gives
    last = run.frame(module="transformer.h.1.attn.c_attn", role="output", step=0)
    assert rows["absmax"].iloc[0] <= last["absmax"].item()
    with torch.no_grad():
        hidden = gpt.transformer(PROMPT, output_hidden_states=True).hidden_states[1]
        block = gpt.transformer.h[1]
        keys = block.attn.c_attn(block.ln_1(hidden))[..., 8:16].double()
    assert rows["mean"].iloc[0] == pytest.approx(keys.mean().item(), rel=1e-5)


def test_a_cache_that_is_handed_in_leaves_the_arguments_as_they_were(gpt):
    with torch.no_grad():
        bare, seen = (cache_utils.DynamicCache(config=gpt.config) for _ in range(2))
        gpt.transformer(PROMPT, bare)
        gpt.transformer(PROMPT, seen)
        expected = gpt.transformer(PROMPT[:, :1], bare)[0]
        with probe.watch(gpt, live=False):
            found = gpt.transformer(PROMPT[:, :1], seen)[0]
    assert torch.equal(found, expected)
    assert torch.equal(seen.layers[1].keys, bare.layers[1].keys)


def test_an_unrecorded_token_costs_no_reduction_and_no_row(gpt):
    with probe.watch(gpt, token_range=(3, 3), live=False) as run:
        generate(gpt)
        assert len(run) > 0
        before = len(run)
        generate(gpt)  # tokens 6 to 11
        assert len(run) == before


class Line(nn.Module):
    """Adds one; a second part is called by hand before the whole, as an encoder is."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Identity()
        self.lin = nn.Linear(1, 1)

    def forward(self, x):
        return self.lin(x)


def fed(run, module=""):
    rows = run.frame(role="input")
    rows = rows[rows["module"] == module]
    return [(step, value) for step, value in zip(rows["step"], rows["max"], strict=True)]


def test_tokens_are_counted_from_zero_again_after_a_step_by_hand():
    model = Line()
    with torch.no_grad(), probe.watch(model, token_range=(1, 2), live=False) as run:
        for prompt in range(2):
            for token in range(4):
                model(torch.tensor([10.0 * prompt + token]))
            run.step()
    # the first loop is on its own: each forward a step; from the first call on steps are the user's
    assert fed(run) == [(1, 1.0), (2, 2.0), (4, 11.0), (4, 12.0)]
    parameters = run.frame(role="param", leaf="weight")
    assert parameters["step"].tolist() == [1, 2, 4]


def test_a_part_that_runs_before_the_first_token_belongs_to_it():
    model = Line()
    with torch.no_grad(), probe.watch(model, token_range=(0, 0), live=False) as run:
        model.encoder(torch.tensor([7.0]))
        for token in range(3):
            model(torch.tensor([float(token)]))
    assert fed(run, "encoder") == [(0, 7.0)]
    assert fed(run) == [(0, 0.0)]


def test_n_tokens_are_n_steps_also_where_an_encoder_runs_first():
    model = Line()
    with torch.no_grad(), probe.watch(model, live=False) as run:
        model.encoder(torch.tensor([7.0]))
        for token in range(3):
            model(torch.tensor([float(token)]))
    assert fed(run, "encoder") == [(0, 7.0)]
    assert fed(run) == [(0, 0.0), (1, 1.0), (2, 2.0)]
    assert set(run.df["micro_step"]) == {0}


def test_a_part_that_is_called_alone_is_a_step_each_time():
    model = Line()
    with torch.no_grad(), probe.watch(model, live=False) as run:
        for n in range(3):
            model.encoder(torch.tensor([float(n)]))
    assert fed(run, "encoder") == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_in_training_the_forwards_of_the_range_have_their_gradients():
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with probe.watch(model, optimizer=optimizer, token_range=(1, 2), live=False) as run:
        for n in range(4):
            model(torch.tensor([float(n)], requires_grad=True)).sum().backward()
            optimizer.step()
    weights = run.frame(role="param_grad", direction="backward", leaf="weight")
    assert list(zip(weights["step"], weights["max"], strict=True)) == [(1, 1.0), (2, 2.0)]
    assert run.frame(role="grad_output", module="lin")["step"].tolist() == [1, 2]


def test_steps_are_counted_where_only_a_part_is_called_and_only_some_are_recorded():
    model = Line()
    with torch.no_grad(), probe.watch(model, steps="2", live=False) as run:
        for token in range(4):
            model.encoder(torch.tensor([float(token)]))
    assert fed(run, "encoder") == [(2, 2.0)]


@pytest.mark.parametrize(
    "asked", [5, "5", "2-5", "a,b", (1,), (1, 2, 3), (1.5, 2), (True, 2), (-1, 2), object(), ""]
)
def test_a_range_that_makes_no_sense_is_refused_in_words(asked):
    with pytest.raises(ConfigError, match="the first and the last"):
        probe.watch(Line(), token_range=asked)


def test_a_range_that_ends_before_it_begins_is_refused():
    with pytest.raises(ConfigError, match="ends before it begins"):
        probe.watch(Line(), token_range=(5, 2))
