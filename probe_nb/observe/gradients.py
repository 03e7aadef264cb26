"""grad_output and grad_input, without touching the graph.

A grad_output is read by a hook on the output tensor. A grad_input, the share that this module
alone sends back, is read from the nodes between its outputs and the edges its inputs came in on.
No module backward hook is used: it would add a node to the graph.
See docs/decisions/0001-capture.md for what may be asked of a tensor and what may not.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from probe_nb.observe import graph
from probe_nb.observe.calls import Call, Clock
from probe_nb.observe.graph import Entered, Input, Senders, Span, Target
from probe_nb.observe.leaves import Leaf
from probe_nb.observe.select import Watched
from probe_nb.observe.shares import (
    FeederHook,
    Hook,
    NoticeHook,
    OutputHook,
    Share,
    SliceHook,
)
from probe_nb.observe.sink import Facts, Sink, Where
from probe_nb.observe.tasks import Tasks
from probe_nb.observe.views import stale
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

    def __init__(self, clock: Clock, sink: Sink, roles: frozenset[Role], tasks: Tasks) -> None:
        """Record the backward roles among `roles`; tell `tasks` where a backward came from."""
        self._clock = clock
        self._sink = sink
        self._tasks = tasks
        self._parameters = "param_grad" in roles
        self._outputs = "grad_output" in roles
        self._inputs = "grad_input" in roles
        self.reads = self._outputs or self._inputs
        self.adding = threading.Lock()
        self._pruning = threading.Lock()
        self._closed = False
        self._handles: list[RemovableHandle] = []
        self._leaves: dict[tuple[int, Watched, str], RemovableHandle] = {}

    # -- forward side -------------------------------------------------------------------------

    @staticmethod
    def entering(leaves: list[Leaf]) -> Entered:
        """Take the gradient edges of the inputs before the module can change them."""
        return graph.entering(leaves)

    def leaving(self, call: Call, entered: Entered, leaves: list[Leaf]) -> None:
        """Attach to the outputs of a call and to the nodes that feed its inputs."""
        hooked, results = False, {}
        unchanged = {key for key, each in entered.inputs.items() if each.unchanged()}
        for leaf, t in leaves:
            if t.requires_grad and graph.plain(t):
                results[id(t)] = t
                if self._outputs:
                    hooked |= self._attach_output(call, leaf, t, through=id(t) in unchanged)
        if self._inputs and entered.inputs:
            hooked |= self._attach_inputs(call, entered, results, unchanged)
        if call.owed and not hooked:  # no hook will ever come to pay
            self._pay(call, -1)

    def owe(self, call: Call, role: Role, leaves: list[Leaf]) -> None:
        """Owe a gradient for each of these: a hook of the user's came in between, unseen."""
        wanted = self._outputs if role == "grad_output" else self._inputs
        for leaf, t in leaves if wanted else ():
            if t.requires_grad and graph.plain(t):
                call.owed += (Owed((role, leaf), Facts.of(t), "unsupported"),)

    def lost(self, call: Call, entered: Entered, leaves: list[Leaf]) -> None:
        """Owe all gradients of a call whose results a hook of the user's may still replace."""
        self.owe(call, "grad_output", leaves)
        for each in entered.inputs.values() if self._inputs else ():
            self._owe(call, each, "unsupported")
        if call.owed:
            self._pay(call, -1)

    def _attach_output(self, call: Call, leaf: str, t: Tensor, *, through: bool) -> bool:
        if stale(t):
            status: Status = "passthrough" if through else "stale_view"
            call.owed += (Owed(("grad_output", leaf), Facts.of(t), status),)
        elif not graph.cut_off(t):
            hook = OutputHook(self, call, ("grad_output", leaf), through=through)
            self._attach_tensor(t, hook, (id(t), call.watched, leaf))
            return True
        return False

    def saved(self, call: Call, leaf: str, t: Tensor) -> None:
        """Attach to a tensor that the user saved."""
        if not (t.requires_grad and graph.plain(t)):
            return
        where: Where = ("value", leaf, "backward")
        if stale(t):  # first: it may not even be asked for its node
            self._sink.absent(call, where, Facts.of(t), "stale_view")
        elif not graph.cut_off(t):
            hook = OutputHook(self, call, where, through=False)
            self._attach_tensor(t, hook, (id(t), call.watched, leaf))

    def _attach_tensor(self, t: Tensor, hook: Hook, key: tuple[int, Watched, str]) -> None:
        """Hook an output; a leaf outlives its graphs, so there it replaces the call before."""
        handle = t.register_hook(hook)
        if t.is_leaf:
            if (before := self._leaves.pop(key, None)) is not None:
                before.remove()
            self._leaves[key] = handle
        self.keep(handle)

    def _attach_inputs(
        self, call: Call, entered: Entered, results: dict[int, Tensor], unchanged: set[int]
    ) -> bool:
        inputs = entered.inputs
        ends = graph.ends(entered, results, unchanged)
        targets = []
        for key, each in inputs.items():
            if key in unchanged:
                found = graph.target(each, handed_on=key in results)
            else:
                found = graph.target_of_written(each, inputs.values())
            if isinstance(found, Target) and found.edge not in ends.loose:
                targets.append(found)
            elif found is not None:
                self._owe(call, each, "stale_view" if isinstance(found, Target) else found)
        senders = graph.senders(ends.starts, targets, entered.since)
        return self._attach_shares(call, targets, senders)

    def _attach_shares(self, call: Call, targets: list[Target], found: Senders) -> bool:
        """Attach to the nodes that send to the inputs, those of one input to one share."""
        places: dict[Any, list[tuple[Share, list[int]]]] = {}
        for input_, edge, slices in targets:
            mine = found.get(edge, {})
            if edge is None and found.get(input_.base) != {slices: [0]}:
                self._owe(call, input_, "stale_view")  # it was read as well, nobody knows where
                tells = Share(self, call, input_.leaves, 1, Span.now(None))
                places.setdefault(slices, []).append((tells, []))
                continue
            nodes = len(mine) + (slices is not None)
            span = Span.now(edge if slices is None else None)
            share = Share(self, call, input_.leaves, nodes, span)
            if slices is not None:
                self.keep(slices.register_hook(SliceHook(share, input_.geometry)))
            for node, at in mine.items():
                places.setdefault(node, []).append((share, at))
        for node, shares in places.items():
            self.keep(node.register_hook(FeederHook(shares)))
        return bool(places)

    @staticmethod
    def _owe(call: Call, each: Input, status: Status) -> None:
        call.owed += (Owed(("grad_input", each.leaves), each.facts, status),)

    def notice(self, call: Call, leaves: list[Leaf]) -> None:
        """Learn of a backward through these outputs of a root, where nothing else tells of it."""
        recorded = self._clock.recording
        hooked = call.silent in ("", "forward")
        if recorded and self._outputs and call.watched.selected and hooked:
            return
        if self._clock.expects_training and not self._parameters:
            return
        for leaf, t in leaves:
            if t.requires_grad and graph.plain(t) and not stale(t):
                hook = NoticeHook(self, call, recorded=recorded)
                self._attach_tensor(t, hook, (id(t), call.watched, f"notice {leaf}"))

    # -- backward side: what the hooks report ---------------------------------------------------

    def arrived(self, call: Call, where: Where, g: Tensor | None, task: int) -> None:
        """Hand a gradient over; None is autograd's way to say that there is none."""
        if g is not None:
            number = self._reached(call, task)
            self._sink.tensor(call, where, g, number)
        elif call.owed:
            self._reached(call, task)

    def unreadable(self, call: Call, where: Where, g: Tensor, task: int, status: Status) -> None:
        """Say that a gradient came which cannot be told from what others sent or were sent."""
        number = self._reached(call, task)
        self._sink.absent(call, where, Facts.of(g), status, number)

    def _reached(self, call: Call, task: int) -> int:
        """Take note that a backward reached a call; return its number there."""
        number = None if call.backwards is None else call.backwards.get(task)
        if number is None:
            self._clock.backward_ran()
            self._tasks.reached(call, task)
            number = call.backward(task)
        if call.owed:
            self._pay(call, number)
        return number

    def keep(self, handle: RemovableHandle) -> None:
        """Take the handle of a hook that was put on a tensor or a node."""
        self._handles.append(handle)
        if self._closed:  # by another thread, meanwhile
            handle.remove()

    def noticed(self, call: Call, *, recorded: bool) -> None:
        """Pass on that a backward runs, and where it came from."""
        self._clock.backward_ran()
        self._tasks.reached(call, graph.task(), recorded=recorded)

    def fault(self, watched: Watched, error: Exception) -> None:
        """Report an error of our own inside a backward hook."""
        self._sink.fault(watched, "backward", error)

    def _pay(self, call: Call, number: int) -> None:
        """Write down the gradients of a call that cannot be read, once for each backward."""
        if number in call.paid:
            return
        call.paid |= {number}
        for each in call.owed:
            self._sink.absent(call, each.where, each.facts, each.status, number)

    # -- lifetime -------------------------------------------------------------------------------

    def prune(self, *, leaves: bool = True) -> None:
        """Forget handles whose graphs are gone; with `leaves`, at the end of a step, theirs too.

        Other threads may add handles meanwhile: only those that were there are looked at.
        """
        if not self._pruning.acquire(blocking=False):
            return  # another thread does it
        try:
            for key, handle in list(self._leaves.items()):
                if leaves:
                    handle.remove()
                if leaves or not _alive(handle):
                    self._leaves.pop(key, None)
            looked_at = len(self._handles)
            self._handles[:looked_at] = [h for h in self._handles[:looked_at] if _alive(h)]
        finally:
            self._pruning.release()

    def close(self) -> None:
        """Remove every hook, also from graphs that are still waiting for their backward."""
        self._closed = True
        for handle in list(self._handles):
            handle.remove()
        self._handles.clear()
        self._leaves.clear()


def _alive(handle: RemovableHandle) -> bool:
    """Tell whether the hook is still on something."""
    hooks = handle.hooks_dict_ref()
    return hooks is not None and handle.id in hooks
