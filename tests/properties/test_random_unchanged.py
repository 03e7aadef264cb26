"""Random programs with views and in-place writes compute the same bits under the watch."""

from __future__ import annotations

import contextlib

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import probe_nb as probe
from tests.models import no_faults
from tests.museum.programs import KINDS, Program, plan

WISHES = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 15), st.integers(0, 15)),
    min_size=1,
    max_size=16,
)


def computed(todo, *, watched):
    """Return the bytes of every output and gradient of one step in float32."""
    torch.manual_seed(0)
    model = Program(todo).float()
    x = torch.randn(4, 3, requires_grad=True)
    session = probe.watch(model, live=False) if watched else contextlib.nullcontext()
    with session:
        outputs = model(x)
        loss = sum((t * torch.rand_like(t)).sum() for t in outputs)
        loss.backward()
    tensors = [*outputs, x.grad, *(p.grad for p in model.parameters())]
    return [None if t is None else bytes(t.detach().numpy()) for t in tensors]


@settings(max_examples=300, report_multiple_bugs=False)
@given(WISHES)
def test_random_programs_have_the_same_gradients_bit_for_bit(wishes):
    todo = plan(wishes)
    bare = computed(todo, watched=False)
    with no_faults():
        assert computed(todo, watched=True) == bare
