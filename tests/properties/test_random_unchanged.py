"""Random programs with views and in-place writes compute the same bits under the watch."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch

import probe_nb as probe
from tests.models import no_faults
from tests.museum.machines import Program
from tests.museum.programs import plan, sweep

EXAMPLES = int(os.environ.get("PROBE_NB_EXAMPLES", "240"))


def computed(todo, *, watched) -> dict[str, Any]:
    """Return what one step in float32 leaves: bits, versions, the graph, the generator."""
    torch.manual_seed(0)
    model = Program(todo).float()
    x, z = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3)
    session = probe.watch(model, live=False) if watched else contextlib.nullcontext()
    with session:
        outputs = model(x, z=z)
        loss = sum((t * torch.rand_like(t)).sum() for t in outputs)
        nodes = graph(loss)
        if loss.requires_grad:
            loss.backward()
        generator = torch.get_rng_state().tolist()
    tensors = [*outputs, z, x.grad, *(p.grad for p in model.parameters())]
    return {
        "bits": [None if t is None else bytes(t.detach().contiguous().numpy()) for t in tensors],
        "layout": [None if t is None else (t.stride(), t.storage_offset()) for t in tensors],
        "versions": [t._version for t in (*outputs, x, z)],
        "origins": [_origin(t) for t in outputs],
        "graph": nodes,
        "generator": generator,
    }


def graph(loss) -> list[str]:
    """Return the names of all nodes behind a loss in the order in which they were made.

    A node that is made early gives itself away here, also where no bit differs.
    """
    seen, todo = set(), [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [after for after, _ in node.next_functions]
    return [node.name() for node in sorted(seen, key=lambda node: node._sequence_nr())]


def _origin(t) -> str | None:
    return str(torch._C._autograd._get_creation_meta(t)) if t._is_view() else None


def examine(wishes):
    todo = plan(wishes)
    bare = computed(todo, watched=False)
    with no_faults():
        watched = computed(todo, watched=True)
    for name, value in bare.items():
        assert watched[name] == value, name


def test_random_programs_have_the_same_bits_and_the_same_graph():
    sweep(examine, EXAMPLES)
