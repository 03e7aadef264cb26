"""The inspector while the session is open, and what stays of it afterwards.

A fault in here must not touch the training: whatever goes wrong is said in one warning, and the
view stops. The user's own exceptions pass, because nothing here stands around the user's code.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

from probe_nb.errors import ProbeError, ProbeWarning
from probe_nb.view import html, report, text
from probe_nb.view.against import Against
from probe_nb.view.frame import FrameBuilder

if TYPE_CHECKING:
    from probe_nb.comparison import Comparison
    from probe_nb.run import Run

PERIOD: Final = 0.25
"""Seconds between two frames: what happens between them is in the next one."""

REFRESH: Final = 30.0
"""Seconds after which the display's plain HTML is written anew, for a kernel that may die."""


class Shown:
    """A MIME bundle as an object that can be displayed."""

    def __init__(self, data: dict[str, Any]) -> None:
        """Hold a bundle."""
        self._data = data

    def __repr__(self) -> str:
        """Return the text of the bundle."""
        return str(self._data.get("text/plain", ""))

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        return self._data


class OfRun:
    """What a live view shows of a run."""

    def __init__(self, run: Run) -> None:
        """Show this run."""
        self._run = run
        self.builder = FrameBuilder(run.columns, run.info, live=True, beside=run)

    def widget(self) -> Any:
        """Return the inspector."""
        from probe_nb.view.inspector import Inspector

        return Inspector(self._run, self.builder)

    def update(self) -> None:
        """Read what is new."""
        self.builder.update()

    def finish(self) -> None:
        """Read the rest, and hand over what was read: who asks the run now need not read again."""
        self.builder.update()
        self._run.readers[:] = [self.builder]

    def line(self) -> dict[str, Any]:
        """Return the headline alone."""
        return report.line(self.builder)

    def now(self) -> dict[str, Any]:
        """Return what readers without widgets see meanwhile."""
        return {"text/html": html.headline(self.builder), "text/plain": text.lines_of(self.builder)}

    def bundle(self) -> dict[str, Any]:
        """Return the report."""
        return report.bundle_of(self.builder)


class LiveView:
    """Shows a run while it grows: `open` once, `update` after every drain, `close` at the end.

    None of the three raises an exception of ours.

    Args:
        run: What to show.
        final: What the display turns into: the whole `report`, or one `line`.
        clock: Seconds.
        display: Displays an object under a display id and returns its handle. None: IPython's in a
            notebook; elsewhere nothing is displayed before the end.
        compared: Compares the run with a baseline; then that is shown.
    """

    def __init__(
        self,
        run: Run,
        *,
        final: Literal["report", "line"] = "report",
        clock: Callable[[], float] = time.monotonic,
        display: Callable[..., Any] | None = None,
        compared: Callable[[], Comparison] | None = None,
    ) -> None:
        self._run = run
        self._compared = compared
        self._final = final
        self._clock = clock
        self._display = display
        self._widget: Any = None
        self._handle: Any = None
        self._shows: OfRun | Against = OfRun(run)
        self._off = self._closed = False
        self._lock = threading.Lock()
        self._frame_at = self._refresh_at = 0.0

    def open(self) -> None:
        """Display the inspector; without widgets, one line that says that a watch is open."""
        self._guarded(self._open)

    def update(self, *, force: bool = False) -> None:
        """Send a frame if the last one is long enough ago; `force` sends it anyway."""
        if self._off or self._handle is None:
            return
        if not force and self._clock() - self._frame_at < PERIOD:
            return
        self._guarded(self._update, wait=5.0 if force else 0)

    def close(self) -> None:
        """Send the last frame and put the report, or its one line, in the place of the view."""
        if not self._closed:
            self._guarded(self._close)
        self._off = self._closed = True

    def _open(self) -> None:
        if self._display is None and not in_kernel():
            return
        if self._compared is not None:
            self._shows = Against(self._run, self._compared)
        self._widget = _inspector(self._shows)
        self._frame_at = self._refresh_at = self._clock()
        show = self._display or _display
        self._handle = show(self._widget or self._line(), display_id=True)

    def _update(self) -> None:
        now = self._clock()
        if now - self._refresh_at >= REFRESH:
            self._refresh_at = self._frame_at = now
            self._handle.update(self._widget or self._line())
        elif self._widget is not None:
            self._widget.refresh()
            self._frame_at = self._clock()

    def _close(self) -> None:
        shows = self._shows
        if self._widget is not None and not self._off:
            self._widget.refresh()
        shows.finish()
        data = shows.bundle() if self._final == "report" else shows.line()
        if self._handle is not None:
            self._handle.update(Shown(data))
        elif self._final == "report":
            _display(Shown(data))
        if self._widget is not None:
            self._widget.close()

    def _line(self) -> Shown:
        self._shows.update()
        return Shown(self._shows.now())

    def _guarded(self, action: Callable[[], None], wait: float = 5.0) -> None:
        """Run one of our own actions, after any that another thread is at.

        A fault turns the view off, with one warning.
        """
        if not self._lock.acquire(timeout=wait):
            return
        try:
            action()
        except Exception as error:
            once, self._off = not self._off, True
            if once:
                _warn(f"The live view is off: {type(error).__name__}: {error}. The run goes on.")
        finally:
            self._lock.release()


def wanted(live: bool | None) -> bool:  # noqa: FBT001 - the value of the public option
    """Tell whether to show a live view; None: wherever a notebook front end listens."""
    return in_kernel() if live is None else live


def in_kernel() -> bool:
    """Tell whether this is a notebook kernel, and not a terminal or a script."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None


def _display(shown: object, **options: Any) -> Any:
    from IPython.display import display

    return display(shown, **options)  # type: ignore[no-untyped-call]


def _inspector(shows: OfRun | Against) -> Any:
    """Return the widget, or None where widgets are not installed or not built."""
    try:
        return shows.widget()
    except (ImportError, ProbeError) as error:
        _warn(f"The live inspector is not available, a plain table takes its place: {error}")
        return None


def _warn(message: str) -> None:
    """Warn, even where warnings are errors: ours must not end the user's training."""
    with contextlib.suppress(ProbeWarning):
        warnings.warn(message, ProbeWarning, stacklevel=2)
