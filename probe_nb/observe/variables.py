"""Values that the user hands over at a line of theirs, each with its gradient: `probe.save`.

A gradient is read by a hook on the tensor, as that of an output is: nothing is added to the graph.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from probe_nb.observe.arguments import ValueSink, plain_results
from probe_nb.observe.aside import aside
from probe_nb.observe.calls import Call, Clock
from probe_nb.observe.compiled import beside
from probe_nb.observe.gradients import Gradients
from probe_nb.observe.leaves import Leaf, results
from probe_nb.observe.modules import ModuleHooks
from probe_nb.observe.regions import Place
from probe_nb.observe.select import Watched
from probe_nb.observe.sink import Sink

_gone: Final[Any] = lambda: None  # noqa: E731 - stands for a reference to a module
_ROOM: Final = 4_096
"""Names that are remembered. More are there only where a name is made for each value."""
_NOTHING: Final = type("", (), {})
"""Stands for the class of a module."""


class Variables:
    """What is saved by name while a session is open."""

    def __init__(
        self,
        clock: Clock,
        gradients: Gradients,
        sink: Sink,
        values: ValueSink,
        *,
        modules: ModuleHooks,
        begins: Callable[[], object],
        one_way: str | None = None,
    ) -> None:
        """Tie the parts together; `begins` is called when a step begins with a saved value.

        `one_way` is the direction that alone is recorded, None for both.
        """
        self._forward, self._backward = one_way != "backward", one_way != "forward"
        self._clock = clock
        self._gradients = gradients
        self._sink = sink
        self._values = values
        self._open, self._unread = modules.open, modules.unread
        self._begins = begins
        self._names: dict[str, Watched] = {}
        self._step = -1
        self._counts: Counter[str] = Counter()
        self._first: set[str] = set()
        """The names that were saved in this step before a root of a model ran."""

    @beside
    def save(self, name: str, value: Any, *, backward: bool) -> None:
        """Record a value under a name, and with `backward` the gradients of its tensors."""
        watched = self._watched(name)
        try:
            if torch._C._get_tracing_state() is None:
                with aside():
                    self._save(watched, value, backward=backward)
        except Exception as error:  # a fault of ours is never the user's
            self._sink.fault(watched, "a saved value", error)

    def _save(self, watched: Watched, value: Any, *, backward: bool) -> None:
        self._open.enter(sys._getframe())
        place, task = self._open.place, torch._C._current_graph_task_id()
        call = self._repeated(watched, place, task) or self._next(watched, place, task)
        if call is None or not call.recorded:
            return
        alone = issubclass(type(value), Tensor)
        leaves: list[Leaf] = [("", value)] if alone else results(value, self._unread)
        if self._forward and not call.recompute:
            for leaf, t in leaves:
                self._sink.tensor(call, ("value", leaf), t)
            for found in plain_results(value, self._unread, alone=""):
                self._values.value(call, "value", found)
        if backward and self._backward and place.flows:
            for leaf, t in leaves:
                self._gradients.saved(call.original or call, leaf, t)

    # -- calls ----------------------------------------------------------------------------------

    def _repeated(self, watched: Watched, place: Place, task: int) -> Call | None:
        """Return the call that is repeated, where a backward runs a forward once more."""
        if place.repeats is None and task == -1:
            return None
        found = place.original(watched, task)
        if found is None:
            return None
        about = (found.step, found.micro_step, found.number, found.training)
        return Call(watched, 0, *about, True, found.recorded, found)

    def _next(self, watched: Watched, place: Place, task: int) -> Call | None:
        """Return the next call of a name; None in a repeated forward that was not seen before."""
        if place.repeats is not None and place.repeats.is_checkpoint:
            return None
        if task == -1 and not self._open.stack:
            self._begin(watched.api)
        clock, around = self._clock, self._open.stack[-1] if self._open.stack else None
        if clock.step != self._step:
            self._step = clock.step
            self._counts.clear()
            self._first.clear()
        if not clock.rooted:
            self._first.add(watched.api)
        when, training = (clock.step, clock.micro_step), False
        if around is not None:
            when, training = (around.step, around.micro_step), around.training
        number = self._counts[watched.api]
        self._counts[watched.api] = number + 1
        call = Call(watched, 0, *when, number, training, recorded=clock.recording)
        place.note(watched, call)
        return call

    def _begin(self, name: str) -> None:
        """Begin the step, or the next: what came before the model's forward comes so again."""
        clock = self._clock
        again = clock.step == self._step and name in self._first and clock.is_over()
        if (again or not clock.begun) and clock.root_forward(root=False):
            self._begins()

    def _watched(self, name: str) -> Watched:
        found = self._names.get(name)
        if found is None:
            if len(self._names) >= _ROOM:
                self._names.clear()
            about = (_gone, "", "", _NOTHING)
            found = Watched(*about, is_root=False, selected=True, api=name)
            self._names[name] = found
        return found
