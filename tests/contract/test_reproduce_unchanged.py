"""What `find_random` looks at gives the same bits as without it."""

from __future__ import annotations

import contextlib
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from probe_nb.reproduce import find_random
from tests.models import pieces, tensors, total


def trained(piece, seed):
    """Return all outputs and gradients of a model, and where the numbers are afterwards."""
    torch.manual_seed(seed)
    model = piece.build()
    args, kwargs = piece.inputs()
    try:
        output = model(*args, **kwargs)
    except Exception as error:
        return [type(error), torch.get_rng_state()]
    loss = total(output)
    if loss is not None:
        loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [*tensors(output), *gradients, torch.get_rng_state()]


def same(one, other):
    if isinstance(one, torch.Tensor):
        if one.is_nested or one.is_sparse or one.is_quantized:
            return str(one) == str(other)
        return torch.equal(one, other) or bool((one.isnan() == other.isnan()).all())
    return one == other


@pytest.mark.parametrize("name", sorted(pieces()))
def test_every_model_of_the_museum_gives_the_same_bits(name):
    piece = pieces()[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bare = trained(piece, 5)
        with find_random():
            watched = trained(piece, 5)
    assert len(bare) == len(watched)
    assert all(same(a, b) for a, b in zip(bare, watched, strict=True))


def test_fused_attention_stays_fused():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    tokens = torch.randn(2, 5, 8)
    seen = []

    class Seeing(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with torch.inference_mode(), Seeing(), find_random():
        layer(tokens)
    assert [name for name in seen if "transformer_encoder_layer_fwd" in name]


def test_compiled_code_stays_compiled_and_its_draws_are_found():
    x = torch.ones(4)
    calls = []

    def backend(graph, inputs):
        calls.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: F.dropout(x) + torch.rand(4), backend=backend)
    torch.manual_seed(3)
    expected = compiled(x)
    torch._dynamo.reset()
    calls.clear()
    with find_random() as found:
        torch.manual_seed(3)
        assert torch.equal(compiled(x), expected)
    assert len(calls) == 1
    assert {line in found.df["code"][0] for line in ("torch.compile(lambda", "F.dropout")} == {True}
    assert found.df["count"].sum() == 2
    torch._dynamo.reset()


def test_nothing_is_kept_alive_and_what_is_written_in_place_is_the_same_object():
    with find_random():
        x = torch.rand(3)
        version, gone = x._version, weakref.ref(x)
        assert x.normal_() is x
        assert x._version == version + 1
        del x
        assert gone() is None


def test_a_function_mode_of_the_users_sees_what_it_would_see():
    class Mine(torch.overrides.TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    def seen(block):
        with Mine() as mine, block:
            F.dropout(torch.ones(4)) + torch.rand(4)
        return mine.seen

    assert seen(find_random()) == seen(contextlib.nullcontext())


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_operators_of_a_higher_order_run():
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.randn(1, 1, 16, 16)
    expected = flex_attention(q, q, q)
    with find_random() as found:
        assert torch.equal(flex_attention(q, q, q), expected)
    assert len(found) == 0
