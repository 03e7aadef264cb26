"""One watch from attach to detach. READ THIS FIRST.

`doors.watch` and `doors.start` make a `Session`; `stop` and `step` below act on open ones. Its
`pace` has the rooms made (`wiring`): modules are chosen (`observe.select`), steps counted
(`observe.calls`), tensors seen (`observe.modules`, `observe.gradients`), reduced (`stats.summary`)
and written down (`recorder`, `store`). What it leaves is a `Run`. Whatever ends it, `close` gives
everything back.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch import nn

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
from probe_nb.observe.select import as_module
from probe_nb.pace import Pace
from probe_nb.run import Run
from probe_nb.slicing import Slicing
from probe_nb.stats.kernels import cpu
from probe_nb.stopping import Stopper
from probe_nb.terms import AGAIN, ANOTHER, printable, shown

_open: list[Session] = []


def sessions() -> tuple[Session, ...]:
    """Return the open sessions, oldest first."""
    return tuple(_open)


class Session:
    """An open watch over one or several models."""

    def __init__(
        self,
        models: dict[str, nn.Module],
        options: WatchConfig,
        optimizer: Any,
        scaler: Any,
        *,
        into: Run | None = None,
    ) -> None:
        """Prepare everything; nothing is attached before `open`.

        `into` is the run of an earlier session, closed since, which this one goes on with.
        """
        self.config = options
        self._pace = Pace(models, options, optimizer, scaler, self.close, into=into)
        self._rooms = rooms = self._pace.rooms
        self.run = rooms.run
        self.listeners = self._pace.listeners
        alert_rules.checked(options.alerts)
        self.run.info.notices += [
            f"`{type(each).__name__}` was named as an optimizer and holds no parameter of what is "
            "watched: was it made before the model was replaced?"
            for each in as_optimizers(optimizer)
            if not self._pace.holds_watched(each)
        ]
        if options.on_finding is not None:
            self.listeners.append(Hearer(self.run.columns, self.run.info, options.on_finding))
        self.closers: list[Callable[[], None]] = []
        self.kept_as = ""
        """How the user comes by the run, where nobody was given it."""
        self._attached: Attachment | None = None

    # -- lifetime -------------------------------------------------------------------------------

    def open(self, *, restarted: Callable[[Session], None] | None = None) -> Session:
        """Attach every hook; earlier sessions on the same modules are closed first.

        `restarted` is told of each that ended so; None warns the user.

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

    def _attach(self, restarted: Callable[[Session], None]) -> None:
        for other in sessions():
            if other.shares_modules_with(self):
                other.close(other.ended_by(self))
                restarted(other)
        cpu.warm()
        attachment = self._rooms.attachment
        try:
            attachment.attach(self._pace.modules())
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

    def shares_modules_with(self, other: Session) -> bool:
        """Tell whether both watch the same module, or neither watches any."""
        mine, watched = self._rooms.by_id, other._rooms.watched
        if not self._rooms.watched and not watched:
            return True
        theirs = [m for w in watched if (m := w.module()) is not None]
        return any((w := mine.get(id(m))) is not None and w.module() is m for m in theirs)

    def ended_by(self, other: Session) -> str:
        """Say how this watch ends if it makes room for another."""
        again = bool(self._rooms.watched) and self.shares_modules_with(other)
        return AGAIN if again else ANOTHER

    def close(self, reason: str) -> None:
        """Give everything back, then take in what was still waiting. Closing twice is harmless.

        There is no lock that an interrupt could leave shut: each act can be repeated. Until all
        are done the session counts as open, so that `stop` finds one that was interrupted here.
        """
        attached, info, rooms = self._attached, self.run.info, self._rooms
        if attached is None:
            return
        for act in (rooms.only.close, self._rest, rooms.steps.settle, rooms.steps.step_ends):
            self._guarded(act)
        attached.release(self._pace.modules())
        info.ended = reason if info.ended == "open" else info.ended
        self.run.bind(None)
        self._pace.drain()
        rooms.recorder.forget()
        rooms.buffers.close()
        about.finish(info)
        self._pace.take_in_new_modules(late=True)
        self._guarded(self._pace.note_structure)
        self._guarded(self._note_cuts)
        self._pace.note_unobserved()
        if reason == AGAIN:
            self._pace.note_watched_again()
        for closer in self.closers:
            self._pace.tell(closer)
        _open[:] = [session for session in _open if session is not self]
        rooms.by_id.clear()
        self._attached = None

    def _rest(self) -> None:
        if isinstance(self._rooms.recorder, Stopper):
            self._rooms.recorder.rest()

    def _note_cuts(self) -> None:
        """Say of `slices=` what fitted nothing: only now every tensor was seen."""
        sink, notices = self._rooms.sink, self.run.info.notices
        text = sink.idle() if isinstance(sink, Slicing) else ""
        if text and text not in notices:
            notices.append(text)
            notify(f"probe_nb: {text}.")

    def _guarded(self, act: Callable[[], None]) -> None:
        """Do what may fail without harm to what comes after it: the hooks have to go."""
        try:
            act()
        except Exception as error:
            text = f"the end of the watch was not written down whole: {error!r}"
            self.run.info.notices.append(text)
            notify(f"probe_nb: {text}")

    def abandon(self) -> None:
        """End the watch in a forked child, of whose run nobody would hear.

        Nothing is taken in: a thread that is not there any more may have shut the locks for good.
        """
        attached, self._attached = self._attached, None
        if attached is not None:
            attached.release(self._pace.modules())
            self.run.info.ended = "forked"
            self.run.info.notices.append("this process was forked off: what it does is not seen")
            self.run.bind(None)

    def close_after(self, error: BaseException) -> None:
        """Close because the user's code raised, and write down what and where."""
        if isinstance(self._rooms.recorder, Stopper):
            self._rooms.recorder.complete(error)
        try:
            reason = self._told(error)
        except Exception:  # an exception may have a text that raises
            reason = type(error).__name__
        self.close(reason)

    def _told(self, error: BaseException) -> str:
        where = self._rooms.modules.where(error)
        place = "" if where is None else f" in {shown(where)}"
        text = printable(" ".join(str(error).split()))
        reason = f"{type(error).__name__}{place} at step {self._rooms.clock.last}"
        return f"{reason}: {text[:200]}" if text else reason

    # -- steps --------------------------------------------------------------------------------

    def step(self) -> None:
        """End the current step; from then on steps end only through this call."""
        if self._attached is None:
            raise SessionStateError("This session is closed, so it has no step to end.")
        with aside():
            self._rooms.clock.step_by_hand()

    def count_by_hand(self) -> None:
        """Let nothing but `step` end a step."""
        self._rooms.clock.by_hand = True

    def pause(self) -> None:
        """Record no call that begins from here on; gradients of earlier ones still come."""
        self._rooms.clock.pause()
        if self._rooms.functions is not None:
            self._rooms.functions.place.leave()

    def resume(self, tokens: tuple[int, int] | None = None) -> None:
        """Record calls again; with `tokens`, these forwards of the model, counted from now on."""
        clock, functions = self._rooms.clock, self._rooms.functions
        if functions is not None and clock.paused:
            functions.place.put()
        clock.resume(tokens)

    def only(self, module: Any, name: str) -> Range:
        """Record one module alone, as `name`, until the range that is returned is closed."""
        if self._attached is None:
            raise SessionStateError("This session is closed, so it records nothing any more.")
        return self._rooms.only.open(as_module(module), config.as_name(name))

    def save(self, value: Any, name: str, *, backward: bool) -> None:
        """Record a value under a name, and with `backward` the gradients of its tensors."""
        self._rooms.variables.save(name, value, backward=backward)

    def register_custom_api(self, module: Any, name: str, prefix: str | None = None) -> None:
        """Record a function of the user's as `prefix.name`, until the session closes."""
        self._of_functions().register(module, name, prefix)

    def restore_custom_api(self, module: Any = None, name: str | None = None) -> int:
        """Record it no more, or none of them; return how many there were."""
        return self._of_functions().unregister(module, name)

    def _of_functions(self) -> Functions:
        functions = self._rooms.functions
        if self._attached is None or functions is None:
            raise SessionStateError(
                "Functions are recorded by an open session at API level: "
                '`probe.watch(model, level="api")`, or `"mix"`.'
            )
        return functions

    def flush(self) -> None:
        """Take in what was seen so far, in the middle of a step."""
        self._pace.flush()

    def structure(self) -> None:
        """Write into the run what the models are made of by now."""
        self._pace.note_structure()


def _after_fork() -> None:
    for session in sessions():
        session.abandon()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _warn_restarted(earlier: Session) -> None:
    text = "This model was already watched; the earlier session was stopped."
    if earlier.kept_as and len(earlier.run.columns):
        text += f" When this one has ended, `run = {earlier.kept_as}` gives the earlier run."
    notify(text)


def save(value: Any, name: str, *, backward: bool) -> None:
    """Record a value in every open session; where none is open nothing happens."""
    for session in sessions():
        session.save(value, name, backward=backward)


def stop(run: Run | None = None) -> Run | None:
    """End the newest session, or the one that records `run`, and return its run.

    Returns None if nothing is open: stopping twice is harmless.

    >>> import torch, probe_nb as probe
    >>> model = torch.nn.Linear(2, 1)
    >>> run = probe.start(model, live=False)
    >>> _ = model(torch.ones(5, 2))
    >>> probe.stop() is run, run.is_open
    (True, False)
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

    >>> import torch, probe_nb as probe
    >>> model = torch.nn.Linear(2, 1)
    >>> with probe.watch(model, roles="output") as run:
    ...     for _ in range(2):
    ...         _ = model(torch.ones(5, 2))
    ...         probe.step()
    >>> run.df["step"].tolist()
    [0, 1]
    """
    for session in reversed(sessions()):
        if run is None or session.run is run:
            session.step()
            return
    raise SessionStateError(
        "No session is open, so there is no step to end. Start one with `probe.start(model)`."
    )
