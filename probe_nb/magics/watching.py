"""A watch that magics opened: its session, the view that shows it, and how a line makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from IPython.core.error import UsageError

from probe_nb import config
from probe_nb.comparison import against
from probe_nb.errors import ProbeError
from probe_nb.magics.line import as_typed, evaluate, evaluate_models
from probe_nb.observe.select import as_models
from probe_nb.run import Run
from probe_nb.session import Session

if TYPE_CHECKING:
    from probe_nb.view.live import LiveView

_LISTED: Final = ("apis", "select", "roles", "keep", "names")
"""Options that may be given several times; their words are joined with commas."""
_PLAIN: Final = (
    *("level", "steps", "token_range", "first_step", "micro_batches", "compiled", "recompute"),
    *("stop_on", "scope", "when", "ranks", "forward_only", "backward_only", "slices"),
    *("stacks", "structure", "values", "checksum", "memory", "name"),
)
"""Options whose values `config.checked` takes as they were typed."""


@dataclass
class Watching:
    """An open session and the view that shows it, if any."""

    session: Session
    view: LiveView | None

    @property
    def run(self) -> Run:
        """What the session has recorded."""
        return self.session.run

    def end(self, error: BaseException | None = None, *, reason: str = "finished") -> None:
        """Close the session, then let the view show what is left of it."""
        try:
            if error is None:
                self.session.close(reason)
            else:
                self.session.close_after(error)
        finally:
            if self.view is not None:
                self.view.close()

    def refresh(self) -> None:
        """Show the newest numbers now."""
        if self.view is not None:
            self.view.update(force=True)


def prepared(asked: Any, scope: dict[str, Any]) -> Session:
    """Make the session that a line asks for; nothing is opened yet.

    Raises:
        UsageError: An expression or an option makes no sense.
    """
    __tracebackhide__ = True
    model = evaluate_models(asked.model, scope) if asked.model else None
    optimizers = [evaluate(each, scope) for each in asked.optimizer or ()] or None
    scaler = evaluate(asked.scaler, scope) if asked.scaler else None
    values = {name: getattr(asked, name) for name in _PLAIN}
    values |= {name: _joined(getattr(asked, name)) for name in _LISTED}
    try:
        options = config.checked(**values)
        models = as_models(model, {}) if asked.model else {}
        return Session(models, options, optimizers, scaler)
    except ProbeError as error:
        raise UsageError(as_typed(" ".join(str(error).split()))) from None


def opened(
    session: Session,
    *,
    live: bool,
    final: Literal["report", "line"],
    restarted: Callable[[Session], None],
    baseline: Run | None = None,
) -> Watching:
    """Attach a session and show it, where there is a notebook to show it in.

    Args:
        session: As `prepared` made it.
        live: Whether a live view is wanted.
        final: What takes its place in the end.
        restarted: Is told of each session that ended for this one.
        baseline: What the view compares with.
    """
    from probe_nb.view.live import LiveView, wanted

    view = None
    if wanted(live=None if live else False):
        compared = None if baseline is None else against(baseline, session.run)
        view = LiveView(session.run, final=final, compared=compared)
    session.kept_as = "%probe"
    session.open(restarted=restarted)
    try:
        if view is not None:
            view.open()
            session.listeners.append(view.update)
    except BaseException:
        session.refuse()
        raise
    return Watching(session, view)


def _joined(words: list[str] | None) -> str | None:
    return None if words is None else ",".join(words)
