"""A session whose steps end with an optimizer's: the hook that says so, and nothing else."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from probe_nb.doors import start
from probe_nb.errors import notify
from probe_nb.run import Run
from probe_nb.session import sessions, stop

_NO_END: Final = 2**30
"""Forwards in a step: it ends where the monitor says so, and nowhere else."""


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
        self.run: Run = start(model, live=False, micro_batches=_NO_END, **options)
        self._stepped = stepped
        self._optimizer = None if optimizer is None else weakref.ref(optimizer)
        self._hook = None
        if optimizer is not None:
            self._hook = register_optimizer_step_post_hook(self._after)
        for session in sessions():
            if session.run is self.run:
                session.closers.append(self._let_go)

    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        """Run after the step of any optimizer in the process, and after the session's own hooks."""
        if self._optimizer is None or self._optimizer() is not optimizer:
            return
        try:
            self._stepped()
        except Exception as error:  # a fault of ours is never the user's
            notify(f"probe_nb: the monitor could not write a step: {error!r}")

    def _let_go(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def close(self) -> None:
        """End the session; may be repeated."""
        stop(self.run)
        self._let_go()
