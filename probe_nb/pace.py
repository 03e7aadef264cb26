"""What goes on while a watch is open: steps begin and end, and what they left is taken in."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from torch import nn
from torch.optim import Optimizer

from probe_nb import reasons
from probe_nb.config import WatchConfig
from probe_nb.errors import notify
from probe_nb.observe import structure
from probe_nb.observe.aside import aside
from probe_nb.observe.optimizers import scaler_around
from probe_nb.observe.select import Tree, add_modules, mark_selected
from probe_nb.observe.shards import owned
from probe_nb.run import Run
from probe_nb.wiring import Rooms, wired

_PATIENCE: Final = 1.0
_WAITING: Final = 10_000
"""Seconds, or rows, after which a long step is taken in between two of its root forwards."""


_LOOKS: Final = 64
"""Steps of an optimizer in which a scaler around it is looked for; it is there always or never."""
UNNAMED: Final = (
    "a GradScaler steps the optimizer and was not named: gradients are recorded multiplied by its "
    "scale, and steps that it skips do not end. Pass it as `scaler=`."
)


class Pace:
    """Prepares the rooms of a session for each step, drains them, and tells who listens.

    It is what the rooms tell their `Events`.
    """

    def __init__(
        self,
        models: dict[str, nn.Module],
        options: WatchConfig,
        optimizer: Any,
        scaler: Any,
        stopped: Callable[[str], None],
        *,
        into: Run | None = None,
    ) -> None:
        """Make the rooms; nothing is attached, and nothing read.

        `stopped` ends the watch, because what was asked to be raised is about to be.
        """
        self.stopped = stopped
        self._select = options.select
        self._rooms = wired(models, options, optimizer, scaler, self, into=into)
        self._run = self._rooms.run
        self._trees = {w: Tree() for w in self._rooms.watched if w.is_root}
        self.listeners: list[Callable[[], None]] = []
        self._drained_at = time.monotonic()
        self._unread = True
        self._looks = _LOOKS

    @property
    def rooms(self) -> Rooms:
        """What is asked and closed."""
        return self._rooms

    def modules(self) -> list[nn.Module]:
        """Return the modules that are watched, as far as they live."""
        all_of_them = (*self._rooms.watched, *self._rooms.only.named)
        return [m for w in all_of_them if w.selected and (m := w.module()) is not None]

    # -- steps ----------------------------------------------------------------------------------

    def step_begins(self) -> None:
        """Prepare the first root forward of a step: parameters are read before they are used."""
        for watched in self._rooms.watched:
            watched.begin_step()
        self._rooms.only.begin_step()
        if self._rooms.functions is not None:
            self._rooms.functions.begin_step()
        self._unread = True
        self._read_parameters()

    def step_goes_on(self) -> None:
        """Take in what waits, now and then, where no optimizer or nobody ends a step."""
        self._read_parameters()
        late = time.monotonic() - self._drained_at > _PATIENCE
        if late or self._rooms.recorder.waiting > _WAITING:
            self.drain(wait=False)
            self._rooms.gradients.prune(leaves=False)

    def step_ended(self) -> None:
        """Take in what the step left; what the device has not sent yet is left to the next."""
        self._rooms.steps.step_ends()
        if self._rooms.clock.recording or self._rooms.recorder.waiting:
            self.drain(wait=False)
        self._rooms.gradients.prune()

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        """Let the step end with the next root forward, unless a scaler's update will end it.

        That ends also a step that the scaler skips, of which no hook tells.
        """
        scaler = self._rooms.scaler
        if scaler is None:
            self._look_for_scaler()
        if scaler is None or not scaler.knows(optimizer):
            self._rooms.clock.optimizer_stepped()

    def _look_for_scaler(self) -> None:
        """Say once that a scaler is in use which was not named: few think of it."""
        if self._looks:
            self._looks -= 1
            if scaler_around():
                self._looks = 0
                self._run.info.unnamed_scaler = True
                self._run.info.notices.append(UNNAMED)

    def holds_watched(self, optimizer: Optimizer) -> bool:
        """Tell whether an optimizer moves a watched parameter."""
        mine = {id(each.parameter) for each in owned(self._rooms.watched, selected=False)}
        return any(id(p) in mine for group in optimizer.param_groups for p in group["params"])

    def _read_parameters(self) -> None:
        """Record the parameters once a step, at the first root forward that is recorded."""
        rooms = self._rooms
        rooms.steps.drop_raised()
        if self._unread and rooms.clock.recording:
            self._unread = False
            self.take_in_new_modules()
            for watched in rooms.watched:
                watched.renamed()  # a root that is lazy was built just before its first step
            rooms.modules.prepare(self.modules())
            rooms.parameters.step_begins()
            rooms.buffers.step_begins()

    def take_in_new_modules(self, *, late: bool = False) -> None:
        """Watch what was put into a model since: a replaced head, an adapter."""
        rooms = self._rooms
        for root in [w for w in rooms.watched if w.is_root]:
            model = root.module()
            if model is None or not self._trees[root].changed(model):
                continue
            added = add_modules(rooms.by_id, root.model, model)
            mark_selected(added, self._select, must_match=False)
            for watched in added:
                watched.late = late
            rooms.watched.extend(added)
            self._run.info.modules += len(added)

    # -- what is left ---------------------------------------------------------------------------

    def flush(self) -> None:
        """Take in what was seen so far, in the middle of a step."""
        with aside():  # what we compute is no call of the user's
            self._rooms.modules.drop_raised()
            self._rooms.steps.settle()
            self.drain()
            self.note_unobserved()

    def drain(self, *, wait: bool = True) -> None:
        """Write down what was seen, as far as the device has sent it, and tell who listens."""
        recorder, step = self._rooms.recorder, self._rooms.clock.last
        info = self._run.info
        try:
            lost = recorder.drain(wait=wait)
        except Exception as error:
            recorder.forget()
            lost = [f"rows up to step {step} were lost: {error!r}"]
        except BaseException as error:  # Ctrl-C: what still waits can be taken in later
            info.notices.append(f"rows of step {step} may be missing: {error!r}")
            raise
        info.notices += lost
        for each in lost:
            notify(f"probe_nb: {each}")
        info.steps = self._rooms.clock.steps
        self._drained_at = time.monotonic()
        if self.listeners:
            self.note_unobserved()
        for listener in tuple(self.listeners):
            self.tell(listener)

    def tell(self, listener: Callable[[], None]) -> None:
        """Call a listener; one that fails is not called again and stops nobody."""
        try:
            listener()
        except Exception as error:
            if listener in self.listeners:
                self.listeners.remove(listener)
            notify(f"A live view was switched off: {error}")

    def note_structure(self) -> None:
        """Write into the run what the models are made of."""
        info = self._run.info
        info.tree = structure.tree(self._rooms.watched, info.tree)

    def note_unobserved(self) -> None:
        """Write into the run what could not be looked at."""
        info = self._run.info
        unread = (*self._rooms.modules.unread.copy(), *self._rooms.steps.unread)
        info.notices += [text for text in unread if text not in info.notices]
        info.unobserved = self._rooms.coverage.unobserved()

    def note_watched_again(self) -> None:
        """Let nothing look unused of which another watch sees the calls."""
        info = self._run.info
        if not any(watched.called for watched in self._rooms.watched):
            info.unobserved = [
                each | {"reason": reasons.AGAIN} if each["reason"] == reasons.NEVER else each
                for each in info.unobserved
            ]
