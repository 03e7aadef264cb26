"""Which forward a running backward came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from probe_nb.observe.calls import Call, Clock
from probe_nb.observe.select import Watched

_REMEMBERED: Final = 64
"""Backwards that are remembered. More do not run at once; one that raised is never said to end."""


class When(NamedTuple):
    """The forward that a gradient belongs to, and whether it is recorded."""

    step: int
    micro_step: int
    recorded: bool
    backward: int = 0
    """The number that the backward has at the call which told of it."""


@dataclass(slots=True)
class Told:
    """What was told of one backward."""

    by: dict[Any, When] = field(default_factory=dict)
    """By each module that it reached; by the first one of each model, and of all under None."""
    calls: dict[Watched, tuple[Call, int] | None] = field(default_factory=dict)
    """Of the former what the gradients of their parameters are written down under."""


class Tasks:
    """What the gradients of calls have told of each backward, by the number of its graph task.

    A parameter does not know which forward used it: its gradient arrives in a backward that may
    run after the next forward has begun. But the gradient of a call arrives before it.
    """

    def __init__(self, clock: Clock) -> None:
        """Know of no backward."""
        self._clock = clock
        self._known: dict[int, Told] = {}
        self.begun: Callable[[int], None] = lambda _: None

    def reached(self, call: Call, task: int, *, recorded: bool = True) -> None:
        """Take note that a gradient of a call arrived."""
        known = self.begin(task).by
        if call.watched not in known:
            number = call.backward(task)
            when = known[call.watched] = When(call.step, call.micro_step, recorded, number)
            known.setdefault(call.watched.model, when)
            known.setdefault(None, when)

    def begin(self, task: int) -> Told:
        """Return what is known of a backward; `begun` is told of one that is new."""
        known = self._known.get(task)
        if known is None:
            known = self._known[task] = Told()
            while len(self._known) > _REMEMBERED:
                self._known.pop(next(iter(self._known)), None)
            self.begun(task)
        return known

    def when(self, task: int, watched: Watched) -> When:
        """Tell to which forward the gradient of a module's parameter belongs.

        The module's own newest call in this backward says it; else its model's, else any other's.
        Where nothing was said, it is taken to belong to the newest forward.
        """
        known = self.begin(task).by
        for who in (watched, watched.model, None):
            if (when := known.get(who)) is not None:
                return when
        clock = self._clock
        return When(clock.step, clock.micro_step, clock.recording)

    def parameters_call(self, task: int, watched: Watched) -> tuple[Call, int] | None:
        """Return what the gradients of a module's parameters are written down under.

        That is a call and the number of the backward at it; None if the forward is not recorded.
        """
        told = self.begin(task)
        if watched in told.calls:
            return told.calls[watched]
        when = self.when(task, watched)
        call = watched.parameters_call(when)
        found = (call, call.backward(task, when.backward)) if when.recorded else None
        if watched in told.by:  # else it may still be told
            told.calls[watched] = found
        return found

    def forget(self) -> None:
        """Drop everything."""
        self._known.clear()
