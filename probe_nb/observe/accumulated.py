"""`.grad` when a backward ends, where it holds something else than what this backward added."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from probe_nb.observe.aside import aside
from probe_nb.observe.calls import Call
from probe_nb.observe.compiled import beside
from probe_nb.observe.select import own_parameter
from probe_nb.observe.shards import Owned, held
from probe_nb.observe.sink import Sink
from probe_nb.observe.tasks import Tasks

_REMEMBERED: Final = 64
"""As in `tasks`: more backwards do not run at once."""

_BEHIND: Final = 2
"""How often a callback goes to the end of the queue. DDP's and FSDP's act when they are called,
but DDP's of a static graph queues the one that acts."""

Key = tuple[int, str]


class State(NamedTuple):
    """Where a tensor's memory is and how often it was written; holds nothing alive."""

    address: int
    version: int

    @classmethod
    def of(cls, t: Tensor | None) -> State | None:
        """Read the state of a gradient, None if there is none."""
        if t is None:
            return None
        if type(t) is Tensor and t.layout is torch.strided and not t.is_inference():
            return cls(t.data_ptr(), t._version)
        t, _ = held(t)
        version = -1 if t.is_inference() else t._version
        placed = t.layout == torch.strided and not isinstance(t, FakeTensor)
        return cls(t.data_ptr() if placed else 0, version)


class Added(NamedTuple):
    """What was known of a parameter before a gradient was added to it."""

    call: Call
    number: int
    name: str
    parameter: int
    before: State | None
    gradient: State | None
    alone: bool
    """No hook of anybody else's can change the gradient on its way."""

    def still(self, grad: Tensor) -> bool:
        """Tell whether `grad` is certain to be what was added, or to be as before.

        An untouched gradient is either the very memory that arrived or a copy that was written
        once, when it was made.
        """
        now = State.of(grad)
        if self.before is not None:
            return now == self.before
        if not self.alone or now is None or self.gradient is None:
            return False
        if now.address and now.address == self.gradient.address:
            return now == self.gradient
        return now.version <= 1 and not grad._is_view()


@dataclass
class _Ending:
    """What is to be done when a backward ends."""

    added: list[Added] = field(default_factory=list)
    before: dict[Key, State | None] = field(default_factory=dict)
    queued: bool = False


class Accumulated:
    """Looks at `.grad` once, after everything else that a backward does."""

    def __init__(self, sink: Sink, tasks: Tasks, owned: Callable[[], Iterable[Owned]]) -> None:
        """Attach to nothing; `owned` gives the parameters that a hook does not tell all of."""
        self._sink = sink
        self._tasks = tasks
        self._owned = owned
        self._endings: dict[int, _Ending] = {}
        tasks.begun = self._begun

    def _begun(self, task: int) -> None:
        """Take note of what `.grad` holds when a backward begins."""
        ending = _Ending()
        for each in self._owned():
            ending.before[_key(each)] = State.of(each.parameter.grad)
        self._endings[task] = ending
        while len(self._endings) > _REMEMBERED:
            self._endings.pop(next(iter(self._endings)), None)
        if ending.before:
            self._queue(task, ending)

    def adds(self, task: int, added: Added) -> None:
        """Take note that a gradient is about to be added to `.grad`."""
        if (ending := self._endings.get(task)) is not None:
            ending.added.append(added)
            self._queue(task, ending)

    def _queue(self, task: int, ending: _Ending) -> None:
        if not ending.queued and task >= 0:
            ending.queued = True
            self._later(task, _BEHIND)

    @beside
    def _later(self, task: int, times: int) -> None:
        """Run when the backward ends, after what others do then."""
        act = self._end if not times else functools.partial(self._later, times=times - 1)
        torch.autograd.Variable._execution_engine.queue_callback(functools.partial(act, task))

    @beside
    def _end(self, task: int) -> None:
        try:
            ending = self._endings.pop(task, None)
            if ending is not None:  # else the watch has ended
                with aside():
                    self._look(task, ending)
        except Exception as error:  # a fault of ours is never the user's
            self._sink.fault(None, "backward", error)

    def _look(self, task: int, ending: _Ending) -> None:
        done = {self._read(each) for each in ending.added}
        for each in self._owned() if ending.before else ():
            if (key := _key(each)) in ending.before and key not in done:
                self._compare(task, each, ending.before[key])

    def _read(self, added: Added) -> Key:
        watched = added.call.watched
        try:
            module = watched.module()
            p = None if module is None else own_parameter(module, added.name)
            grad = p.grad if p is not None and id(p) == added.parameter else None
            if grad is not None and not added.still(grad):
                where = f"{added.name}.grad"
                self._sink.tensor(added.call, ("param_grad", where), grad, added.number)
        except Exception as error:  # a fault of ours is never the user's
            self._sink.fault(watched, "backward", error)
        return id(watched), added.name

    def _compare(self, task: int, each: Owned, before: State | None) -> None:
        """Write down a `.grad` that this backward changed."""
        try:
            grad = each.parameter.grad
            if grad is None or (each.counted and State.of(grad) == before):
                return
            when = self._tasks.when(task, each.watched)
            if when.recorded:
                call = each.watched.parameters_call(when)
                where = f"{each.name}.grad{each.of_grad}"
                self._sink.tensor(call, ("param_grad", where), grad, call.backward(task))
        except Exception as error:  # a fault of ours is never the user's
            self._sink.fault(each.watched, "backward", error)

    def forget(self) -> None:
        """Do nothing more, also where a backward still runs."""
        self._endings.clear()


def _key(each: Owned) -> Key:
    return id(each.watched), each.name
