"""The steps of named optimizers: when they are read, and that nothing is left of it.

Two process-wide hooks of torch. Gradients are read before the step, or after it if they are
computed inside (a closure). Copies of parameters are held only while the step runs.

Process-wide hooks run before an optimizer's own pre hooks, which may clip gradients, and after its
own post hooks, which may ask for this step's rows. Where there are hooks of others, one of ours
stands behind the former and before the latter while the step runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from torch.optim import Optimizer

from probe_nb import devices
from probe_nb.observe.aside import aside
from probe_nb.observe.calls import Clock
from probe_nb.observe.compiled import beside
from probe_nb.observe.optimizers import ScalerWatch
from probe_nb.observe.sink import Sink
from probe_nb.observe.step_rows import StepRows
from probe_nb.observe.stepping import Named, Own, Step, has_closure, named
from probe_nb.ungraded import ungraded


class StepsTaken:
    """Sees named optimizers step."""

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        clock: Clock,
        rows: StepRows,
        sink: Sink,
        scaler: ScalerWatch | None,
    ) -> None:
        """Attach to nothing, and keep no optimizer alive."""
        self._clock = clock
        self._rows = rows
        self._sink = sink
        self._scaler = scaler
        self._named = named(optimizers)
        self._last = self._named[id(optimizers[-1])] if optimizers else None
        self.unread: set[str] = set()
        """What was not seen, in words."""

    @property
    def watches(self) -> bool:
        """Tell whether there is an optimizer whose steps are to be seen."""
        return bool(self._named)

    # -- torch's hooks ------------------------------------------------------------------------

    # torch calls these two, and `_look` and `_end` through an `Own`. They hold the only `except`
    # between us and the user's optimizer.

    @beside
    def before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Run as torch's process-wide hook before any optimizer's step."""
        try:
            if torch.compiler.is_compiling() or (known := self._find(optimizer)) is None:
                return
            with aside():
                closure, frame = has_closure(args, kwargs), sys._getframe(1)
                ungraded(self._begin, known, optimizer, frame, closure=closure)
        except Exception as error:  # a fault of ours is never the user's
            self._fault(error)

    @beside
    def after(self, optimizer: Optimizer, *_: Any) -> None:
        """Run as torch's process-wide hook after any optimizer's step."""
        try:
            if torch.compiler.is_compiling() or (known := self._find(optimizer)) is None:
                return
            frame = sys._getframe(1)
            if known.step is not None and known.step.runs_in(frame, optimizer):
                try:
                    self._end(optimizer, frame)
                finally:  # copies and hooks go also where a row could not be written
                    known.drop()
        except Exception as error:  # a fault of ours is never the user's
            self._fault(error)

    def _look(self, optimizer: Optimizer, _: FrameType) -> None:
        """Read what is there before a step, behind the hooks of others."""
        known = self._find(optimizer)
        step = None if known is None else known.step
        if known is not None and step is not None and not step.looked:
            with aside():
                ungraded(self._rows.look, known, optimizer, step)

    def _end(self, optimizer: Optimizer, frame: FrameType) -> None:
        """Read what a step has left, before the hooks of others."""
        known = self._find(optimizer)
        step = None if known is None else known.step
        if known is None or step is None or step.written or not step.runs_in(frame, optimizer):
            return
        step.written = True
        if step.looked and self._clock.recording:
            with aside():
                ungraded(self._rows.write, known, optimizer, step)

    def _find(self, optimizer: Optimizer) -> Named | None:
        known = self._named.get(id(optimizer))
        return known if known is not None and known.optimizer() is optimizer else None

    def _fault(self, error: Exception) -> None:
        self._sink.fault(None, "an optimizer's step", error)

    def _begin(
        self, known: Named, optimizer: Optimizer, frame: FrameType, *, closure: bool
    ) -> None:
        known.told = True
        if known.step is not None:
            if known.step.runs_around(frame.f_back, optimizer):
                return  # a class that calls the step of the class it is made from
            known.drop()  # it raised
        clock = self._clock  # with a closure, the step of the run may begin inside
        wanted = clock.recording or (closure and clock.wants(clock.step + 1))
        if not wanted or devices.capturing():
            return
        known.step = step = Step(id(frame), closure)
        look, end = Own(self._look, self, self._fault), Own(self._end, self, self._fault)
        behind, _ = step.put_hooks(optimizer, look, end)
        if not behind:
            self._rows.look(known, optimizer, step)

    # -- skipped steps ------------------------------------------------------------------------

    def updated(self) -> bool:
        """Tell whether the scaler was updated since the last call, as `ScalerWatch` does."""
        if self._scaler is None:
            return False
        self.settle()
        updated = self._scaler.updated()
        if updated:
            for known in self._named.values():
                known.told = False
        return updated

    def settle(self) -> None:
        """Write down the steps that the scaler has skipped: no hook tells of them."""
        if self._scaler is None:
            return
        for known in self._named.values():
            optimizer = known.optimizer()
            if optimizer is None or known.told or not self._scaler.stepped(optimizer):
                continue
            known.told = True
            if self._clock.recording:
                self._skipped(known, optimizer)

    def _skipped(self, known: Named, optimizer: Optimizer) -> None:
        try:
            with aside():
                ungraded(self._rows.skipped, known, optimizer)
        except Exception as error:  # a fault of ours is never the user's
            self._fault(error)

    def step_ends(self) -> None:
        """Take note where a step was ended by an optimizer that was not seen to step."""
        known, clock = self._last, self._clock
        if known is None or not clock.due or not clock.recording or known.number[0] == clock.step:
            return
        self.unread.add(
            f"`{known.itself.api}` ({known.itself.type}) stepped, but what it did was not seen: "
            'it ran as compiled code, which `compiled="eager"` opens, or in a captured graph'
        )

    # -- lifetime -----------------------------------------------------------------------------

    def drop_raised(self) -> None:
        """Let go of what is held for steps that raised."""
        for known in self._named.values():
            step, optimizer = known.step, known.optimizer()
            if step is None:
                continue
            if optimizer is None or not step.runs_around(sys._getframe(1), optimizer):
                known.drop()

    def close(self) -> None:
        """Hold nothing, and leave no hook on an optimizer; may be repeated."""
        for known in self._named.values():
            known.close(self)
