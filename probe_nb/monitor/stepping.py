"""A session whose steps end with an optimizer's: the hook that says so, and nothing else."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from probe_nb.doors import start
from probe_nb.errors import notify
from probe_nb.run import Run
from probe_nb.session import sessions, stop

_NO_END: Final = 2**30
"""Forwards in a step: it ends where the monitor says so, and nowhere else."""


ROWS: Final = 2_000_000
"""So many rows of a run, about 400 MB, are kept: then another begins. All are written by then."""


class Recorded:
    """An open run, of which `stepped` is told after each step of an optimizer."""

    def __init__(
        self,
        model: Any,
        optimizer: Optimizer | None,
        stepped: Callable[[], None],
        **options: Any,
    ) -> None:
        """Open a session; what `start` raises is raised."""
        if optimizer is not None:
            options["optimizer"] = optimizer
        self._model, self._options = model, options
        self._stepped = stepped
        self._optimizer = None if optimizer is None else weakref.ref(optimizer)
        self._hook: RemovableHandle | None = None
        self._lost = 0
        self.run: Run = self._begin()

    def _begin(self, **options: Any) -> Run:
        options = {**self._options, **options}
        run = start(self._model, live=False, micro_batches=_NO_END, **options)
        if self._optimizer is not None:
            self._hook = register_optimizer_step_post_hook(self._after)
        for session in sessions():
            if session.run is run:
                session.closers.append(self._let_go)
        return run

    def next_step(self, number: int) -> None:
        """End the step; the next has this number. A run that has become long is left behind."""
        self.run.step()
        if len(self.run.columns) > ROWS:
            self.close()
            self.run = self._begin(first_step=number)

    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        """Run after the step of any optimizer in the process, and after the session's own hooks."""
        if self._optimizer is None or self._optimizer() is not optimizer:
            return
        try:
            self._stepped()
        except Exception as error:  # a fault of ours is never the user's
            self._lost += 1
            if self._lost == 1:
                notify(
                    f"probe_nb: the monitor could not write a step: {error!r}. It goes on, and "
                    "says at the end how many it could not."
                )

    def _let_go(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def close(self) -> None:
        """End the session; may be repeated."""
        stop(self.run)
        self._let_go()
        lost, self._lost = self._lost, 0
        if lost > 1:
            notify(f"probe_nb: the monitor could not write {lost:,} steps.")
