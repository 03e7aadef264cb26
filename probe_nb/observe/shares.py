"""The callables that sit on tensors and nodes while a backward runs.

Each holds numbers and the call it belongs to, never a tensor; `Share` is the stated exception.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from probe_nb.observe import graph
from probe_nb.observe.aside import aside
from probe_nb.observe.calls import Call
from probe_nb.observe.compiled import beside
from probe_nb.observe.graph import Span
from probe_nb.observe.select import Watched
from probe_nb.observe.sink import Where
from probe_nb.terms import Status


class Receiver(Protocol):
    """What hooks report to: `gradients.Gradients`."""

    adding: threading.Lock
    """Held while what several nodes send is added up: they may run in several threads."""

    def arrived(self, call: Call, where: Where, g: Tensor | None, task: int) -> None:
        """Take a gradient of one backward."""

    def noticed(self, call: Call, *, recorded: bool) -> None:
        """Take note that a backward of a call runs."""

    def unreadable(self, call: Call, where: Where, g: Tensor, task: int, status: Status) -> None:
        """Take note of a gradient that is not this call's alone, or not all of it."""

    def keep(self, handle: RemovableHandle) -> None:
        """Take the handle of a hook that was put on while a backward runs."""

    def fault(self, watched: Watched, error: Exception) -> None:
        """Take an error of our own."""


class Hook:
    """A hook on a tensor or node. The mark below keeps `torch.save` of a tensor quiet."""

    __slots__ = ()
    __torch_unserializable__ = True


class OutputHook(Hook):
    """Reads the gradient that arrives at an output, or at a tensor that was saved."""

    __slots__ = ("_call", "_receiver", "_through", "_where")

    def __init__(self, receiver: Receiver, call: Call, where: Where, *, through: bool) -> None:
        """Remember the output; `through` says that it is an input handed on."""
        self._receiver, self._call, self._where, self._through = receiver, call, where, through

    @beside
    def __call__(self, g: Tensor | None) -> None:
        """Run before the node that made the output; None comes where nothing flowed to it."""
        try:
            with aside():
                where = self._where
                if self._through and g is not None:
                    self._receiver.unreadable(self._call, where, g, graph.task(), "passthrough")
                else:
                    self._receiver.arrived(self._call, where, g, graph.task())
        except Exception as error:
            self._receiver.fault(self._call.watched, error)


class NoticeHook(Hook):
    """Learns that a backward of a call runs, and nothing of it."""

    __slots__ = ("_call", "_receiver", "_recorded")

    def __init__(self, receiver: Receiver, call: Call, *, recorded: bool) -> None:
        """Remember whom to tell, and whether the call is recorded."""
        self._receiver, self._call, self._recorded = receiver, call, recorded

    @beside
    def __call__(self, _: Tensor) -> None:
        """Run in the backward."""
        try:
            with aside():
                self._receiver.noticed(self._call, recorded=self._recorded)
        except Exception as error:  # a fault of ours is never the user's
            self._receiver.fault(self._call.watched, error)


class Share:
    """The gradient that one call sends to one input, summed over the nodes that send it.

    A single sender's gradient is handed over as it is. Several are added up, out of place, until
    the last has run; in a backward that does not reach all of them the sum is handed over when
    the backward ends. Until then it is the one tensor that outlives its hook.

    A backward with `create_graph` makes nodes that send to the input in later backwards, past
    those of the forward. They are senders too.
    """

    __slots__ = (
        "_blind",
        "_call",
        "_leaf",
        "_more",
        "_nodes",
        "_receiver",
        "_span",
        "_sums",
    )

    def __init__(self, receiver: Receiver, call: Call, leaf: str, nodes: int, span: Span) -> None:
        """Expect contributions from `nodes` nodes; `span` is where to look for more of them."""
        self._receiver, self._call, self._leaf, self._nodes = receiver, call, leaf, nodes
        self._span, self._more = span, False
        self._blind: int | None = None
        self._sums: dict[int, tuple[int, Tensor | None]] | None = None

    def add(self, parts: list[Tensor]) -> None:
        """Take what one node sends, in one backward."""
        task = graph.task()
        if self._nodes == len(parts) == 1 and not self._more:
            self._hand_over(parts[0], task)
            return
        with self._receiver.adding:
            self._sums = sums = {} if self._sums is None else self._sums
            count, total = sums.pop(task, (0, None))
            for part in parts:
                total = _sum(total, part)
            last = count + 1 == self._nodes and not self._more
            if not last:
                sums[task] = (count + 1, total)
        if last:
            self._hand_over(total, task)
        elif count == 0:
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(functools.partial(self._finish, task))

    def follow(self, sent: graph.Gradients, came: graph.Gradients, since: int | None) -> None:
        """Look for senders among the nodes that a sender has just made, from `since` on."""
        span = self._span if since is None else self._span._replace(since=since)
        found = span.senders(sent, came)
        if found is None:
            self._blind = graph.task() if self._blind is None else self._blind
        elif found:
            self._more = True
            for node, places in found.items():
                hook = FeederHook([(self, places)])
                self._receiver.keep(node.register_prehook(hook.begins))
                self._receiver.keep(node.register_hook(hook))

    @beside
    def _finish(self, task: int) -> None:
        """Hand over what came in a backward that did not reach every sender."""
        try:
            with self._receiver.adding:
                _, total = (self._sums or {}).pop(task, (0, None))
            if total is not None:
                self._hand_over(total, task)
        except Exception as error:
            self.fault(error)

    def _hand_over(self, total: Tensor | None, task: int) -> None:
        where: Where = ("grad_input", self._leaf)
        if self._blind in (None, task) or total is None:
            self._receiver.arrived(self._call, where, total, task)
        else:  # something more was sent, nobody knows by whom
            self._receiver.unreadable(self._call, where, total, task, "unsupported")

    def fault(self, error: Exception) -> None:
        """Report an error of our own."""
        self._receiver.fault(self._call.watched, error)


def _sum(total: Tensor | None, part: Tensor) -> Tensor:
    """Add out of place. What `is_grads_batched` sends knows no `detach`, and has no numbers."""
    if torch._C._functorch.is_legacy_batchedtensor(part):
        return part
    return part.detach() if total is None else total + part.detach()


class FeederHook(Hook):
    """Reads what a node sends to one or several inputs of a call."""

    __slots__ = ("_shares", "_since")

    def __init__(self, shares: list[tuple[Share, list[int]]]) -> None:
        """Remember which of the node's gradients belong to which share."""
        self._shares = shares
        self._since: int | None = None

    @beside
    def begins(self, _: graph.Gradients) -> None:
        """Run before a node of a backward: what it keeps was made by others, before this."""
        self._since = graph.sequence_number()

    @beside
    def __call__(self, inputs: graph.Gradients, outputs: graph.Gradients) -> None:
        """Run after the node."""
        for share, places in self._shares:
            try:
                with aside():
                    share.add([g for place in places if (g := inputs[place]) is not None])
                    if torch.is_grad_enabled():  # it runs with `create_graph`
                        share.follow(inputs, outputs, self._since)
            except Exception as error:  # noqa: PERF203 - a fault of ours is never the user's
                share.fault(error)


class SliceHook(Hook):
    """Reads the share of a module that wrote its input, a view, in place."""

    __slots__ = ("_geometry", "_share")

    def __init__(self, share: Share, geometry: tuple[Any, ...]) -> None:
        """Remember where the view lies in its base: size, stride and offset."""
        self._share, self._geometry = share, geometry

    @beside
    def __call__(self, inputs: tuple[Tensor | None, ...], _: object) -> None:
        """Run after the node that copies the view into its base."""
        try:
            with aside():
                self._share.add([] if inputs[0] is None else [self._cut(inputs[0])])
                if torch.is_grad_enabled():
                    self._share.follow((), (), None)
        except Exception as error:
            self._share.fault(error)

    def _cut(self, g: Tensor) -> Tensor:
        size, stride, offset = self._geometry
        if torch._C._functorch.is_legacy_batchedtensor(g):
            return g
        return g.detach().as_strided(size, stride, g.storage_offset() + offset)
