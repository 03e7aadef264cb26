"""`stop_on="nonfinite"`: a watch that ends where the first NaN or Inf is born.

It stands between what sees tensors and what records them. Each tensor is waited for, its numbers
are read, and where they are a birth an exception goes the way that a fault of the user's would.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final, Protocol

from torch import Tensor

from probe_nb.analysis.births import Birth
from probe_nb.analysis.calls import NEEDED
from probe_nb.analysis.origins import Origins, origin
from probe_nb.errors import NonFiniteError
from probe_nb.observe.calls import Call
from probe_nb.observe.select import Watched
from probe_nb.observe.sink import Facts, Sink, Where
from probe_nb.places import own_lines
from probe_nb.run import Run
from probe_nb.terms import Status

_KEPT: Final = "The run up to here is `error.run`, and this is `error.origin`."

_INSIDE: Final = 'The forward of this module has returned; `level="mix"` stops at the line in it.'

_NO_MORE: Final = "the watch does not stop at NaN or Inf any more"


def _hide(frame: FrameType | None) -> None:
    """Have IPython leave out our frames around this one: what failed is in the user's."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("probe_nb"):
        frame.f_locals["__tracebackhide__"] = True
        frame = frame.f_back


class Recording(Sink, Protocol):
    """What takes tensors and can be asked for their numbers."""

    @property
    def waiting(self) -> int:
        """Number of rows that wait for the drain."""

    def drain(self, *, wait: bool = True) -> list[str]:
        """Write down the rows whose numbers are there."""

    def forget(self) -> None:
        """Drop what waits."""


class Stopper:
    """Hands everything on, and raises where the first NaN or Inf was born."""

    def __init__(
        self, recording: Recording, run: Run, closes: Callable[[str], None], *, outputs: bool
    ) -> None:
        """Look at the rows of `run`; `closes` ends the session with a reason.

        `outputs` says that outputs are recorded: then NaN that a model was fed with can be seen to
        do no harm, and is waited for.
        """
        self._recording = recording
        self._run = run
        self._closes = closes
        self._origins = Origins(run.columns, waits=outputs)
        self._read = 0
        self._error: NonFiniteError | None = None
        self._over = False
        self._lost: list[str] = []
        self._lock = threading.RLock()

    # -- the Sink -------------------------------------------------------------------------------

    def tensor(
        self,
        call: Call,
        where: Where,
        t: Tensor,
        backward: int = -1,
        scale: Tensor | None = None,
    ) -> None:
        """Have a tensor recorded, and look at its numbers.

        Raises:
            NonFiniteError: They are the birth of a NaN or Inf. `fault` lets it through.
        """
        self._recording.tensor(call, where, t, backward, scale)
        if self._over:
            return
        try:
            born = self._born()
            stopped = None if born is None else self._stopped(born)
        except Exception as error:  # a fault of ours is never the user's
            self._over = True
            self._recording.fault(call.watched, "to stop at NaN", error)
            self._run.info.notices.append(f"{_NO_MORE} from step {call.step} on: {error!r}")
            return
        if stopped is not None:
            raise stopped

    def absent(
        self, call: Call, where: Where, facts: Facts, status: Status, backward: int = -1
    ) -> None:
        """Hand on a tensor whose numbers cannot be had."""
        self._recording.absent(call, where, facts, status, backward)

    def fault(self, watched: Watched | None, where: str, error: Exception) -> None:
        """Hand on an error of our own; what was raised on purpose is none."""
        if isinstance(error, NonFiniteError):
            _hide(sys._getframe())  # noqa: SLF001 - there is no other way to the frames
            raise error.with_traceback(None)
        self._recording.fault(watched, where, error)

    # -- the session ----------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Number of rows that wait for the drain."""
        return self._recording.waiting

    def drain(self, *, wait: bool = True) -> list[str]:
        """Write down the rows whose numbers are there; return what was lost since, in words."""
        self._lost += self._recording.drain(wait=wait)
        lost, self._lost = self._lost, []
        return lost

    def forget(self) -> None:
        """Drop what waits."""
        self._recording.forget()

    def rest(self) -> None:
        """Raise nothing any more: the watch ends."""
        self._over = True

    def complete(self, error: BaseException) -> None:
        """Give an error that another thread has made anew what it carried when it was raised."""
        if isinstance(error, NonFiniteError) and error.run is None and self._error is not None:
            error.run, error.origin = self._run, self._error.origin

    # -- the search -----------------------------------------------------------------------------

    def _born(self) -> Birth | None:
        """Take in what is new; return the birth to one caller only."""
        with self._lock:
            if self._over:
                return None
            self._lost += self._recording.drain()
            for first, block in self._run.columns.chunks(self._read, NEEDED):
                self._origins.add(block, first)
                self._read = first + len(block["step"])
            born = self._origins.birth
            self._over = born is not None
            return born

    def _stopped(self, born: Birth) -> NonFiniteError:
        """Close the session and return what is to be raised."""
        found = origin(self._run.columns, born, self._run.info)
        lines = found.lines()
        if place := own_lines():
            lines.insert(1, f"  your code: {place}")
        if (born.phase, born.why, born.at.api) == ("forward", "own", ""):
            lines.append(f"  {_INSIDE}")
        self._error = NonFiniteError("\n".join([*lines, f"  {_KEPT}"]), found, self._run)
        self._closes(f"NonFiniteError: {found.sentence}")
        return self._error
