"""The observed is unchanged, bit for bit: every model of the museum in every mode."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor

import probe_nb as probe
from tests.models import Piece, no_faults, pieces, tensors, total

PIECES = pieces()
MODES = {
    "train": contextlib.nullcontext,
    "eval": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "bf16": lambda: torch.autocast("cpu", torch.bfloat16),
}
CASES = [
    pytest.param(piece, mode, id=f"{piece.name}-{mode}")
    for piece in PIECES.values()
    for mode in MODES
    if mode not in piece.not_in
]


@pytest.mark.parametrize(("piece", "mode"), CASES)
def test_three_training_steps_are_the_same_bit_for_bit(piece, mode):
    bare = trained(piece, mode, watched=False)
    with no_faults():
        seen = trained(piece, mode, watched=True)
    assert seen.keys() == bare.keys()
    assert [name for name in bare if bare[name] != seen[name]] == []


@pytest.mark.parametrize("piece", PIECES.values(), ids=repr)
def test_so_are_they_where_structure_alone_is_recorded(piece):
    bare = trained(piece, "train", watched=False)
    with no_faults():
        seen = trained(piece, "train", watched=True, structure=True, stacks=True)
    assert [name for name in bare if bare[name] != seen[name]] == []


def trained(piece: Piece, mode: str, *, watched: bool, **options: object) -> dict[str, object]:
    """Train for three steps and return everything that can be known about it."""
    torch.manual_seed(0)
    model = piece.build().train(mode != "eval")
    book: dict[str, object] = {}
    optimizer = None
    session = probe.watch(model, live=False, **options) if watched else contextlib.nullcontext()
    with session as run:
        for step in range(3):
            args, kwargs = piece.inputs()
            output, error = None, None
            try:
                with MODES[mode]():
                    output = model(*args, **kwargs)
                    loss = total(output)
            except Exception as raised:
                error = raised
            assert type(error) is (piece.raises or type(None)), error
            optimizer = optimizer or optimizer_of(model)
            note(book, f"{step} output", output)
            book[f"{step} types"] = shape_of(output)
            given = list(tensors([args, kwargs]))
            book[f"{step} identity"] = [[o is i for i in given] for o in tensors(output)]
            book[f"{step} version"] = [version(t) for t in (*given, *tensors(output))]
            if error is None and loss is not None and loss.requires_grad:
                loss.backward()
            note(book, f"{step} input", [given, [t.grad for t in given if t.is_leaf]])
            note(book, f"{step} gradient", [p.grad for p in model.parameters()])
            if optimizer is not None:
                optimizer.step()
                note(book, f"{step} optimizer", list(optimizer.state.values()))
                optimizer.zero_grad()
            note(book, f"{step} state", dict(model.state_dict()))
            note(book, f"{step} generator", torch.get_rng_state())
    if watched:
        assert len(run) > 0
        assert "failed" not in set(run.df["status"])
        assert "not kept: failed" not in set(run.kept()["status"])
    return book


def optimizer_of(model):
    """Return an optimizer with state; lazy parameters have their shape by now."""
    parameters = list(model.parameters())
    if not parameters or any(p.is_complex() for p in parameters):
        return None
    if any(getattr(m, "sparse", False) for m in model.modules()):
        return torch.optim.SparseAdam(model[0].parameters(), lr=0.1)
    return torch.optim.AdamW(parameters, lr=0.1)


def note(book: dict[str, object], name: str, value: object) -> None:
    for place, t in enumerate(tensors(value)):
        book[f"{name} {place}"] = bits(t)


def bits(t: Tensor) -> tuple[object, ...]:
    """Return a tensor's dtype, layout and exact bytes, so that NaN equals NaN."""
    t = t.detach()
    if t.is_sparse:
        return ("sparse", t._indices().tolist(), bits(t._values()))
    raw = t.resolve_conj().contiguous().reshape(-1)
    return (
        t.dtype,
        tuple(t.shape),
        t.stride(),
        t.requires_grad,
        bytes(raw.view(torch.uint8).numpy()),
    )


def version(t: Tensor) -> int | None:
    return None if t.is_inference() else t._version


def shape_of(value: object) -> object:
    """Return the exact types of a nested output."""
    if isinstance(value, dict):
        return (type(value), {key: shape_of(each) for key, each in value.items()})
    if isinstance(value, (list, tuple)):
        return (type(value), [shape_of(each) for each in value])
    return type(value)


@pytest.mark.parametrize("piece", [p for p in PIECES.values() if not p.raises], ids=repr)
def test_the_graph_has_the_same_nodes_made_in_the_same_order(piece):
    assert graph_of(piece, watched=True) == graph_of(piece, watched=False)


def graph_of(piece: Piece, *, watched: bool, **options: object) -> list[tuple[str, list[int]]]:
    """Return the nodes in the order in which they were made, each with those it leads to.

    The engine runs nodes that are ready in this order, so the sums of gradients depend on it.
    """
    torch.manual_seed(0)
    model = piece.build()
    args, kwargs = piece.inputs()
    with probe.watch(model, live=False, **options) if watched else contextlib.nullcontext():
        loss = total(model(*args, **kwargs))
    nodes = reachable([] if loss is None else [loss.grad_fn])
    made = sorted((n for n in nodes if n._sequence_nr() < 2**60), key=lambda n: n._sequence_nr())
    place = {node: number for number, node in enumerate(made)}
    return [(n.name(), [place.get(after, -1) for after, _ in n.next_functions]) for n in made]


def reachable(todo: list) -> set:
    """Return every node of a graph; those that accumulate into leaves have no number."""
    seen = set()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [after for after, _ in node.next_functions]
    return seen
