"""The inspector: a widget over a run. The kernel sends numbers, the browser does the rest.

Nothing is asked of the kernel while a cell runs (whether such questions are answered then depends
on the kernel and the front end): sorting, filtering and selecting happen in the browser. Of a run
that has ended the front end may ask for more: `{"ask": "history"}` is answered by the trait
`history`, `{"ask": "picture", "row": 3, "step": 7}` by `picture`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import anywidget
import traitlets

from probe_nb.errors import ProbeError
from probe_nb.view import BUNDLE, compare, html, moments, text
from probe_nb.view.frame import FrameBuilder
from probe_nb.view.wire import compact

if TYPE_CHECKING:
    from probe_nb.run import Run
    from probe_nb.view.against import Against
    from probe_nb.view.comparing import Comparing

WIDGET_VIEW: Final = "application/vnd.jupyter.widget-view+json"

SELDOM: Final = 4
"""An open run sends its trend once in so many updates: in a second."""


def _source() -> str:
    try:
        return BUNDLE.read_text(encoding="utf-8")
    except OSError as error:
        raise ProbeError(
            f"The inspector's front end `{BUNDLE}` is missing; it is built when probe_nb is "
            "installed. In a checkout, build it with: make dev"
        ) from error


class Source(Protocol):
    """What an inspector shows."""

    def update(self) -> tuple[str | None, str, bytes]:
        """Read what is new; return the sites if they changed, the status and the frame."""
        ...

    def sites(self) -> str:
        """Return what each row is."""
        ...


class Shown(anywidget.AnyWidget):
    """A table of sites, live while somebody calls `refresh`.

    Attributes:
        sites, status: JSON texts, see `probe_nb.view.frame` and `probe_nb.view.comparing`.
        frame: The numbers, as bytes: JSON has no NaN. See `probe_nb.view.wire`.
        history: Earlier moments, once they were asked for.
        picture: A kept tensor, once it was asked for.
        refused: JSON; of each question that could not be answered the reason.
        key: A word of its own: a front end hands out one widget in several objects.
    """

    _esm = _source()
    sites = traitlets.Unicode().tag(sync=True)
    status = traitlets.Unicode().tag(sync=True)
    frame = traitlets.Bytes().tag(sync=True)
    history = traitlets.Bytes().tag(sync=True)
    picture = traitlets.Bytes().tag(sync=True)
    refused = traitlets.Unicode().tag(sync=True)
    key = traitlets.Unicode().tag(sync=True)

    def __init__(self, source: Source, **more: Any) -> None:
        """Show what `source` has now, and what only one kind of it has."""
        self._source = source
        self._refused: dict[str, str] = {}
        self._answers: dict[str, Callable[[dict[str, Any]], None]] = {}
        _, status, frame = source.update()
        key = secrets.token_hex(8)
        super().__init__(sites=source.sites(), status=status, frame=frame, key=key, **more)
        self.on_msg(self._asked)

    def _asked(self, _: Any, question: Any, __: Any) -> None:
        """Answer the front end; where that fails it is told why, and nobody else."""
        name = question.get("ask") if isinstance(question, dict) else None
        if name not in self._answers:
            return
        try:
            self._answers[name](question)
            self._refused.pop(name, None)
        except Exception as error:
            self._refused[name] = f"{type(error).__name__}: {error}"
        self.refused = compact(self._refused) if self._refused else ""

    def refresh(self) -> None:
        """Send what is new, in one message."""
        sites, status, frame = self._source.update()
        with self.hold_sync():
            if sites is not None:
                self.sites = sites
            self.status = status
            self.frame = frame

    def _plain(self) -> tuple[str, str]:
        """Return what readers without widgets see, as HTML and as text."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Say what is shown."""
        return self._plain()[1]

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """Return the widget, with the table and the text for readers that have no widgets."""
        found: Any = super()._repr_mimebundle_(**kwargs)
        data = dict(found[0] if isinstance(found, tuple) else found or {})
        data["text/html"], data["text/plain"] = self._plain()
        return data


class Inspector(Shown):
    """A table of every site of a run.

    Attributes:
        trend: The largest magnitude in the last steps, as bytes; as large as all the rest, and
            therefore sent less often.
    """

    trend = traitlets.Bytes().tag(sync=True)

    def __init__(self, run: Run, builder: FrameBuilder | None = None) -> None:
        """Show `run` as it is now; `builder` may have read some of it already."""
        run.flush()
        self._builder = builder or FrameBuilder(run.columns, run.info, live=True, beside=run)
        self._builder.tally.read()
        self._updates = 0
        super().__init__(self._builder, trend=self._builder.trend())
        self._answers["picture"] = self._draw
        self._answers["history"] = self._remember

    def refresh(self) -> None:
        """Send what is new, in one message; the trend now and then, and at the end."""
        with self.hold_sync():
            super().refresh()
            self._updates += 1
            if self._updates % SELDOM == 0 or self._builder.info.ended != "open":
                self.trend = self._builder.trend()

    def _plain(self) -> tuple[str, str]:
        return html.static(self._builder), text.lines_of(self._builder)

    def _remember(self, _: dict[str, Any]) -> None:
        """Send what was shown at the end of earlier steps."""
        self.history = self.history or moments.whole(self._builder)

    def _draw(self, question: dict[str, Any]) -> None:
        """Send the picture of a row's kept tensor, or why there is none."""
        self.picture = self._builder.picture(int(question["row"]), question.get("step"))


class ComparisonInspector(Shown):
    """A table of what two runs have in common, and of what only one has."""

    def __init__(self, frames: Comparing | Against) -> None:
        """Show a comparison, or one that goes on."""
        self._frames = frames
        super().__init__(frames)

    def _plain(self) -> tuple[str, str]:
        of = self._frames.comparison
        return compare.html(of), compare.text(of)
