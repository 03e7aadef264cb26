"""When: steps, micro steps, and which call a hook belongs to.

A pre hook and its post hook are paired by the frame of torch that runs both. That frame is the
call: it is there in every thread, and it is gone when the module raised, whatever hooks ran.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from probe_nb.observe.regions import Place, Regions, local, marks_between

if TYPE_CHECKING:
    from probe_nb.observe.select import Watched

_NOWHERE: Final = Place()


class Choice(NamedTuple):
    """What of a call is recorded, where not all is: see `observe.chosen`."""

    silent: str = ""
    """The direction that is not recorded, or `all`."""
    closes: bool = False
    """What is chosen ends with the call."""
    inside: tuple[bool, bool] = (False, False)
    """Whether all that runs inside is chosen, in the forward and in the backward."""


WHOLE: Final = Choice()
"""All of it."""


@dataclass(eq=False, slots=True)
class Call:
    """One call of one watched module; holds no tensor once the call has ended."""

    watched: Watched
    frame: int
    step: int
    micro_step: int
    number: int
    training: bool
    recompute: bool = False
    recorded: bool = True
    original: Call | None = None
    """The call that this one repeats; its gradients are that call's."""
    head: bytes = b""
    """What its rows have in common."""
    place: Place = _NOWHERE
    module: int = 0
    """The identity of the module, or of the replica of it, that runs in the frame."""
    backwards: dict[int, int] | None = None
    entered: Any = None
    owed: tuple[Any, ...] = ()
    """Gradients that cannot be read; written down for each backward that reaches this call."""
    paid: frozenset[int] = frozenset()
    """The backwards for which that was done."""
    silent: str = ""
    """The direction of it that is not recorded, or `all`."""
    choice: Choice = WHOLE
    """What of it is recorded, and of what runs inside."""
    row: int = -1
    """Its row in the table of calls; that of the call around it where it has none."""
    stack: int = -1
    """The code of the lines that led to it, -1 where nobody asked."""

    def is_in(self, frame: FrameType) -> bool:
        """Tell whether a frame at the call's address is its own: no hook tells of a Ctrl-C."""
        return id(frame) == self.frame and id(local(frame, "self")) == self.module

    def drop(self) -> None:
        """Hold nothing any more: the call was left by an exception."""
        self.entered, self.place = None, _NOWHERE

    def backward(self, task: int, at_least: int = 0) -> int:
        """Return the number of a graph task among those that touched this call."""
        if self.backwards is None:
            self.backwards = {}
        number = self.backwards.get(task)
        if number is None:
            after = max(self.backwards.values(), default=-1) + 1
            number = self.backwards[task] = max(after, at_least)
        return number


@dataclass
class Clock:
    """Counts steps and micro steps (`docs/glossary.md` says when each ends).

    Args:
        wants: Tells of a step number whether it is recorded.
        first: Number of the first step.
        micro_batches: Number of root forwards per step, if it is fixed.
        expects_training: An optimizer was named, so root forwards before the first backward
            belong to one step too.
        ended: Called when a step has ended, before the next one begins.
        updated: Asked before a root forward whether the loss scaler was updated since.
        tokens: The first and the last root forward that is recorded, counted from 0 since the
            watch opened, and again since a step was ended by hand.
    """

    wants: Callable[[int], bool]
    first: int
    micro_batches: int | None
    expects_training: bool
    ended: Callable[[], None]
    updated: Callable[[], bool] = lambda: False
    tokens: tuple[int, int] = (0, sys.maxsize)
    token: int = -1
    step: int = -1
    micro_step: int = -1
    recording: bool = False
    by_hand: bool = False
    due: bool = False
    begun: bool = False
    paused: bool = False
    rooted: bool = False
    """A root has run in this step, or what stands for it."""

    def __post_init__(self) -> None:
        """Stand before the first step."""
        self.step = self.first
        self._choose()

    @property
    def steps(self) -> int:
        """Number of steps that have begun."""
        return self.step - self.first + self.begun

    @property
    def last(self) -> int:
        """Number of the newest step that has begun."""
        return max(self.step - (not self.begun), self.first)

    def is_due(self) -> bool:
        """Tell whether the step ends with the next root forward."""
        if self.updated():
            self.optimizer_stepped()
        return self.due

    def is_over(self) -> bool:
        """Tell whether the step ends with what comes next, if that is part of another one."""
        due = self.is_due()
        return self.begun and (due or self.rooted) and self._over()

    def root_forward(self, *, root: bool = True, again: bool = False) -> bool:
        """Take note of a forward that nothing watched runs around; True if it begins a step.

        Args:
            root: It is that of a root. Another is of a part that runs before its root, such as
                the encoder in `generate`: the root forward that follows belongs to its step.
            again: It is of such a part and ran in this step before: it stands for a root.
        """
        joins = root and self.begun and not self.rooted
        if self.begun and not joins and self._over():
            self.next_step()
        self.token += root or again
        self.rooted |= root or again
        self._choose()
        begins, self.begun = not self.begun, True
        self.micro_step += not joins
        return begins

    def _choose(self) -> None:
        """Decide whether what comes now is recorded."""
        first, last = self.tokens
        tokens = first <= max(self.token, 0) <= last
        self.recording = not self.paused and tokens and self.wants(self.step)

    def _over(self) -> bool:
        if self.by_hand:
            return False
        if self.micro_batches is not None:
            return self.micro_step + 1 >= self.micro_batches
        return self.due or not self.expects_training

    def backward_ran(self) -> None:
        """Take note of a gradient: this is training, root forwards no longer end steps."""
        self.expects_training = True

    def optimizer_stepped(self) -> None:
        """Take note that the step ends with the next root forward."""
        self.expects_training = self.due = True

    def step_by_hand(self) -> None:
        """End the step now; from here on nothing else ends steps."""
        self.by_hand = True
        self.token = -1
        self.next_step()

    def pause(self) -> None:
        """Record nothing of what comes."""
        self.paused = True
        self._choose()

    def resume(self, tokens: tuple[int, int] | None = None) -> None:
        """Record again; with `tokens`, these root forwards, counted from here on."""
        self.paused = False
        if tokens is not None:
            self.tokens, self.token = tokens, -1
        self._choose()

    def next_step(self) -> None:
        """Move on to the next step; its first root forward is still to come."""
        self.ended()
        self.step += 1
        self.micro_step, self.begun, self.due, self.rooted = -1, False, False, False
        self._choose()


class OpenCalls(threading.local):
    """The calls of this thread that have begun and not ended, outermost first."""

    def __init__(self, regions: Regions, ended: Callable[[Call], None] | None = None) -> None:
        """Start empty, once per thread; `ended` hears of each call that ends, however it does."""
        self._regions = regions
        self._ended = ended
        self.stack: list[Call] = []
        self.place = _NOWHERE

    def enter(self, frame: FrameType) -> int:
        """Drop calls whose frames are gone and return how many still run around `frame`.

        `place` then says in which stretch of a forward, or of its repetition, they do.
        """
        stack = self.stack
        while (marks := marks_between(frame, stack[-1] if stack else None)) is None:
            self._drop(stack.pop())
        around = stack[-1].place if stack else _NOWHERE
        self.place = self._regions.place(around, marks) if marks else around
        return len(stack)

    def runs(self, frame: FrameType, module: object) -> bool:
        """Tell whether the newest call is that of a module in `frame`."""
        call = self.stack[-1] if self.stack else None
        return call is not None and call.frame == id(frame) and call.module == id(module)

    def around(self, frame: FrameType) -> bool:
        """Tell whether `frame` runs inside the newest call."""
        call = self.stack[-1] if self.stack else None
        caller = None if call is None else frame.f_back
        while caller is not None:
            if call is not None and id(caller) == call.frame:
                return call.is_in(caller)
            caller = caller.f_back
        return False

    def unwound(self, watched: Watched) -> None:
        """Drop the newest call of a module whose forward raised."""
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place].watched is watched:
                left = self.stack[place:]
                del self.stack[place:]
                for call in left:
                    self._drop(call)
                return

    def leave(self, frame: FrameType, module: object) -> Call | None:
        """Return the call of a module in `frame` and drop it with all that it left behind."""
        stack = self.stack
        for place in range(len(stack) - 1, -1, -1):
            call = stack[place]
            if call.frame == id(frame) and call.module == id(module):
                call.place = _NOWHERE
                while len(stack) > place + 1:
                    self._drop(stack.pop())
                stack.pop()
                return call
        return None

    def _drop(self, call: Call) -> None:
        call.drop()
        if self._ended is not None:
            self._ended(call)
