"""How far something long is: a bar that comes after a second, and leaves nothing behind.

It is there for somebody who waits: in a notebook, or in a terminal. Elsewhere, and where
`TQDM_DISABLE` is set, nothing is shown; nor is anything ever raised.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

Told = Callable[[float], object]
"""Takes how much more was done."""

T = TypeVar("T")

_DELAY: Final = 1.0
"""Seconds after which there is something to wait for."""


def silent(_: float, /) -> None:
    """Show nothing."""


@contextlib.contextmanager
def progress(what: str, total: float | None = None, unit: str = "") -> Iterator[Told]:
    """Show how far something is, for as long as the block runs.

    Args:
        what: What is done, as `Loading`.
        total: How much there is to do; None where nobody knows.
        unit: What is counted, as `B`; large numbers are told in thousands.
    """
    bar = _Bar(what, total, unit)
    try:
        yield bar.more
    finally:
        bar.close()


def along(values: Iterable[T], what: str, total: int) -> Iterator[T]:
    """Yield values, and show how far it is."""
    with progress(what, total) as told:
        for value in values:
            yield value
            told(1)


class _Bar:
    """A bar of tqdm's that is made when it is time for one."""

    def __init__(self, what: str, total: float | None, unit: str) -> None:
        self._options = {"desc": what, "total": total, "unit": unit or "it"}
        self._options |= {"unit_scale": bool(unit), "leave": False, "disable": False}
        self._began = time.time()
        self._done: float = 0
        self._due = time.monotonic() + _DELAY
        self._bar: Any = None
        self._display: Any = None

    def more(self, done: float) -> None:
        """Take how much more was done."""
        self._done += done
        if time.monotonic() < self._due:
            return
        try:
            if self._bar is None:
                self._open()
            if self._bar is not None:
                self._bar.update(self._done - self._bar.n)
        except Exception:  # whoever waits gets what they wait for, with a bar or without
            self._due = float("inf")

    def _open(self) -> None:
        notebook = _in_notebook()
        kind = None if _unwanted() else _kind(notebook=notebook)
        if kind is None:
            self._due = float("inf")
            return
        # what is shown while it is made could not be taken away if that is interrupted
        self._bar = kind(**self._options, **({"display": False} if notebook else {"delay": 1e-9}))
        self._bar.start_t = self._bar.last_print_t = self._began
        if notebook:
            from IPython.display import DisplayHandle

            self._display = DisplayHandle()  # type: ignore[no-untyped-call, unused-ignore]
            self._display.display(self._bar.container)

    def close(self) -> None:
        """Take the bar away, whatever became of what it told of."""
        bar, self._bar, self._due = self._bar, None, float("inf")
        if bar is None:
            return
        with contextlib.suppress(Exception):
            bar.close()
        with contextlib.suppress(Exception):
            if self._display is None:
                _back()
            else:
                bar.container.close()  # tqdm leaves that of what failed
                self._display.update({"text/plain": ""}, raw=True)


def _back() -> None:
    """Put the cursor of the terminal where the line begins: tqdm does not, below another bar.

    Nor does it take away what it was about to write when it was interrupted.
    """
    broken = sys.exc_info()[0] is not None
    blank = " " * (shutil.get_terminal_size().columns - 1) if broken else ""
    sys.stderr.write(f"\r{blank}\r")
    sys.stderr.flush()


def _unwanted() -> bool:
    """Tell whether the user wants no bars; tqdm itself asks once, when it is imported."""
    return os.environ.get("TQDM_DISABLE", "").lower() not in {"", "0", "false"}


def _in_notebook() -> bool:
    """Tell whether this process is the kernel of a front end."""
    room = sys.modules.get("IPython")
    shell = None if room is None else room.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


def _kind(*, notebook: bool) -> Any:
    """Return the class of bar that can be seen here; `tqdm.auto` would warn where none can."""
    if notebook:
        from tqdm import notebook as found

        shown = found.IProgress is not None
    else:
        from tqdm import std as found

        shown = sys.stderr is not None and sys.stderr.isatty()
    # its thread, which looks after bars that nobody moves, would stay for ever
    return type("Bar", (found.tqdm,), {"monitor_interval": 0}) if shown else None
