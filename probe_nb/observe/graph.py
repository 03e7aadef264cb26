"""The stretch of the autograd graph that one call of a module made."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Container, Iterable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from probe_nb.observe.leaves import Leaf
from probe_nb.observe.sink import Facts
from probe_nb.observe.views import stale
from probe_nb.terms import Status

Edge = tuple[Any, int]
"""A node of the graph and the number of its output."""

Senders = dict[Edge | None, dict[Any, list[int]]]
"""Edge -> the nodes that send to it, and which of their gradients do."""

Gradients = tuple[Tensor | None, ...]
"""What a node was sent, or sent on."""

sequence_number: Final[Callable[[], int]] = getattr(
    torch._C._autograd, "_get_sequence_nr", lambda: 0
)
"""The number that the next node made by this thread will have."""


class Input(NamedTuple):
    """What is known of one distinct input tensor before the module runs."""

    leaves: str
    facts: Facts
    tensor: Tensor
    """The caller keeps it alive for as long as the call runs."""
    version: int
    edge: Edge | None
    """None where asking would create a node: see `views`."""
    base: Edge | None
    """The edge of what this is a view of, if a write through it can be followed there."""
    geometry: tuple[Any, ...]

    @property
    def root(self) -> Tensor:
        """The tensor that owns the storage."""
        return self.tensor if self.tensor._base is None else self.tensor._base

    def unchanged(self) -> bool:
        """Tell whether autograd takes the tensor for the one that came in."""
        if self.tensor._version == self.version:
            return True
        return not self.tensor._is_view() and edge(self.tensor) == self.edge


class Entered(NamedTuple):
    """What is remembered of a call between its pre and post hook."""

    since: int
    inputs: dict[int, Input]
    """By the identity of the input tensor."""
    others: list[Tensor]
    """The input tensors that require no gradient, until something is written into them."""


class Target(NamedTuple):
    """Where the share that a call sends to one input can be read."""

    input: Input
    edge: Edge | None
    """What sends to this edge is summed."""
    slices: Any | None
    """With it, what this node sends to the base, cut to the view."""


class Ends(NamedTuple):
    """Where the graph of a call ends."""

    starts: list[Any]
    """The nodes from which the walk to the inputs starts."""
    loose: set[Edge]
    """Edges to which results send that have no node yet."""


def entering(leaves: Iterable[Leaf]) -> Entered:
    """Take the gradient edges of the inputs before the module can change them."""
    inputs: dict[int, Input] = {}
    others: list[Tensor] = []
    for leaf, t in leaves:
        if not t.requires_grad or not plain(t):
            others.append(t)
        elif (known := inputs.get(id(t))) is not None:
            inputs[id(t)] = known._replace(leaves=f"{known.leaves}+{leaf}")
        elif (each := _input(leaf, t)) is not None:
            inputs[id(t)] = each
    return Entered(sequence_number(), inputs, others)


def plain(t: Tensor) -> bool:
    """Tell whether hooks may be put on the graph of `t`: not inside a functorch transform."""
    return not torch._C._functorch.is_functorch_wrapped_tensor(t)


def _input(leaf: str, t: Tensor) -> Input | None:
    own = None if stale(t) else edge(t)
    if own is not None and own[0] is None:
        return None
    base = t._base if t._is_view() else None
    if base is None or not base.requires_grad or not _lies_in(t, base):
        return Input(leaf, Facts.of(t), t, t._version, own, None, ())
    geometry = (t.size(), t.stride(), t.storage_offset() - base.storage_offset())
    return Input(leaf, Facts.of(t), t, t._version, own, edge(base), geometry)


def _lies_in(t: Tensor, base: Tensor) -> bool:
    """Tell whether the elements of a view are elements of its base as they are."""
    if t.layout is not torch.strided or base.layout is not torch.strided or t.dtype != base.dtype:
        return False
    return t.is_conj() == base.is_conj() and t.is_neg() == base.is_neg()


def edge(t: Tensor) -> Edge:
    """Return where the gradient of `t` goes; a leaf goes to its accumulator, if it has one."""
    node = t.grad_fn
    if node is None and not cut_off(t) and not t.is_inference():
        # a leaf of a layout that has no views, or inside a transform of torch.func, where a view
        # of it has no node: it has no accumulator either
        with contextlib.suppress(NotImplementedError, AttributeError):
            node = get_gradient_edge(t).node
    return (node, t.output_nr)


def cut_off(t: Tensor) -> bool:
    """Tell whether nothing flows through `t`: a view made without grad of what requires it."""
    return t.grad_fn is None and t._base is not None and t._base.requires_grad


def ends(entered: Entered, results: dict[int, Tensor], unchanged: Container[int]) -> Ends:
    """Return where the graph of a call ends: at its results, and at the inputs that it wrote."""
    all_of_them = dict(results)
    for key, each in entered.inputs.items():
        if key not in unchanged:
            all_of_them[key] = each.tensor
    for t in entered.others:
        if t.requires_grad and plain(t):
            all_of_them[id(t)] = t
    found = Ends([], set())
    for key, t in all_of_them.items():
        if key in unchanged:
            continue
        if t._base is not None and stale(t):
            later = edge(t._base)
            found.starts.append(later[0])
            found.loose.add(later)
        else:
            found.starts.append(t.grad_fn)
    return found


def target(each: Input, *, handed_on: bool) -> Target | Status | None:
    """Return where the share of an unchanged input is read, or why it is not; None if it has none.

    `handed_on` says that it is a result as well.
    """
    if handed_on:
        return "passthrough"
    if each.edge is None:  # whoever used it had the node made
        return None if stale(each.tensor) else Target(each, edge(each.tensor), None)
    return Target(each, each.edge, None)


def target_of_written(each: Input, inputs: Iterable[Input]) -> Target | Status:
    """Do as `target` does, for one among `inputs` that the call wrote in place."""
    if not each.tensor._is_view():
        return Target(each, each.edge, None)
    shared = sum(other.root is each.root for other in inputs) > 1  # who wrote cannot be told
    node = None if shared or each.base is None else _slice_node(each.root, each.base)
    return "stale_view" if node is None else Target(each, each.edge, node)


def senders(starts: Iterable[Any], targets: Iterable[Target], since: int) -> Senders:
    """Walk from the results back to the edges of the inputs; return the nodes that send to them."""
    targets = list(targets)
    own = {each.edge[0] for each in targets if each.edge is not None}
    return _walk(starts, {each.edge or each.input.base for each in targets}, since, own)


def _walk(starts: Iterable[Any], edges: set[Edge | None], since: int, stops: set[Any]) -> Senders:
    """Return the nodes that send to some edges.

    Nodes older than the call are not entered: they are not this module's doing, and the graph
    behind them may be long.
    """
    found: Senders = {each: {} for each in edges}
    near = {each[0] for each in edges if each is not None}
    seen: set[Any] = {None, *stops}
    todo = list(starts) if found else []
    while todo:
        node = todo.pop()
        number = getattr(node, "_sequence_nr", None)
        if node in seen or (number is not None and number() < since):
            continue
        seen.add(node)
        for place, after in enumerate(node.next_functions):
            next_ = after[0]
            if next_ in near and after in found:
                found[after].setdefault(node, []).append(place)
            elif next_ not in seen and type(next_) is not _Leaf:
                todo.append(next_)
    return found


class Span(NamedTuple):
    """Where to look for what a backward with `create_graph` adds to the graph of a call."""

    edge: Edge | None
    since: int
    thread: int

    @classmethod
    def now(cls, edge: Edge | None) -> Span:
        """Begin at the end of the call."""
        return cls(edge, sequence_number(), threading.get_ident())

    def senders(self, sent: Gradients, came: Gradients) -> dict[Any, list[int]] | None:
        """Return the nodes by which a sender computed its gradients, if they send to the edge.

        None if it cannot be told: nodes are numbered in each thread anew.

        Args:
            sent: What the sender sent on.
            came: What it was sent: how that was computed is not its own doing.
        """
        tensors = [g for g in (*sent, *came) if g is not None]
        if self.edge is None or self.thread != threading.get_ident() or any(map(stale, tensors)):
            return None
        stops = {self.edge[0], *(g.grad_fn for g in came if g is not None)}
        starts = [g.grad_fn for g in sent if g is not None]
        return _walk(starts, {self.edge}, self.since, stops)[self.edge]


_Leaf: Final[Any] = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]
"""Nodes from which nothing is sent on."""


def _slice_node(base: Tensor, before: Edge) -> Any | None:
    """Return the node that copies a view, written in place, into its base; None if it is hidden.

    The gradient that this node sends to the base, cut to the view, belongs to the writer.
    """
    node = base.grad_fn
    while node is not None and node.name().endswith("CopySlices"):
        if node.next_functions[0] == before:
            return node
        node = node.next_functions[0][0]
    return None


task: Final[Callable[[], int]] = torch._C._current_graph_task_id
"""Returns the number of the backward that is running, -1 outside one."""
