"""`find_random`: which calls draw random numbers, and at which of the user's lines."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from probe_nb.errors import SessionStateError, notify
from probe_nb.reproduce import frames
from probe_nb.reproduce.frames import Line

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = [
    *("api_name", "library", "generator", "count"),
    *("cell", "file", "line", "function", "code", "stack"),
]


class Draw(NamedTuple):
    """A call that drew, and the frame that made it."""

    api_name: str
    library: str
    generator: str
    frame: FrameType | None


Seen = Callable[[Callable[[], Draw | None]], None]
"""Is given what tells of a call: whatever goes wrong while it does is our fault."""


@dataclass
class Call:
    """One function that draws at one line, and how often."""

    api_name: str
    library: str
    """torch, numpy or python."""
    generator: str
    """Whose numbers: `global`, `own` (of an object that somebody made), `system`, or `unknown`."""
    lines: list[Line]
    """The user's lines that led there the first time, innermost first."""
    count: int = 0

    def row(self) -> dict[str, Any]:
        """Return the call as a row of the table."""
        at = self.lines[0] if self.lines else None
        return {
            "api_name": self.api_name,
            "library": self.library,
            "generator": self.generator,
            "count": self.count,
            "cell": at and at.cell,
            "file": at and at.file,
            "line": at and at.line,
            "function": at and at.function,
            "code": at and at.code,
            "stack": "\n".join(map(str, self.lines)),
        }


class RandomCalls:
    """The random calls of a `with probe.find_random() as found:` block.

    `found.df` has a row for each function and line, in the order in which they were first called;
    `found.notes` says what could not be seen.
    """

    def __init__(self, told: Callable[[Call, FrameType | None], None] | None = None) -> None:
        self._calls: dict[tuple[Any, ...], Call] = {}
        self._told = told
        self._attached: ExitStack | None = None
        self._failed = False
        self.notes: tuple[str, ...] = ()

    def __enter__(self) -> RandomCalls:  # noqa: PYI034 - `Self` is of Python 3.11
        """Begin to look."""
        self.start()
        return self

    def start(self) -> None:
        """Begin to look; for scripts and cells of a notebook. `stop()` ends it."""
        from probe_nb.reproduce.looking import attach

        if self._attached is not None:
            raise SessionStateError("This block is open; ask `find_random()` for another one.")
        with ExitStack() as attaching:
            self.notes += attach(attaching, self.seen)
            self._moved = _positions()
            self._attached = attaching.pop_all()

    def __exit__(self, *exception: object) -> None:
        """Stop looking."""
        self.stop()

    def stop(self) -> None:
        """Stop looking, and give back what it took; again is no error."""
        attached, self._attached = self._attached, None
        if attached is None:
            return
        self.notes += self._unseen()
        attached.close()

    def seen(self, draw: Callable[[], Draw | None]) -> None:
        """Count a call if it drew; a fault in here is ours, said once, and never the user's."""
        if self._attached is None:
            return
        try:
            drawn = draw()
            if drawn is not None:
                self._count(drawn)
        except Exception as fault:
            if not self._failed:
                self._failed = True
                self.notes += (f"Some calls are missing: {type(fault).__name__}: {fault}",)
                notify(f"A random call could not be listed ({type(fault).__name__}: {fault}).")

    def _count(self, drawn: Draw) -> None:
        at = frames.nearest(drawn.frame)
        place = at and (at.f_code.co_filename, at.f_lineno, at.f_code.co_name)
        key = (drawn.api_name, drawn.generator, place)
        call = self._calls.get(key)
        if call is None:
            lines = frames.users_lines(drawn.frame)
            call = Call(drawn.api_name, drawn.library, drawn.generator, lines)
            self._calls[key] = call
        call.count += 1
        if self._told is not None:
            self._told(call, drawn.frame)

    def _unseen(self) -> tuple[str, ...]:
        """Say which global generators were drawn from without any call that was seen."""
        after = _positions()
        listed = {each.library for each in self._calls.values() if each.generator == "global"}
        return tuple(
            f"Numbers of the global generator of {library} were drawn (or it was seeded) where "
            "nothing is seen: in another thread, or by a function that C code calls."
            for library, before in self._moved.items()
            if library not in listed and after.get(library) != before
        )

    @property
    def df(self) -> pd.DataFrame:
        """The calls as a table, one row for each function and line."""
        import pandas as pd

        rows = [each.row() for each in self._calls.values()]
        return pd.DataFrame(rows, columns=COLUMNS).astype({"cell": "Int64", "line": "Int64"})

    def __len__(self) -> int:
        return len(self._calls)

    def __repr__(self) -> str:
        total = sum(each.count for each in self._calls.values())
        head = f"{total} random calls, {len(self)} rows"
        rows = (f"  {c.count} x {c.api_name} <- {_short(c)}" for c in self._calls.values())
        return "\n".join([head, *rows, *(f"  note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        from html import escape

        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return self.df.drop(columns="stack").to_html() + notes


def _short(call: Call) -> str:
    return str(call.lines[0]) if call.lines else "no line of yours"


def find_random() -> RandomCalls:
    """List the random calls of a block: which function of torch, NumPy or Python, and where.

    Nothing is drawn and nothing is changed: results and random numbers are the same, bit for bit.
    Seen is the thread that opens the block.

    Returns:
        A context manager. `with probe.find_random() as found:` gives the calls: `found.df`.

    Cost: tens of microseconds for each operator of torch, a tenth of a millisecond for each call
    that draws, less than a microsecond for each other call in Python.

    >>> import random, torch, probe_nb as probe
    >>> dropout = torch.nn.Dropout()
    >>> with probe.find_random() as found:
    ...     _ = dropout(torch.ones(2)), random.random(), random.random()
    >>> found.df[["api_name", "count"]].values.tolist()
    [['torch.nn.functional.dropout', 1], ['random.random', 2]]
    """
    return RandomCalls()


def _positions() -> dict[str, Any]:
    """Return where the global generators of the three libraries are."""
    from probe_nb.devices import generators

    found: dict[str, Any] = {"python": random.getstate(), "torch": generators.positions()}
    room: Any = sys.modules.get("numpy.random")
    if room is not None:
        found["numpy"] = pickle.dumps(room.get_state(legacy=False))
    return found
