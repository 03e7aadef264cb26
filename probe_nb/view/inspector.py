"""The inspector: a widget over a run. The kernel sends numbers, the browser does the rest.

Nothing is asked of the kernel while a cell runs (whether such questions are answered then depends
on the kernel and the front end): sorting, filtering and selecting happen in the browser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import anywidget
import traitlets

from probe_nb.errors import ProbeError
from probe_nb.view import BUNDLE, html, text
from probe_nb.view.frame import FrameBuilder

if TYPE_CHECKING:
    from probe_nb.run import Run

WIDGET_VIEW: Final = "application/vnd.jupyter.widget-view+json"


def _source() -> str:
    try:
        return BUNDLE.read_text(encoding="utf-8")
    except OSError as error:
        raise ProbeError(
            f"The inspector's front end `{BUNDLE}` is missing; it is built when probe_nb is "
            "installed. In a checkout, build it with: make dev"
        ) from error


class Inspector(anywidget.AnyWidget):
    """A table of every site of a run, live while somebody calls `refresh`.

    Attributes:
        sites, status: JSON texts, see `probe_nb.view.frame`.
        frame: The numbers, as bytes: JSON has no NaN.
    """

    _esm = _source()
    sites = traitlets.Unicode().tag(sync=True)
    status = traitlets.Unicode().tag(sync=True)
    frame = traitlets.Bytes().tag(sync=True)

    def __init__(self, run: Run, builder: FrameBuilder | None = None) -> None:
        """Show `run` as it is now; `builder` may have read some of it already."""
        run.flush()
        self._builder = builder or FrameBuilder(run.columns, run.info, live=True)
        _, status, frame = self._builder.update()
        super().__init__(sites=self._builder.sites(), status=status, frame=frame)

    def refresh(self) -> None:
        """Send what is new, in one message."""
        sites, status, frame = self._builder.update()
        with self.hold_sync():
            if sites is not None:
                self.sites = sites
            self.status = status
            self.frame = frame

    def __repr__(self) -> str:
        """Say what is shown."""
        return text.lines_of(self._builder)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """Return the widget, with the table and the text for readers that have no widgets."""
        found: Any = super()._repr_mimebundle_(**kwargs)
        data = dict(found[0] if isinstance(found, tuple) else found or {})
        data["text/html"] = html.static(self._builder)
        data["text/plain"] = text.lines_of(self._builder)
        return data
