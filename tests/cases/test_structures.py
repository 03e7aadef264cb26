"""Arguments and results of every shape: keywords, dicts, dataclasses, packed sequences, nothing."""

from __future__ import annotations

import collections
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

import probe_nb as probe
from tests.cases.watching import norm, numbers, watched
from tests.models import no_faults


class Keywords(nn.Module):
    """Takes nothing by position."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(2, 2)

    def forward(self, *, x, mask=None, more=None):
        y = self.l(x)
        if mask is not None:
            y = y.masked_fill(mask, 0)
        return y if more is None else y + more["a"][0]


def test_a_tensor_that_is_passed_by_keyword_alone_has_an_input_and_a_gradient():
    torch.manual_seed(0)
    model = Keywords()
    x = torch.ones(1, 2, requires_grad=True)
    run = watched(model, loss=torch.sum, x=x, mask=None)
    root = run.frame(module="(root)")
    assert root[root["role"] == "input"]["leaf"].tolist() == ["kwargs.x"]
    (given,) = root[root["role"] == "grad_input"].to_dict("records")
    assert given["leaf"] == "kwargs.x"
    assert given["l2"] == norm(x.grad)
    assert given["l2"] == norm(model.l.weight.sum(0))


def test_keywords_of_any_kind_are_named_and_measured():
    torch.manual_seed(0)
    x, extra = torch.randn(3, 2, requires_grad=True), torch.randn(3, 2, requires_grad=True)
    mask = torch.tensor([[True, False]] * 3)
    run = watched(Keywords(), x=x, mask=mask, more={"a": [extra, 3]})
    inputs = numbers(run, "input", "mean")
    assert {leaf for module, leaf in inputs if not module} == {
        "kwargs.x",
        "kwargs.mask",
        "kwargs.more.a.0",
    }
    assert inputs["", "kwargs.mask"] == 0.5
    gradients = numbers(run, "grad_input")
    assert gradients["", "kwargs.x"] == norm(x.grad)
    assert gradients["", "kwargs.more.a.0"] == norm(extra.grad)


@pytest.mark.parametrize("hooked", [False, True], ids=["bare", "with hooks of the user's"])
def test_keywords_reach_us_also_beside_hooks_of_the_users_that_change_them(hooked):
    model = Keywords()
    x = torch.ones(1, 2, requires_grad=True)
    if hooked:
        model.register_forward_pre_hook(
            lambda _, args, kwargs: (args, {**kwargs, "x": kwargs["x"] * 5}), with_kwargs=True
        )
    run = watched(model, loss=torch.sum, x=x)
    assert numbers(run, "input", "mean")["", "kwargs.x"] == (5.0 if hooked else 1.0)


@dataclass
class Answer:
    """A result as a dataclass."""

    logits: Any
    aux: Any


@dataclass(frozen=True)
class Sealed:
    """A result that cannot be written, with slots."""

    __slots__ = ("aux", "logits")
    logits: Any
    aux: Any


class Pair(NamedTuple):
    """A result as a named tuple."""

    logits: Any
    aux: Any


class Ordered(collections.OrderedDict):
    """A dict of one's own, as older libraries give."""


@dataclass
class Output(ModelOutput):
    """A result as the models of transformers give it."""

    logits: Any = None
    aux: Any = None


def _list(**parts):
    return list(parts.values())


def _deep(**parts):
    return [[parts["logits"]], ({"aux": parts["aux"]},)]


SHAPES = {
    "dict": (dict, "logits", "aux.0"),
    "OrderedDict of one's own": (Ordered, "logits", "aux.0"),
    "defaultdict": (lambda **p: collections.defaultdict(list, p), "logits", "aux.0"),
    "dataclass": (Answer, "logits", "aux.0"),
    "frozen dataclass with slots": (Sealed, "logits", "aux.0"),
    "ModelOutput": (Output, "logits", "aux.0"),
    "named tuple": (Pair, "logits", "aux.0"),
    "list": (_list, "0", "1.0"),
    "tuple": (lambda **p: tuple(p.values()), "0", "1.0"),
    "nested list": (_deep, "0.0", "1.0.aux.0"),
}


class Gives(nn.Module):
    """Gives its result in a shape, and remembers the object."""

    def __init__(self, shape):
        super().__init__()
        self.l, self.shape = nn.Linear(2, 2), shape

    def forward(self, x):
        h = self.l(x)
        self.logits = h + 1
        self.given = self.shape(logits=self.logits, aux=[h * 2, None, "txt", 3])
        return self.given


@pytest.mark.parametrize("name", SHAPES)
def test_a_result_of_any_shape_has_outputs_and_gradients_and_stays_itself(name):
    shape, logits, aux = SHAPES[name]
    model = nn.Sequential(Gives(shape))
    inner = model[0]
    with no_faults(), probe.watch(model, live=False) as run:
        result = model(torch.ones(1, 2))
        assert result is inner.given
        expected = inner.logits.detach().clone()
        inner.logits.sum().backward()
    assert type(result) is type(shape(logits=None, aux=[None]))
    outputs, arrived = numbers(run, "output"), numbers(run, "grad_output", "mean")
    for module in ("", "0"):
        assert {leaf for m, leaf in outputs if m == module} == {logits, aux}
        assert outputs[module, logits] == norm(expected)
        assert {leaf: n for (m, leaf), n in arrived.items() if m == module} == {logits: 1.0}


@pytest.mark.parametrize("result", [None, 3, "text", (), {}, [None, [None, {}]], object()])
def test_a_result_without_tensors_is_no_row_and_no_fault(result):
    class Says(nn.Module):
        def forward(self, _):
            return result

    model = Says()
    with no_faults(), probe.watch(model, live=False) as run:
        assert model(torch.ones(2)) is result
    assert run.df["role"].tolist() == ["input"]


def test_a_model_output_of_transformers_keeps_its_class_and_its_gradients():
    class Body(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(2, 2)

        def forward(self, x):
            h = self.l(x)
            return BaseModelOutput(last_hidden_state=h.tanh(), hidden_states=(x, h))

    run = watched(Body(), torch.ones(1, 2), loss=lambda o: o.last_hidden_state.sum())
    assert numbers(run, "grad_output", "mean")["", "last_hidden_state"] == 1.0
    leaves = run.frame(module="(root)", role="output")["leaf"]
    assert set(leaves) == {"last_hidden_state", "hidden_states.0", "hidden_states.1"}


FIRST = {
    "embedding": (lambda: nn.Embedding(10, 4), lambda: torch.tensor([1, 2])),
    "embedding bag": (lambda: nn.EmbeddingBag(10, 4), lambda: torch.tensor([[1, 2], [3, 4]])),
    "data without gradient": (lambda: nn.Linear(3, 4), lambda: torch.ones(2, 3)),
    "frozen": (lambda: nn.Linear(3, 4).requires_grad_(False), lambda: torch.ones(2, 3)),
    "detached": (
        lambda: nn.Linear(3, 4),
        lambda: torch.ones(2, 3, requires_grad=True).detach(),
    ),
}


@pytest.mark.parametrize("name", FIRST)
def test_a_first_layer_whose_input_has_no_gradient_has_no_row_for_it_and_nobody_is_warned(name):
    make, data = FIRST[name]
    model = nn.Sequential(make(), nn.Linear(4, 2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = watched(model, data(), loss=torch.sum)
    assert caught == []
    arrived = numbers(run, "grad_output", "mean")
    trained = name != "frozen"
    assert arrived.keys() == {("1", "0"), ("", "0")} | ({("0", "0")} if trained else set())
    assert arrived["1", "0"] == 1.0
    entering = numbers(run, "grad_input")
    assert entering.keys() == ({("1", "0")} if trained else set())
    if trained:
        assert entering["1", "0"] == norm(model[1].weight.detach().sum(0).expand(2, 4))


RECURRENT = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("packing", ["sorted", "unsorted", "pack_sequence"])
def test_a_packed_sequence_is_measured_over_its_eight_real_steps(kind, packing):
    torch.manual_seed(0)
    model = RECURRENT[kind](3, 4, batch_first=True)
    x = torch.randn(2, 5, 3, requires_grad=True)
    if packing == "sorted":
        packed = pack_padded_sequence(x, [5, 3], batch_first=True)
    elif packing == "unsorted":
        packed = pack_padded_sequence(x, [3, 5], batch_first=True, enforce_sorted=False)
    else:
        packed = pack_sequence([x[0], x[1, :3]])
    run = watched(model, packed, loss=lambda o: o[0].data.sum())
    outputs = numbers(run, "output", "numel")
    hidden = {"1.0", "1.1"} if kind == "LSTM" else {"1"}
    assert outputs.keys() == {("", leaf) for leaf in ("0.data", *hidden)}
    assert outputs["", "0.data"] == 8 * 4
    (given,) = run.frame(role="input").to_dict("records")
    assert (given["leaf"], given["numel"], given["dtype"]) == ("0.data", 24, "float32")
    assert given["l2"] == norm(packed.data)
    (gradient,) = run.frame(role="grad_output").to_dict("records")
    assert (gradient["leaf"], gradient["mean"], gradient["min"]) == ("0.data", 1.0, 1.0)
    assert gradient["l2"] == pytest.approx(32**0.5, rel=1e-6)
    assert set(run.df["dtype"]) == {"float32"}  # lengths and orders are not mixed in


def test_the_hidden_states_of_a_packed_lstm_have_gradients_of_their_own():
    model = nn.LSTM(3, 4, batch_first=True)
    packed = pack_padded_sequence(torch.randn(2, 5, 3), [5, 3], batch_first=True)
    run = watched(
        model,
        packed,
        loss=lambda o: pad_packed_sequence(o[0])[0].sum() + 2 * o[1][0].sum() + 3 * o[1][1].sum(),
    )
    found = numbers(run, "grad_output", "mean")
    assert found == {("", "0.data"): 1.0, ("", "1.0"): 2.0, ("", "1.1"): 3.0}
