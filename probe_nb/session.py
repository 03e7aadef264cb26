"""One watch from attach to detach. READ THIS FIRST.

`doors.watch` and `doors.start` make a `Session`; `stop` and `step` below act on open ones. A
session chooses the modules (`observe.select`), counts steps (`observe.calls`), sees tensors
(`observe.modules`, `observe.gradients`), has them reduced (`stats.summary`) and written down
(`recorder`, `store`). What it leaves is a `Run`. Whatever ends it, `close` gives everything back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Final

from torch import nn
from torch.optim import Optimizer

from probe_nb import about, config
from probe_nb.analysis import alert_rules
from probe_nb.analysis.heard import Hearer
from probe_nb.config import WatchConfig
from probe_nb.errors import SessionStateError, notify
from probe_nb.observe.aside import aside
from probe_nb.observe.attach import Attachment
from probe_nb.observe.functions import Functions
from probe_nb.observe.only import Range
from probe_nb.observe.optimizers import as_optimizers
from probe_nb.observe.select import (
    Tree,
    add_modules,
    as_module,
    mark_selected,
)
from probe_nb.observe.shards import owned
from probe_nb.run import Run
from probe_nb.stats.kernels import cpu
from probe_nb.stopping import Stopper
from probe_nb.terms import printable, shown
from probe_nb.wiring import wired

_PATIENCE: Final = 1.0
_WAITING: Final = 10_000
"""Seconds, or rows, after which a long step is taken in between two of its root forwards."""

_open: list[Session] = []


def sessions() -> tuple[Session, ...]:
    """Return the open sessions, oldest first."""
    return tuple(_open)


class Session:
    """An open watch over one or several models."""

    def __init__(
        self, models: dict[str, nn.Module], options: WatchConfig, optimizer: Any, scaler: Any
    ) -> None:
        """Prepare everything; nothing is attached before `open`."""
        self.config = options
        rooms = wired(models, options, optimizer, scaler, self)
        self.run = rooms.run
        self._watched, self._by_id = rooms.watched, rooms.by_id
        self._trees = {w: Tree() for w in self._watched if w.is_root}
        self._clock, self._recorder = rooms.clock, rooms.recorder
        self._modules, self._gradients = rooms.modules, rooms.gradients
        self._parameters, self._only = rooms.parameters, rooms.only
        self._scaler, self._coverage = rooms.scaler, rooms.coverage
        self._steps, self._buffers = rooms.steps, rooms.buffers
        self._functions = rooms.functions
        self._attachment = rooms.attachment
        alert_rules.checked(options.alerts)
        self.run.info.notices += [
            f"`{type(each).__name__}` was named as an optimizer and holds no parameter of what is "
            "watched: was it made before the model was replaced?"
            for each in as_optimizers(optimizer)
            if not self.holds_watched(each)
        ]
        self.listeners: list[Callable[[], None]] = []
        if options.on_finding is not None:
            self.listeners.append(Hearer(self.run.columns, self.run.info, options.on_finding))
        self.closers: list[Callable[[], None]] = []
        self._attached: Attachment | None = None
        self._drained_at = time.monotonic()
        self._unread = True

    # -- lifetime -------------------------------------------------------------------------------

    def open(self, *, restarted: Callable[[Run], None] | None = None) -> Session:
        """Attach every hook; earlier sessions on the same modules are closed first.

        `restarted` is told of each run that ended so; None warns the user.

        Raises:
            ConfigError: The folder for kept tensors cannot be made.
        """
        try:
            self.run.tensors.open()
            self._attach(restarted or _warn_restarted)
        except BaseException:
            self.refuse()
            raise
        return self

    def _attach(self, restarted: Callable[[Run], None]) -> None:
        for other in sessions():
            if other.shares_modules_with(self):
                other.close("restarted")
                restarted(other.run)
        cpu.warm()
        attachment = self._attachment
        try:
            attachment.attach(self._modules_alive())
            self._attached = attachment
            self.run.bind(self)
            _open.append(self)
        except BaseException:  # Ctrl-C, of all moments, now
            self._attached = attachment
            raise

    def refuse(self) -> None:
        """Give everything back of a watch that could not be opened."""
        self.close("interrupted")
        self.run.tensors.withdraw()

    def _modules_alive(self) -> list[nn.Module]:
        all_of_them = (*self._watched, *self._only.named)
        return [m for w in all_of_them if w.selected and (m := w.module()) is not None]

    def shares_modules_with(self, other: Session) -> bool:
        """Tell whether both watch the same module, or neither watches any."""
        if not self._watched and not other._watched:
            return True
        theirs = [m for w in other._watched if (m := w.module()) is not None]
        return any((w := self._by_id.get(id(m))) is not None and w.module() is m for m in theirs)

    def close(self, reason: str) -> None:
        """Give everything back, then take in what was still waiting. Closing twice is harmless.

        There is no lock that an interrupt could leave shut: each act can be repeated. Until all
        are done the session counts as open, so that `stop` finds one that was interrupted here.
        """
        attached, info = self._attached, self.run.info
        if attached is None:
            return
        for act in (self._only.close, self._rest, self._steps.settle, self._steps.step_ends):
            self._guarded(act)
        attached.release(self._modules_alive())
        info.ended = reason if info.ended == "open" else info.ended
        self.run.bind(None)
        self._drain()
        self._recorder.forget()
        self._buffers.close()
        about.finish(info)
        self._take_in_new_modules(late=True)
        self._note_unobserved()
        for closer in self.closers:
            self._tell(closer)
        _open[:] = [session for session in _open if session is not self]
        self._by_id.clear()
        self._attached = None

    def _rest(self) -> None:
        if isinstance(self._recorder, Stopper):
            self._recorder.rest()

    def _guarded(self, act: Callable[[], None]) -> None:
        """Do what may fail without harm to what comes after it: the hooks have to go."""
        try:
            act()
        except Exception as error:
            text = f"the end of the watch was not written down whole: {error!r}"
            self.run.info.notices.append(text)
            notify(f"probe_nb: {text}")

    def stopped(self, reason: str) -> None:
        """Close because the first NaN or Inf was born, where that was asked for."""
        self.close(reason)

    def abandon(self) -> None:
        """End the watch in a forked child, of whose run nobody would hear.

        Nothing is taken in: a thread that is not there any more may have shut the locks for good.
        """
        attached, self._attached = self._attached, None
        if attached is not None:
            attached.release(self._modules_alive())
            self.run.info.ended = "forked"
            self.run.info.notices.append("this process was forked off: what it does is not seen")
            self.run.bind(None)

    def close_after(self, error: BaseException) -> None:
        """Close because the user's code raised, and write down what and where."""
        if isinstance(self._recorder, Stopper):
            self._recorder.complete(error)
        try:
            reason = self._told(error)
        except Exception:  # an exception may have a text that raises
            reason = type(error).__name__
        self.close(reason)

    def _told(self, error: BaseException) -> str:
        where = self._modules.where(error)
        place = "" if where is None else f" in {shown(where)}"
        text = printable(" ".join(str(error).split()))
        reason = f"{type(error).__name__}{place} at step {self._clock.last}"
        return f"{reason}: {text[:200]}" if text else reason

    # -- steps --------------------------------------------------------------------------------

    def step(self) -> None:
        """End the current step; from then on steps end only through this call."""
        if self._attached is None:
            raise SessionStateError("This session is closed, so it has no step to end.")
        with aside():
            self._clock.step_by_hand()

    def only(self, module: Any, name: str) -> Range:
        """Record one module alone, as `name`, until the range that is returned is closed."""
        if self._attached is None:
            raise SessionStateError("This session is closed, so it records nothing any more.")
        return self._only.open(as_module(module), config.as_name(name))

    def register_custom_api(self, module: Any, name: str, prefix: str | None = None) -> None:
        """Record a function of the user's as `prefix.name`, until the session closes."""
        self._of_functions().register(module, name, prefix)

    def restore_custom_api(self, module: Any = None, name: str | None = None) -> int:
        """Record it no more, or none of them; return how many there were."""
        return self._of_functions().unregister(module, name)

    def _of_functions(self) -> Functions:
        if self._attached is None or self._functions is None:
            raise SessionStateError(
                "Functions are recorded by an open session at API level: "
                '`probe.watch(model, level="api")`, or `"mix"`.'
            )
        return self._functions

    def flush(self) -> None:
        """Take in what was seen so far, in the middle of a step."""
        with aside():  # what we compute is no call of the user's
            self._modules.drop_raised()
            self._steps.settle()
            self._drain()
            self._note_unobserved()

    def step_begins(self) -> None:
        """Prepare the first root forward of a step: parameters are read before they are used."""
        for watched in self._watched:
            watched.begin_step()
        self._only.begin_step()
        if self._functions is not None:
            self._functions.begin_step()
        self._unread = True
        self._read_parameters()

    def _read_parameters(self) -> None:
        """Record the parameters once a step, at the first root forward that is recorded."""
        self._steps.drop_raised()
        if self._unread and self._clock.recording:
            self._unread = False
            self._take_in_new_modules()
            for watched in self._watched:
                watched.renamed()  # a root that is lazy was built just before its first step
            self._modules.prepare(self._modules_alive())
            self._parameters.step_begins()
            self._buffers.step_begins()

    def _take_in_new_modules(self, *, late: bool = False) -> None:
        """Watch what was put into a model since: a replaced head, an adapter."""
        for root in [w for w in self._watched if w.is_root]:
            model = root.module()
            if model is None or not self._trees[root].changed(model):
                continue
            added = add_modules(self._by_id, root.model, model)
            mark_selected(added, self.config.select, must_match=False)
            for watched in added:
                watched.late = late
            self._watched += added
            self.run.info.modules += len(added)

    def step_goes_on(self) -> None:
        """Take in what waits, now and then, where no optimizer or nobody ends a step."""
        self._read_parameters()
        late = time.monotonic() - self._drained_at > _PATIENCE
        if late or self._recorder.waiting > _WAITING:
            self._drain(wait=False)
            self._gradients.prune(leaves=False)

    def step_ended(self) -> None:
        """Take in what the step left; what the device has not sent yet is left to the next."""
        self._steps.step_ends()
        if self._clock.recording or self._recorder.waiting:
            self._drain(wait=False)
        self._gradients.prune()

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        """Let the step end with the next root forward, unless a scaler's update will end it.

        That ends also a step that the scaler skips, of which no hook tells.
        """
        if self._scaler is None or not self._scaler.knows(optimizer):
            self._clock.optimizer_stepped()

    def holds_watched(self, optimizer: Optimizer) -> bool:
        """Tell whether an optimizer moves a watched parameter."""
        mine = {id(each.parameter) for each in owned(self._watched, selected=False)}
        return any(id(p) in mine for group in optimizer.param_groups for p in group["params"])

    # -- what is left ---------------------------------------------------------------------------

    def _drain(self, *, wait: bool = True) -> None:
        try:
            lost = self._recorder.drain(wait=wait)
        except Exception as error:
            self._recorder.forget()
            lost = [f"rows up to step {self._clock.last} were lost: {error!r}"]
        except BaseException as error:  # Ctrl-C: what still waits can be taken in later
            self.run.info.notices.append(
                f"rows of step {self._clock.last} may be missing: {error!r}"
            )
            raise
        self.run.info.notices += lost
        for each in lost:
            notify(f"probe_nb: {each}")
        self.run.info.steps = self._clock.steps
        self._drained_at = time.monotonic()
        if self.listeners:
            self._note_unobserved()
        for listener in tuple(self.listeners):
            self._tell(listener)

    def _tell(self, listener: Callable[[], None]) -> None:
        """Call a listener; one that fails is not called again and stops nobody."""
        try:
            listener()
        except Exception as error:
            if listener in self.listeners:
                self.listeners.remove(listener)
            notify(f"A live view was switched off: {error}")

    def _note_unobserved(self) -> None:
        notices = self.run.info.notices
        unread = (*self._modules.unread.copy(), *self._steps.unread)
        notices += [text for text in unread if text not in notices]
        self.run.info.unobserved = self._coverage.unobserved()


def _after_fork() -> None:
    for session in sessions():
        session.abandon()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _warn_restarted(_: Run) -> None:
    notify("This model was already watched; the earlier session was stopped.")


def stop(run: Run | None = None) -> Run | None:
    """End the newest session, or the one that records `run`, and return its run.

    Returns None if nothing is open: stopping twice is harmless.
    """
    for session in reversed(sessions()):
        if run is None or session.run is run:
            session.close("stopped")
            return session.run
    return run


def step(run: Run | None = None) -> None:
    """End the step of the newest session, or of the one that records `run`.

    Raises:
        SessionStateError: No session is open.
    """
    for session in reversed(sessions()):
        if run is None or session.run is run:
            session.step()
            return
    raise SessionStateError(
        "No session is open, so there is no step to end. Start one with `probe.start(model)`."
    )
