"""The stretch of the autograd graph that one call of a module made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from probe_nb.observe.leaves import Leaf
from probe_nb.observe.sink import Facts

Edge = tuple[Any, int]
"""A node of the graph and the number of its output."""

Feeders = dict[Any, list[tuple[int, Edge]]]
"""Node -> which of its gradients go to which edges."""

_sequence_number: Final[Callable[[], int]] = getattr(
    torch._C._autograd, "_get_sequence_nr", lambda: 0
)


class Input(NamedTuple):
    """What is known of one distinct input tensor before the module runs."""

    leaves: str
    facts: Facts
    version: int
    edge: Edge | None
    base: Edge | None = None
    geometry: tuple[Any, ...] = ()


class Entered(NamedTuple):
    """What is remembered of a call between its pre and post hook; holds nodes, not tensors."""

    since: int
    inputs: dict[int, Input]
    """By the identity of the input tensor, which the caller keeps alive."""


def entering(leaves: Iterable[Leaf], looks_stale: Callable[[Tensor], bool]) -> Entered:
    """Take the gradient edges of the inputs before the module can change them."""
    inputs: dict[int, Input] = {}
    for leaf, t in leaves:
        if not t.requires_grad or not plain(t):
            continue
        known = inputs.get(id(t))
        if known is not None:
            inputs[id(t)] = known._replace(leaves=f"{known.leaves}+{leaf}")
        else:
            inputs[id(t)] = _input(leaf, t, stale=looks_stale(t))
    return Entered(_sequence_number(), inputs)


def plain(t: Tensor) -> bool:
    """Tell whether hooks may be put on the graph of `t`: not inside a functorch transform."""
    return not torch._C._functorch.is_functorch_wrapped_tensor(t)


def _input(leaf: str, t: Tensor, *, stale: bool) -> Input:
    facts = Facts.of(t)
    if stale:
        return Input(leaf, facts, t._version, None)
    base = t._base if t._is_view() else None
    if base is None or not base.requires_grad:
        return Input(leaf, facts, t._version, _edge(t))
    geometry = (t.size(), t.stride(), t.storage_offset() - base.storage_offset())
    return Input(leaf, facts, t._version, _edge(t), _edge(base), geometry)


def _edge(t: Tensor) -> Edge:
    """Return where the gradient of `t` goes; a leaf goes to its accumulator."""
    node = t.grad_fn
    if node is None:
        node = get_gradient_edge(t).node
    return (node, t.output_nr)


def feeders(starts: Iterable[Any], wanted: Iterable[Edge], since: int) -> Feeders:
    """Walk from the outputs back to the edges of the inputs; return the nodes that feed them.

    Nodes older than the call are not entered: they are not this module's doing, and the graph
    behind them may be long.
    """
    edges = set(wanted)
    seen: set[Any] = {node for node, _ in edges}
    found: Feeders = {}
    todo = [node for node in starts if node is not None]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        for place, edge in enumerate(node.next_functions):
            if edge in edges:
                found.setdefault(node, []).append((place, edge))
            elif (after := edge[0]) is not None and after not in seen and _made_since(after, since):
                todo.append(after)
    return found


def _made_since(node: Any, since: int) -> bool:
    number = getattr(node, "_sequence_nr", None)
    return number is None or number() >= since


def slice_node(out: Tensor, base: Edge) -> Any | None:
    """Return the node that copies a view, written in place, into its base; None if it is hidden.

    The gradient that this node sends to the base, cut to the view, belongs to the writer.
    """
    node = None if out._base is None else out._base.grad_fn
    while node is not None and node.name().endswith("CopySlices"):
        if node.next_functions[0] == base:
            return node
        node = node.next_functions[0][0]
    return None


def task() -> int:
    """Return the number of the backward that is running, -1 outside one."""
    return torch._C._current_graph_task_id()
