"""Which forward a running backward came from."""

from __future__ import annotations

from collections.abc import Callable
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


class Tasks:
    """What the gradients of calls have told of each backward, by the number of its graph task.

    A parameter does not know which forward used it: its gradient arrives in a backward that may
    run after the next forward has begun. But the gradient of a call arrives before it.
    """

    def __init__(self, clock: Clock) -> None:
        """Know of no backward."""
        self._clock = clock
        self._known: dict[int, dict[Any, When]] = {}
        self.begun: Callable[[int], None] = lambda _: None

    def reached(self, call: Call, task: int, *, recorded: bool = True) -> None:
        """Take note that a gradient of a call arrived."""
        known = self.begin(task)
        if call.watched not in known:
            number = call.backward(task)
            when = known[call.watched] = When(call.step, call.micro_step, recorded, number)
            known.setdefault(call.watched.model, when)
            known.setdefault(None, when)

    def begin(self, task: int) -> dict[Any, When]:
        """Return what is known of a backward; `begun` is told of one that is new."""
        known = self._known.get(task)
        if known is None:
            known = self._known[task] = {}
            while len(self._known) > _REMEMBERED:
                self._known.pop(next(iter(self._known)), None)
            self.begun(task)
        return known

    def when(self, task: int, watched: Watched) -> When:
        """Tell to which forward the gradient of a module's parameter belongs.

        The module's own newest call in this backward says it; else its model's, else any other's.
        Where nothing was said, it is taken to belong to the newest forward.
        """
        known = self.begin(task)
        for who in (watched, watched.model, None):
            if (when := known.get(who)) is not None:
                return when
        clock = self._clock
        return When(clock.step, clock.micro_step, clock.recording)

    def forget(self) -> None:
        """Drop everything."""
        self._known.clear()
