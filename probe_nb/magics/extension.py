"""What `%load_ext probe_nb` adds to a shell, and how it is taken away again.

A magic reads its line (`line`), opens or closes a `Session`, and shows what comes of it.
Only `load` and `unload` touch the shell, and the second gives back all that the first took.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

from IPython.core.error import UsageError
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from IPython.core.magic import (
    Magics,
    cell_magic,
    line_magic,
    magics_class,
    needs_local_scope,
    no_var_expand,
)
from IPython.display import display

from probe_nb import session
from probe_nb.comparison import Comparison
from probe_nb.errors import NonFiniteError, ProbeWarning
from probe_nb.magics import saving
from probe_nb.magics.cell import compiled
from probe_nb.magics.comparing import baseline, compared, takes_runs
from probe_nb.magics.completion import matcher
from probe_nb.magics.line import evaluate, parse, takes_model
from probe_nb.magics.saving import takes_value
from probe_nb.magics.watching import Watching, opened, prepared
from probe_nb.run import Run
from probe_nb.session import Session

_NOTHING = "Nothing is being watched; `%probe_start model` begins."
_LAST = "`run = %probe` gives the last run."
_EARLIER = "earlier"
"""The word behind `%probe` that asks for the run before."""


def load(shell: InteractiveShell) -> None:
    """Add the magics, their completion and the callback after each cell; twice is harmless."""
    if _loaded(shell) is None:
        ProbeMagics(shell).register()


def unload(shell: InteractiveShell) -> None:
    """Stop what the magics started and leave the shell as `load` found it."""
    magics = _loaded(shell)
    if magics is not None:
        magics.unregister()


def _loaded(shell: InteractiveShell) -> Any:
    return shell.magics_manager.registry.get(ProbeMagics.__name__)


@magics_class
class ProbeMagics(Magics):
    """What the extension adds to one shell, and the watch that it has opened there."""

    shell: Any  # an `InteractiveShell`, whose own annotations do not hold

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._watching: Watching | None = None
        self._last: Run | None = None
        self._before: Run | None = None
        self._said = False
        self._matcher = matcher(shell)
        self._replaced: list[Callable[[], object]] = []

    # -- the shell ------------------------------------------------------------------------------

    def register(self) -> None:
        """Take a place in the shell, and note what stood there."""
        manager = self.shell.magics_manager
        for kind, names in self.magics.items():
            table = manager.magics[kind]
            for name in names:
                self._replaced.append(_restorer(table, name))
        self._replaced.append(_restorer(manager.registry, type(self).__name__))
        manager.register(self)
        self.shell.Completer.custom_matchers.append(self._matcher)
        self.shell.events.register("post_run_cell", self._after_cell)

    def unregister(self) -> None:
        """Stop the open watch and put back what stood there before."""
        self._stop_own("stopped")
        self.shell.events.unregister("post_run_cell", self._after_cell)
        self.shell.Completer.custom_matchers.remove(self._matcher)
        for restore in reversed(self._replaced):
            restore()
        self._replaced.clear()
        others = [each for each in self.shell.configurables if each is not self]
        self.shell.configurables[:] = others

    def _after_cell(self, result: ExecutionResult) -> None:
        """Bring the view up to date when a cell ends, and write down a cell that failed."""
        watching = self._own()
        if watching is None:
            return
        try:
            watching.run.flush()
            error = result.error_in_exec
            if error is not None and not isinstance(error, UsageError):
                watching.run.info.notices.append(_failed_cell(result, error, watching.run))
            watching.refresh()
        except Exception as fault:
            message = f"The live view was not brought up to date: {fault}"
            warnings.warn(message, ProbeWarning, stacklevel=1)

    # -- the watch --------------------------------------------------------------------------------

    def _own(self) -> Watching | None:
        """Return the watch that `%probe_start` opened, unless something else has closed it."""
        watching = self._watching
        if watching is not None and not watching.run.is_open:
            watching.end()
            self._watching = None
        return self._watching

    def _stop_own(self, reason: str) -> Run | None:
        watching = self._own()
        self._watching = None
        if watching is None:
            return None
        watching.end(reason=reason)
        return watching.run

    def _open(self, made: Session, asked: Any, final: Literal["report", "line"]) -> Watching:
        against = baseline(asked.baseline, _scope(self.shell))
        if against is not None:
            final = "report"  # the run itself is shown by `%probe_stop`
        watching = opened(
            made,
            live=not asked.no_live,
            final=final,
            restarted=self._say_restarted,
            baseline=against,
        )
        self._own()  # gives up the view of a session that was closed just now
        self._remember(made.run)
        return watching

    def _remember(self, run: Run) -> None:
        """Let `%probe` give a run, and `%probe earlier` the one before if it has anything."""
        if run is self._last:
            return
        if self._last is not None and (self._last.is_open or len(self._last.columns)):
            self._before = self._last
        self._last = run

    def _say_restarted(self, earlier: Session) -> None:
        text = f"Stopped watching {_title(earlier.run)}; a new watch begins."
        if earlier.run is self._last and len(earlier.run.columns):
            text += f" `run = %probe {_EARLIER}` gives the run that was stopped."
        _say(text)

    @line_magic
    @no_var_expand
    @needs_local_scope
    @takes_model("%probe_start")
    def probe_start(self, line: str, local_ns: dict[str, Any] | None = None) -> None:
        """Watch a model from here on, in this cell and in later ones.

        A live view appears under the cell; `%probe_stop` ends it and returns the run. Starting
        again stops the earlier watch first.

        Examples::

            %probe_start model --optimizer opt
            %probe_start gen, disc --optimizer opt_d --optimizer opt_g
            %probe_start models["a b"].net --select "layers.*" --roles output,grad_output
        """
        __tracebackhide__ = True
        asked = parse(type(self).probe_start, line)
        made = prepared(asked, _scope(self.shell, local_ns))
        earlier = self._own()
        if earlier is not None:
            self._stop_own(earlier.session.ended_by(made))
            self._say_restarted(earlier.session)
        self._watching = self._open(made, asked, "line")
        if self._watching.view is None:
            _say(f"Watching {_title(made.run)}; `%probe_stop` ends it.")

    @line_magic
    @no_var_expand
    def probe_stop(self, line: str) -> Run | None:
        """Stop watching and return the run, which displays as its report.

        `run = %probe_stop` keeps it. It stops what `%probe_start` opened, else the newest session
        that `probe.start` opened; where nothing is open it says so and does nothing. A run that
        `--stop-on` has ended is returned as well.
        """
        _no_argument("%probe_stop", line)
        run = self._stop_own("stopped")
        if run is None:  # not `or`: a run without records is false
            run = session.stop()
        if run is None:
            run = self._ended_by_nan()
        if run is None:
            _say(_NOTHING if self._last is None else f"{_NOTHING} {_LAST}")
            return None
        self._remember(run)
        return None if line.strip() else run

    def _ended_by_nan(self) -> Run | None:
        """Return the newest run if a NaN or Inf has ended it: nobody has been given it yet."""
        last = self._last
        ended = last is not None and last.info.ended.startswith(NonFiniteError.__name__)
        return last if ended else None

    @line_magic
    @no_var_expand
    def probe_step(self, line: str) -> None:
        """End the step; from then on steps end only where you say so.

        For loops that have no optimizer to tell: put it at the end of the loop's body.
        """
        _no_argument("%probe_step", line)
        if not session.sessions():
            raise UsageError(f"There is no step to end. {_NOTHING}")
        session.step()

    @line_magic
    @no_var_expand
    @needs_local_scope
    @takes_value("%probe_save")
    def probe_save(self, line: str, local_ns: dict[str, Any] | None = None) -> None:
        """Record a value in the open watch, under a name, as `probe.save` does.

        `run.frame(role="value")` has its tensors and their gradients, `run.values()` the rest.

        Examples::

            %probe_save loss
            %probe_save {"h": h, "mask": mask} --name attention --no-backward
        """
        __tracebackhide__ = True
        asked = saving.parse(type(self).probe_save, line)
        if not session.sessions():
            raise UsageError(f"There is no watch to record it. {_NOTHING}")
        value = evaluate(asked.value, _scope(self.shell, local_ns))
        session.save(value, asked.name, backward=not asked.no_backward)

    @line_magic
    @no_var_expand
    @needs_local_scope
    @takes_runs("%probe_compare")
    def probe_compare(self, line: str, local_ns: dict[str, Any] | None = None) -> Comparison | None:
        """Compare two runs and say where they part; `c = %probe_compare a b` keeps the comparison.

        Examples::

            %probe_compare gpu_run npu_run
            %probe_compare "runs/gpu.parquet" npu_run --tolerance tf32
            %probe_compare run --ranks 0,1
        """
        __tracebackhide__ = True
        scope = _scope(self.shell, local_ns)
        found = compared(type(self).probe_compare, line.removesuffix(";"), scope)
        return None if line.rstrip().endswith(";") else found

    @line_magic("probe")  # type: ignore[arg-type]
    @no_var_expand
    def status(self, line: str) -> Run | None:
        """Return the run that is being watched, or else the last one, to look at it.

        `%probe earlier` returns the run of the magics before that one: of a watch that was
        stopped because another began. It records no model by itself: `%probe_start model` watches
        from here on, `%%probe model` watches one cell.
        """
        asked = line.strip(" ;")
        if asked != _EARLIER:
            instead = "`%probe_start model` or, as the first line, `%%probe model`"
            _no_argument("%probe", line, instead)
        run = self.earlier if asked else self.newest
        if run is None:
            _say("There is no earlier run." if asked else _NOTHING)
        return None if line.rstrip().endswith(";") else run

    @property
    def newest(self) -> Run | None:
        """The run that is being watched, or else the last one."""
        sessions = session.sessions()
        return sessions[-1].run if sessions else self._last

    @property
    def earlier(self) -> Run | None:
        """The run of the magics before that one."""
        return self._before if self.newest is self._last else self._last

    @cell_magic("probe")  # type: ignore[arg-type]
    @no_var_expand
    @takes_model("%%probe")
    def watch_cell(self, line: str, cell: str) -> Any:
        """Watch a model while this cell runs; the report takes the place of the live view.

        The cell runs as if the first line were not there: variables stay, the last value is shown
        (not after a `;`), an exception fails the cell. `%probe` returns the run afterwards.
        A cell that awaits needs `with probe.watch(model):` instead.

        Examples::

            %%probe model --optimizer opt
            train_one_epoch(model, opt)
        """
        __tracebackhide__ = True
        asked = parse(type(self).watch_cell, line)
        code = compiled(self.shell, cell)
        made = prepared(asked, _scope(self.shell))
        watching = self._open(made, asked, "report")
        try:
            value = code.run(self.shell)
        except BaseException as error:
            self._end_cell(watching, error)
            raise
        self._end_cell(watching)
        if not self._said:
            self._said = True
            _say("`run = %probe` gives the run of this cell.")
        return value

    def _end_cell(self, watching: Watching, error: BaseException | None = None) -> None:
        watching.end(error)
        if watching.view is None:
            display(watching.run)  # type: ignore[no-untyped-call]


def _scope(shell: Any, local_ns: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the variables that an expression may use: also those of a function around it."""
    spaces = [shell.user_global_ns, shell.user_ns, local_ns or shell.user_ns]
    if all(space is spaces[0] for space in spaces):
        return shell.user_ns  # type: ignore[no-any-return]
    return {name: value for space in spaces for name, value in space.items()}


def _restorer(table: dict[str, Any], name: str) -> Callable[[], object]:
    if name not in table:
        return lambda: table.pop(name, None)
    earlier = table[name]
    return lambda: table.__setitem__(name, earlier)


def _no_argument(magic: str, line: str, instead: str = "`%probe_start model`") -> None:
    if line.strip(" ;"):
        raise UsageError(f"`{magic}` takes no argument. To watch a model use {instead}.")


def _title(run: Run) -> str:
    models = ", ".join(f"{name} · {kind}" for name, kind in run.info.models.items())
    if run.info.config["level"] == "debug":
        return "what is saved by name"
    return models or "functions of torch"


def _failed_cell(result: ExecutionResult, error: BaseException, run: Run) -> str:
    where = f"Cell {result.execution_count} ended"
    step = run.info.config.get("first_step", 0) + run.info.steps - 1
    text = " ".join(str(error).split())[:200]
    return f"{where} at step {step} with {type(error).__name__}{': ' if text else ''}{text}"


def _say(text: str) -> None:
    print(f"probe_nb: {text}")  # noqa: T201 - a notice of one line, where the user looks
