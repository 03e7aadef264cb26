"""One watch from attach to detach. READ THIS FIRST.

`watch`, `start`, `stop` and `step` are the doors. A `Session` chooses the modules
(`observe.select`), counts steps (`observe.calls`), sees tensors (`observe.modules`,
`observe.gradients`), has them reduced (`stats.summary`) and written down (`recorder`, `store`).
What it leaves is a `Run`. Whatever ends a session, `close` gives everything back.
"""

from __future__ import annotations

import datetime
import platform
import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final

import torch
from torch import nn

import probe_nb
from probe_nb import config, devices
from probe_nb.config import WatchConfig
from probe_nb.errors import ConfigError, ProbeWarning, SessionStateError, closest
from probe_nb.observe.attach import attach
from probe_nb.observe.calls import Call, Clock, innermost
from probe_nb.observe.gradients import Gradients
from probe_nb.observe.modules import ModuleHooks
from probe_nb.observe.optimizers import OptimizerHook, ScalerWatch, as_optimizers
from probe_nb.observe.select import Watched, as_models, watched_modules
from probe_nb.recorder import Recorder
from probe_nb.run import Run
from probe_nb.stats.summary import Reducer
from probe_nb.terms import Role, RunInfo, shown

_OPTIONS: Final = (
    *("optimizer", "scaler", "level", "select", "roles", "steps", "first_step"),
    *("micro_batches", "reduce_once", "name", "live"),
)
_BACKWARD: Final[frozenset[Role]] = frozenset({"grad_output", "grad_input"})

_open: list[Session] = []
_registry = threading.RLock()


def sessions() -> tuple[Session, ...]:
    """Return the open sessions, oldest first."""
    return tuple(_open)


class Session:
    """An open watch over one or several models."""

    def __init__(
        self, models: dict[str, nn.Module], options: WatchConfig, optimizer: Any, scaler: Any
    ) -> None:
        """Prepare everything; nothing is attached before `open`."""
        self.config = options
        found = watched_modules(models, options.select)
        self._watched = found
        self._by_id = {id(w.module()): w for w in found}
        self._optimizers = as_optimizers(optimizer)
        self._scaler = None if scaler is None else ScalerWatch(scaler)
        self.run = Run(_about(models, found, options))
        self._clock = Clock(
            wants=options.wants,
            first=options.first_step,
            micro_batches=options.micro_batches,
            expects_training=bool(self._optimizers),
            ended=self._step_ended,
        )
        self._recorder = Recorder(
            self.run.columns,
            self._clock,
            Reducer(reduce_once=options.reduce_once),
            self._scaler.scale if self._scaler is not None else lambda: None,
            self.run.info.rank,
        )
        roles = frozenset(options.roles)
        self._gradients = Gradients(self._clock, self._recorder, roles)
        self._modules = ModuleHooks(
            self._by_id,
            self._clock,
            self._gradients if roles & _BACKWARD else None,
            self._recorder,
            roles,
            begins=self._step_begins,
        )
        self.listeners: list[Callable[[], None]] = []
        self._attached: ExitStack | None = None

    # -- lifetime -------------------------------------------------------------------------------

    def open(self) -> Session:
        """Attach every hook; earlier sessions on the same modules are closed first."""
        with _registry:
            for other in sessions():
                if other._by_id.keys() & self._by_id.keys():
                    other.close("restarted")
                    message = "This model was already watched; the earlier session was stopped."
                    warnings.warn(message, ProbeWarning, stacklevel=4)
            self._attached = attach(self._modules, self._attach_optimizer, self._attach_gradients)
            self.run.bind(flush=self.flush, step=self.step)
            _open.append(self)
        return self

    def _attach_optimizer(self, stack: ExitStack) -> None:
        hook = OptimizerHook(self._optimizers, self._holds_watched, self._optimizer_stepped)
        stack.callback(hook.attach().remove)

    def _attach_gradients(self, stack: ExitStack) -> None:
        stack.callback(self._gradients.close)

    def close(self, reason: str) -> None:
        """Give everything back, then take in what was still waiting. Closing twice is harmless."""
        with _registry:
            if self._attached is None:
                return
            attached, self._attached = self._attached, None
            if self in _open:
                _open.remove(self)
        attached.close()
        try:
            self._drain()
        finally:
            self._recorder.forget()
            self.run.bind(flush=None, step=None)
            self.run.info.ended = reason
            self._note_unobserved()
            self._modules.open.stack.clear()
            self._by_id.clear()

    def close_after(self, error: BaseException) -> None:
        """Close because the user's code raised, and write down what and where."""
        where = innermost(self._modules.open.stack)
        place = "" if where is None else f" in {shown(where)}"
        text = " ".join(str(error).split())
        reason = f"{type(error).__name__}{place} at step {self._clock.step}"
        self.close(f"{reason}: {text[:200]}" if text else reason)

    # -- steps --------------------------------------------------------------------------------

    def step(self) -> None:
        """End the current step; from then on steps end only through this call."""
        if self._attached is None:
            raise SessionStateError("This session is closed, so it has no step to end.")
        self._clock.step_by_hand()

    def flush(self) -> None:
        """Take in what was seen so far, in the middle of a step."""
        self._drain()

    def _step_begins(self) -> None:
        """Prepare the first root forward of a step: parameters are read before they are used."""
        for watched in self._watched:
            watched.begin_step()
        if self._clock.recording:
            self._observe_parameters()

    def _observe_parameters(self) -> None:
        roles = self.config.roles
        chosen = [(w, m) for w in self._watched if w.selected and (m := w.module()) is not None]
        if "param_grad" in roles:
            self._gradients.watch_parameters(chosen)
        if "param" not in roles:
            return
        seen: set[int] = set()
        for watched, module in chosen:
            call = watched.parameters_call(self._clock)
            for name, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    self._recorder.tensor(call, "param", name, parameter)

    def _step_ended(self) -> None:
        if self._clock.recording:
            self._drain()
            self._gradients.prune()

    def _optimizer_stepped(self) -> None:
        self._clock.optimizer_stepped()

    def _holds_watched(self, optimizer: torch.optim.Optimizer) -> bool:
        mine = {id(p) for w in self._watched if (m := w.module()) for p in m._parameters.values()}
        return any(id(p) in mine for group in optimizer.param_groups for p in group["params"])

    # -- what is left ---------------------------------------------------------------------------

    def _drain(self) -> None:
        self._recorder.drain()
        self.run.info.steps = self._clock.step + 1 - self.config.first_step
        self._note_unobserved()
        for listener in tuple(self.listeners):
            try:
                listener()
            except Exception as error:  # noqa: BLE001 - a view of ours must not stop training
                self.listeners.remove(listener)
                warnings.warn(f"A live view was switched off: {error}", ProbeWarning, stacklevel=2)

    def _note_unobserved(self) -> None:
        """List the modules that left no row, with the reason."""
        self.run.info.unobserved = [
            {"model": w.model, "module": w.path, "type": w.type, "reason": _reason(w)}
            for w in self._watched
            if not (w.selected and w.seen)
        ]


def _reason(watched: Watched) -> str:
    if not watched.selected:
        return "not selected"
    return "never called (or called only through .forward(), or inside fused or compiled code)"


class Watch:
    """The context manager that `watch` returns; entering it gives the `Run`."""

    def __init__(self, session: Callable[[], Session], *, live: bool | None) -> None:
        """Wait with everything until the block is entered."""
        self._make = session
        self._live = live
        self._session: Session | None = None
        self._view: Any = None

    def __enter__(self) -> Run:
        """Attach, and show the live inspector where there is a notebook to show it in."""
        if self._session is not None and self._session.run.is_open:
            raise SessionStateError("This watch is already open; make another with `watch(...)`.")
        self._session = self._make().open()
        self._view = _live_view(self._session, self._live)
        return self._session.run

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give everything back; the user's exception goes on untouched."""
        session, view = self._session, self._view
        if session is None:
            return
        try:
            if error is None:
                session.close("finished")
            else:
                session.close_after(error)
        finally:
            self._view = None
            if view is not None:
                view.close()


def _live_view(session: Session, live: bool | None) -> Any:
    """Open a live view and have it told of every drain; None where nobody could see it."""
    if live is False:
        return None
    from probe_nb.view import live as views  # noqa: PLC0415 - views are loaded when shown

    if not views.wanted(live):
        return None
    view = views.LiveView(session.run, final="report")
    view.open()
    session.listeners.append(view.update)
    return view


def watch(  # noqa: PLR0913 - one keyword per option
    model: Any = None,
    *,
    optimizer: Any = None,
    scaler: Any = None,
    level: str = "module",
    select: Any = None,
    roles: Any = None,
    steps: Any = None,
    first_step: int = 0,
    micro_batches: int | None = None,
    reduce_once: bool = True,
    name: str | None = None,
    live: bool | None = None,
    **models: Any,
) -> Watch:
    """Watch a model inside a `with` block and keep the statistics of every tensor in a `Run`.

    Outputs, gradients, parameters and random numbers are the same, bit for bit, as without it.

    Args:
        model: A `torch.nn.Module`, or a list, tuple or dict of modules.
        optimizer: The optimizer, or several in the order in which they step. A step ends with the
            first forward after the last of them. Without it any torch optimizer that holds a
            watched parameter ends steps.
        scaler: The `GradScaler`; gradients are divided by its scale.
        level: `"module"` (alias `"L0"`).
        select: Patterns on module paths (`"layers.*"`) and types (`"type:Linear"`); a leading
            `!` takes out again. A string with commas or a list. None watches everything.
        roles: Some of `input output param grad_output grad_input param_grad`. None: all.
        steps: Which steps are recorded: `"0,10-20,::100"`, a number or numbers. None: all.
        first_step: The number of the first step.
        micro_batches: Root forwards per step, where nothing else tells.
        reduce_once: Take a tensor that was seen in this step, and not written since, as seen.
            Set to False if you write through `.data` or numpy inside the forward.
        name: A name for the run.
        live: Show the live inspector. None: in a notebook only.
        **models: Models by name: `watch(gen=generator, disc=discriminator)`.

    Returns:
        A context manager; `with probe.watch(model) as run:` gives the `Run`.

    Raises:
        ModelError: Something is not a module.
        SelectionError: A pattern matches no module.
        ConfigError: An option makes no sense, or is not known.

    Cost: one reduction per distinct tensor; nothing waits for the device before a step ends.

    >>> import torch, probe_nb as probe
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> with probe.watch(model, roles="grad_input") as run:
    ...     model(torch.ones(1, 2, requires_grad=True)).sum().backward()
    >>> len(run)
    1
    """
    for word in models:
        if not isinstance(models[word], nn.Module) and closest(word, _OPTIONS):
            raise ConfigError(f"`{word}` is not an option.{closest(word, _OPTIONS)}")
    if level not in ("module", "L0"):
        raise ConfigError(f"`level` is {level!r}; this version watches `module` (alias `L0`).")
    options = config.checked(
        select=select,
        roles=roles,
        steps=steps,
        first_step=first_step,
        micro_batches=micro_batches,
        reduce_once=reduce_once,
        name=name,
    )
    chosen = as_models(model, models)
    return Watch(lambda: Session(chosen, options, optimizer, scaler), live=live)


def start(model: Any = None, **options: Any) -> Run:
    """Begin to watch and return the run at once; `stop()` ends it. Options as for `watch`.

    For scripts and cells of a notebook; in one block of code `with probe.watch(...)` is safer.

    >>> import torch, probe_nb as probe
    >>> model = torch.nn.Linear(2, 1)
    >>> run = probe.start(model, roles=["output"])
    >>> _ = model(torch.ones(1, 2))
    >>> probe.stop() is run, len(run)
    (True, 1)
    """
    opened = watch(model, **options)
    return opened.__enter__()


def stop(run: Run | None = None) -> Run | None:
    """End the newest session, or the one that records `run`, and return its run.

    Returns None if nothing is open: stopping twice is harmless.
    """
    for session in reversed(sessions()):
        if run is None or session.run is run:
            session.close("stopped")
            return session.run
    return run


def step(run: Run | None = None) -> None:
    """End the step of the newest session, or of the one that records `run`.

    Raises:
        SessionStateError: No session is open.
    """
    for session in reversed(sessions()):
        if run is None or session.run is run:
            session.step()
            return
    raise SessionStateError(
        "No session is open, so there is no step to end. Start one with `probe.start(model)`."
    )


def _about(models: dict[str, nn.Module], found: list[Watched], options: WatchConfig) -> RunInfo:
    rank = None
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank = torch.distributed.get_rank()
    now = datetime.datetime.now(datetime.timezone.utc)
    return RunInfo(
        name=options.name,
        created=now.isoformat(timespec="seconds"),
        models={name: type(model).__name__ for name, model in models.items()},
        modules=len(found),
        config=options.as_dict(),
        versions={
            "probe_nb": probe_nb.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        devices=devices.names(),
        rank=rank,
    )
