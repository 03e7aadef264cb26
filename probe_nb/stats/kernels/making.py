"""Threads that make a kernel ready while the caller goes on without it.

The interpreter does not end under them. A thread that comes back out of a compiler's C++ into an
interpreter that is gone is unwound there, and takes the process with it.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import Final

PATIENCE: Final = 5.0
"""How long the end of a process waits for such a thread, in seconds."""


def begin(work: Callable[[], None], stop: Callable[[], None]) -> threading.Thread | None:
    """Have a thread do some work; return it, or None if there can be none.

    Args:
        work: what it does; raises nothing.
        stop: called when the process ends, before it waits for the thread: cuts the work short.
    """
    thread = threading.Thread(target=work, name="probe_nb-kernel", daemon=True)

    def end() -> None:
        stop()
        thread.join(PATIENCE)

    try:
        thread.start()
    except RuntimeError:  # no more threads, or the interpreter is about to end
        return None
    atexit.register(end)
    return thread
