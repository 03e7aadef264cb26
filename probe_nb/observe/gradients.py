"""grad_output and grad_input, without touching the graph.

A grad_output is read by a hook on the output tensor. A grad_input, the share that this module
alone sends back, is read from the nodes between its outputs and the edges its inputs came in on.
No module backward hook is used: it would add a node to the graph.
See docs/decisions/0001-capture.md for what may be asked of a tensor and what may not.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from probe_nb.observe import graph
from probe_nb.observe.calls import Call, Clock
from probe_nb.observe.graph import Edge, Entered, Feeders, Input
from probe_nb.observe.leaves import Leaf
from probe_nb.observe.select import Watched
from probe_nb.observe.shares import (
    FeederHook,
    NoticeHook,
    OutputHook,
    Share,
    SliceHook,
)
from probe_nb.observe.sink import Facts, Sink, Where
from probe_nb.observe.views import FreshViews, makes_fresh
from probe_nb.terms import Role, Status


class Owed(NamedTuple):
    """A gradient that cannot be read, and why."""

    where: Where
    facts: Facts
    status: Status


class Gradients:
    """Attaches to the graph of each call and lets go of it at the end of the session."""

    reads: bool
    """Whether any gradient of a call is asked for."""

    def __init__(self, clock: Clock, sink: Sink, roles: frozenset[Role]) -> None:
        """Record the backward roles among `roles`."""
        self._clock = clock
        self._sink = sink
        self._outputs = "grad_output" in roles
        self._inputs = "grad_input" in roles
        self.reads = self._outputs or self._inputs
        self._handles: list[RemovableHandle] = []
        self._leaves: dict[tuple[int, Watched, str], RemovableHandle] = {}
        self._notice: RemovableHandle | None = None
        self._fresh = FreshViews()

    # -- forward side -------------------------------------------------------------------------

    def entering(self, leaves: list[Leaf]) -> Entered:
        """Take the gradient edges of the inputs before the module can change them."""
        return graph.entering(leaves, self._fresh.looks_stale)

    def leaving(self, call: Call, entered: Entered, leaves: list[Leaf]) -> None:
        """Attach to the outputs of a call and to the nodes that feed its inputs."""
        before = len(self._handles)
        found = [self._attach_output(call, entered, leaf, t) for leaf, t in leaves]
        if self._inputs and None in found:  # what flows back through that output would be missing
            for each in entered.inputs.values():
                call.owed.append(Owed(("grad_input", each.leaves), each.facts, "stale_view"))
        elif self._inputs and entered.inputs:
            starts = list(itertools.chain.from_iterable(nodes or () for nodes in found))
            self._attach_inputs(call, entered, starts, {id(t): t for _, t in leaves})
        if call.owed and len(self._handles) == before:  # no hook will ever come to pay
            self._pay(call, -1)

    def _attach_output(
        self, call: Call, entered: Entered, leaf: str, t: Tensor
    ) -> list[Any] | None:
        """Attach to one output and return its node, from which the walk to the inputs starts.

        Returns no node where there is nothing to walk, None where it must not be asked for.
        """
        if not t.requires_grad or not graph.plain(t):
            return []
        came_in = entered.inputs.get(id(t))
        through = came_in is not None and came_in.version == t._version
        if self._fresh.looks_stale(t) and not self._is_fresh(call, came_in, t, through=through):
            if self._outputs:
                call.owed.append(Owed(("grad_output", leaf), Facts.of(t), "stale_view"))
            return None
        if self._outputs:
            self._attach_tensor(call, leaf, t, through=through)
        return [] if through else [t.grad_fn]

    def _attach_tensor(self, call: Call, leaf: str, t: Tensor, *, through: bool) -> None:
        """Hook an output; a leaf outlives its graphs, so there it replaces the call before."""
        handle = t.register_hook(OutputHook(self, call, leaf, through=through))
        if t.is_leaf:
            key = (id(t), call.watched, leaf)
            if (before := self._leaves.pop(key, None)) is not None:
                before.remove()
            self._leaves[key] = handle
        self._handles.append(handle)

    def _is_fresh(self, call: Call, came_in: Input | None, t: Tensor, *, through: bool) -> bool:
        """Tell whether a view that looks stale is not, and remember it."""
        if through or not makes_fresh(call.watched.module()):
            return False
        if came_in is not None and (came_in.edge is None or t._version != came_in.version + 1):
            return False
        self._fresh.remember(t)
        return True

    def _attach_inputs(
        self, call: Call, entered: Entered, starts: list[Any], outputs: dict[int, Tensor]
    ) -> None:
        wanted: dict[Edge, Input] = {}
        for identity, each in entered.inputs.items():
            out = outputs.get(identity)
            if each.edge is None:
                call.owed.append(Owed(("grad_input", each.leaves), each.facts, "stale_view"))
            elif out is not None and out._version == each.version:
                call.owed.append(Owed(("grad_input", each.leaves), each.facts, "passthrough"))
            elif out is not None and each.base is not None:
                self._attach_written_view(call, each, each.base, out)
            else:
                wanted[each.edge] = each
        if wanted:
            self._attach_feeders(call, wanted, graph.feeders(starts, wanted, entered.since))

    def _attach_feeders(self, call: Call, wanted: dict[Edge, Input], found: Feeders) -> None:
        senders: dict[Edge, int] = {}
        for places in found.values():
            for edge in {edge for _, edge in places}:
                senders[edge] = senders.get(edge, 0) + 1
        shares = {e: Share(self, call, wanted[e].leaves, nodes) for e, nodes in senders.items()}
        for node, places in found.items():
            mine: dict[Edge, list[int]] = {}
            for place, edge in places:
                mine.setdefault(edge, []).append(place)
            hook = FeederHook([(shares[edge], at) for edge, at in mine.items()])
            self._handles.append(node.register_hook(hook))

    def _attach_written_view(self, call: Call, each: Input, base: Edge, out: Tensor) -> None:
        """Attach to the share of a module that wrote its input, a view, in place."""
        node = graph.slice_node(out, base)
        if node is None:
            call.owed.append(Owed(("grad_input", each.leaves), each.facts, "stale_view"))
        else:
            hook = SliceHook(Share(self, call, each.leaves, 1), each.geometry)
            self._handles.append(node.register_hook(hook))

    def notice(self, leaves: list[Leaf]) -> None:
        """Learn of a backward through these outputs, where nothing else would tell of it."""
        for _, t in leaves:
            if t.requires_grad and graph.plain(t) and not self._fresh.looks_stale(t):
                if self._notice is not None:
                    self._notice.remove()
                self._notice = t.register_hook(NoticeHook(self))
                return

    # -- backward side: what the hooks report ---------------------------------------------------

    def arrived(self, call: Call, where: Where, g: Tensor | None, task: int) -> None:
        """Hand a gradient over; None is autograd's way to say that there is none."""
        self._clock.backward_ran()
        number = call.backward(task)
        if g is not None:
            self._sink.tensor(call, where, g, number)
        if call.owed:
            self._pay(call, number)

    def backward_ran(self) -> None:
        """Pass on that a backward runs."""
        self._clock.backward_ran()

    def passed_through(self, call: Call, leaf: str, g: Tensor) -> None:
        """Say that the gradient of an output that is an input belongs to nobody alone."""
        self._clock.backward_ran()
        number = call.backward(graph.task())
        self._sink.absent(call, ("grad_output", leaf), Facts.of(g), "passthrough", number)
        if call.owed:
            self._pay(call, number)

    def fault(self, watched: Watched, error: Exception) -> None:
        """Report an error of our own inside a backward hook."""
        self._sink.fault(watched, "backward", error)

    def _pay(self, call: Call, number: int) -> None:
        """Write down the gradients of a call that cannot be read."""
        owed, call.owed = call.owed, []
        for each in owed:
            self._sink.absent(call, each.where, each.facts, each.status, number)

    # -- lifetime -------------------------------------------------------------------------------

    def prune(self) -> None:
        """Forget handles whose graphs are gone; called once per step."""
        for handle in self._leaves.values():
            handle.remove()
        self._leaves.clear()
        self._handles = [h for h in self._handles if _alive(h)]
        self._fresh.forget()

    def close(self) -> None:
        """Remove every hook, also from graphs that are still waiting for their backward."""
        noticing = () if self._notice is None else (self._notice,)
        for handle in (*self._handles, *noticing):
            handle.remove()
        self._handles.clear()
        self._leaves.clear()
        self._fresh.forget()


def _alive(handle: RemovableHandle) -> bool:
    """Tell whether the hook is still on something."""
    hooks = handle.hooks_dict_ref()
    return hooks is not None and handle.id in hooks
