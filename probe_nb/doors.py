"""The doors: `watch` for a block, `start` for what comes later.

They check what was asked, make a `session.Session` and connect a live view where there is a
notebook to show it in.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, NoReturn

from torch import nn
from torch.optim import Optimizer

from probe_nb import config
from probe_nb.errors import ConfigError, ModelError, SessionStateError, closest
from probe_nb.grammar import Memory
from probe_nb.observe.optimizers import as_optimizers
from probe_nb.observe.select import as_models, watched_modules
from probe_nb.run import Run
from probe_nb.session import Session

_OPTIONS: Final = (
    *("optimizer", "scaler", "level", "apis", "select", "roles", "steps", "token_range"),
    *("first_step", "micro_batches", "reduce_once", "compiled", "recompute"),
    *("keep", "stop_on", "alerts", "on_finding", "memory", "name", "live", "baseline"),
    *("stacks", "structure", "values", "checksum", "scope", "when", "ranks"),
    *("forward_only", "backward_only", "slices", "names", "extras"),
)


_BEGIN: Final = (
    "`with probe.watch(...) as run:` watches a block; `run = probe.start(...)` watches from there "
    "on, until `probe.stop()`."
)


class Watch:
    """The context manager that `watch` returns; entering it gives the `Run`."""

    def __init__(
        self,
        models: dict[str, nn.Module],
        optimizers: tuple[Optimizer, ...],
        session: Callable[[dict[str, nn.Module], tuple[Optimizer, ...]], Session],
        *,
        live: bool | None,
        baseline: Any = None,
    ) -> None:
        """Wait with everything until the block is entered.

        Till then the models are kept; from then on they live as long as the user holds them.
        """
        self._kept: Any = (models, optimizers)
        self._models = {name: weakref.ref(model) for name, model in models.items()}
        self._optimizers = tuple(weakref.ref(optimizer) for optimizer in optimizers)
        self._make = session
        self._live = live
        self._baseline = baseline
        self._session: Session | None = None

    def __enter__(self) -> Run:
        """Attach, and show the live inspector where there is a notebook to show it in."""
        if self._session is not None and self._session.run.is_open:
            raise SessionStateError("This watch is already open; make another with `watch(...)`.")
        self._session = self._make(*self._alive())
        self._kept = None
        try:
            self._session.open()
            _show(self._session, live=self._live, baseline=self._baseline)
        except BaseException:
            self._session.refuse()
            raise
        return self._session.run

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give everything back; the user's exception goes on untouched."""
        if self._session is None:
            return
        try:
            self._close(self._session, error)
        except BaseException:  # a Ctrl-C while closing: close for good, then let it through
            self._session.close("interrupted")
            raise

    def __repr__(self) -> str:
        """Say whether anything is watched, and how."""
        names = ", ".join(self._models) or "functions of torch"
        return f"<a watch of {names}: {self._state()}>"

    def __getattr__(self, name: str) -> NoReturn:
        """Say where what a run has is to be found."""
        if name.startswith("_"):  # asked by copies and by notebooks, not by people
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise AttributeError(f"A watch has no `{name}`; a run has what is recorded. {_BEGIN}")

    def _state(self) -> str:
        if self._session is None:
            return f"nothing is watched yet. {_BEGIN}"
        return "open" if self._session.run.is_open else "it has ended"

    def _alive(self) -> tuple[dict[str, nn.Module], tuple[Optimizer, ...]]:
        models = {name: m for name, ref in self._models.items() if (m := ref()) is not None}
        optimizers = tuple(o for ref in self._optimizers if (o := ref()) is not None)
        if len(models) < len(self._models) or len(optimizers) < len(self._optimizers):
            raise SessionStateError(
                "What this watch was made for is gone; make another with `watch(...)`."
            )
        return models, optimizers

    @staticmethod
    def _close(session: Session, error: BaseException | None) -> None:
        if error is None:
            session.close("finished")
        else:
            session.close_after(error)


def _show(session: Session, *, live: bool | None, baseline: Any) -> None:
    """Open a live view that hears of every drain and of the end, where somebody can see it."""
    if live is False:
        return
    from probe_nb.view import live as views  # views are loaded when they are shown

    if not views.wanted(live):
        return
    compared = None if baseline is None else _comparison().against(baseline, session.run)
    view = views.LiveView(session.run, final="report", compared=compared)
    session.listeners.append(view.update)
    session.closers.append(view.close)
    view.open()


def watch(
    model: Any = None,
    *more: Any,
    optimizer: Any = None,
    scaler: Any = None,
    level: str = "module",
    apis: Any = None,
    select: Any = None,
    roles: Any = None,
    steps: Any = None,
    token_range: Any = None,
    first_step: int = 0,
    micro_batches: int | None = None,
    reduce_once: bool = True,
    compiled: str = "stay",
    recompute: bool = False,
    keep: Any = None,
    stop_on: str | None = None,
    alerts: Mapping[str, str] | None = None,
    on_finding: Callable[[Any], object] | None = None,
    scope: Any = None,
    names: Any = None,
    when: str | None = None,
    ranks: Any = None,
    forward_only: bool = False,
    backward_only: bool = False,
    slices: Any = None,
    extras: Any = None,
    stacks: bool = False,
    structure: bool = False,
    values: bool = False,
    checksum: str | None = None,
    memory: Memory = config.MEMORY,
    name: str | None = None,
    live: bool | None = None,
    baseline: Any = None,
    **models: Any,
) -> Watch:
    """Watch a model inside a `with` block and keep the statistics of every tensor in a `Run`.

    Outputs, gradients, parameters and random numbers are the same, bit for bit, as without it.

    Args:
        model: A `torch.nn.Module`, or a dict of modules by name; those of a list or tuple are
            named by their place, `0`, `1`, ….
        *more: Nothing; several models are given by name, see `models`.
        optimizer: The optimizer, or several in the order in which they step. A step ends with the
            first forward after the last one named has stepped. Without it any torch optimizer that
            holds a watched parameter ends steps.
        scaler: The `GradScaler`; gradients are divided by its scale.
        level: `"module"` (alias `"L0"`): calls of modules. `"api"` (`"L1"`): calls of functions of
            torch, such as `Functional.relu` and `Tensor.add`, also without a model. `"mix"`: both.
            See docs/api-level.md for what this changes. `"debug"`: only what `probe.save` is given.
        apis: Which functions: `"core"`, `"focus"` (None), or `"all"`, with names added or taken
            out: `"core, Tensor.add, !Functional.dropout"`; a file of names ends with `.yaml`.
        select: Patterns on module paths (`"layers.*"`) and types (`"type:Linear"`); a leading
            `!` takes out again. A string with commas or a list. None watches everything.
        roles: Some of `input output param grad_output grad_input param_grad`. None: all.
        steps: Which steps are recorded: `"0,10-20,::100"`, a number or numbers. None: all.
        token_range: The first and the last forward of the model that are recorded, such as
            `(2, 5)` in a `generate` loop, where each forward makes a token. Both are included;
            they are counted from 0 since the watch opened, and again after `run.step()`.
        first_step: The number of the first step.
        micro_batches: So many root forwards make a step, whatever else happens; only `run.step()`
            overrules it.
        reduce_once: Take a tensor that was seen in this step, and not written since, as seen.
            Set to False if you write through `.data` or numpy inside the forward.
        compiled: `"stay"`: what torch.compile made stays compiled, and `run.coverage()` lists what
            cannot be seen in it. `"eager"`: torch runs all of it uncompiled, in the whole process,
            until the watch ends; the results are those of the eager model.
        recompute: Record the inputs and outputs of forwards that activation checkpointing repeats
            too, in rows whose column `recompute` is True and whose `call` is that of the first
            time: equal numbers say that the repeat was faithful.
        keep: Tensors to keep whole: patterns on modules (`"fc1, type:Linear"`), whose inputs are
            kept, or a `probe.Keep` that says more. `run.tensor(...)` gives them.
        stop_on: `"nonfinite"`: raise `NonFiniteError` at the module where the first NaN or Inf is
            born. Each call then waits for its numbers.
        alerts: Rules of your own, `{name: query}`: after each step pandas is asked which of its
            rows `query` holds for, as in `"role == 'output' and absmax > 1e4"`.
        on_finding: A function that is called with each new finding as a step ends.
        scope: The first and the last call that are recorded, such as `("layers.0", "layers.3")`:
            each step what runs from the first on until the last has returned. See
            docs/choosing.md for the names it takes.
        names: Parts of names: record calls whose name as msProbe spells it, such as
            `Module.layers.0.Linear.forward.0` or `Functional.relu.2.forward`, has one of them in
            it. With `level="mix"` all that runs inside such a module is recorded too.
        when: `"train"` or `"eval"`: record calls of modules whose own `training` flag says so.
        ranks: Which processes of a distributed job record, written as steps are: `"0,4-6"`.
        forward_only: Record nothing of the backward and of the optimizer.
        backward_only: Record gradients alone; no tensor of the forward is reduced.
        slices: Measure a part of each tensor: a list of `{"dim": 1, "begin": 0, "end": 16}`.
        extras: What else is computed, of which modules: `{"spectral_norm": "type:Linear"}`. Also
            `stable_rank`, `attention_entropy`, `softmax_max` and others; see
            docs/training-monitor.md for the formulas and what each costs.
        stacks: Keep from where in your code each module or function was called; `run.calls()`.
        structure: Record classes, shapes and dtypes alone and reduce nothing; `run.structure()`.
        values: Record arguments and results that are no tensors too; `run.values()`.
        checksum: `"crc32"` or `"xor"`: also a checksum of the bytes of each tensor. It copies
            each of them to the host, one at a time, and waits for it.
        memory: What the records may take: `"512MiB"`, `"2GB"`, a number of bytes, None for no
            limit. The oldest of what exceeds it are moved to a temporary folder (`TMPDIR`, else
            `/var/tmp`), from where the run reads them again.
        name: A name for the run.
        live: Show the live inspector. None: in a notebook only.
        baseline: A run, or the path of a saved one: the live inspector compares with it.
        **models: Models by name: `watch(gen=generator, disc=discriminator)`.

    Returns:
        A context manager; `with probe.watch(model) as run:` gives the `Run`.

    Raises:
        ModelError: Something is not a module.
        SelectionError: A pattern matches no module.
        ConfigError: An option makes no sense, or is not known.

    Cost: one reduction per distinct tensor; nothing waits for the device before a step ends,
    but with `checksum`, `stop_on`, and the extras `spectral_norm` and `stable_rank`.

    >>> import torch, probe_nb as probe
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> with probe.watch(model, roles="grad_input") as run:
    ...     model(torch.ones(1, 2, requires_grad=True)).sum().backward()
    >>> len(run)
    1
    """
    if more:
        raise ModelError(_positional(more[0]))
    for word, value in models.items():
        if not isinstance(value, nn.Module) and closest(word, _OPTIONS):
            raise ConfigError(f"`{word}` is not an option.{closest(word, _OPTIONS)}")
    options = config.checked(
        level=level,
        apis=apis,
        select=select,
        roles=roles,
        steps=steps,
        token_range=token_range,
        first_step=first_step,
        micro_batches=micro_batches,
        reduce_once=reduce_once,
        compiled=compiled,
        recompute=recompute,
        keep=keep,
        stop_on=stop_on,
        alerts=alerts,
        on_finding=on_finding,
        scope=scope,
        names=names,
        when=when,
        ranks=ranks,
        forward_only=forward_only,
        backward_only=backward_only,
        slices=slices,
        extras=extras,
        stacks=stacks,
        structure=structure,
        values=values,
        checksum=checksum,
        memory=memory,
        name=name,
    )
    no_model = model is None and not models and options.level not in config.NEEDS_MODEL
    chosen = {} if no_model else as_models(model, models)
    if options.select:
        watched_modules(chosen, options.select)  # what matches nothing is told here
    return Watch(
        chosen,
        as_optimizers(optimizer),
        lambda chosen, optimizers: Session(chosen, options, optimizers, scaler),
        live=live,
        baseline=None if baseline is None else _comparison().opened(baseline),
    )


def _comparison() -> Any:
    from probe_nb import comparison  # comparing is loaded where it is asked for

    return comparison


def _positional(second: object) -> str:
    if isinstance(second, nn.Module):
        return (
            "Several models are given by name: `watch(gen=generator, disc=critic)`, or as a dict, "
            "`watch({'gen': generator, 'disc': critic})`."
        )
    kind = type(second).__name__
    return f"Options are given by name, as in `optimizer=optimizer`; here is a {kind} without one."


def start(model: Any = None, *more: Any, **options: Any) -> Run:
    """Begin to watch and return the run at once; `stop()` ends it. Options as for `watch`.

    For scripts and cells of a notebook; in one block of code `with probe.watch(...)` is safer.

    >>> import torch, probe_nb as probe
    >>> model = torch.nn.Linear(2, 1)
    >>> run = probe.start(model, roles=["output"])
    >>> _ = model(torch.ones(1, 2))
    >>> probe.stop() is run, len(run)
    (True, 1)
    """
    opened = watch(model, *more, **options)
    return opened.__enter__()
