"""The rooms of one session, made and connected: who hands what to whom.

Nothing is attached here. A session keeps what it asks later, and what happens it is told as its
`Events`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from torch import nn
from torch.optim import Optimizer

from probe_nb import about, config
from probe_nb.config import WatchConfig
from probe_nb.errors import ConfigError
from probe_nb.extras import BELOW, OF_STEP
from probe_nb.keeper import Keeper
from probe_nb.measuring import Measuring, SummingAndMeasuring
from probe_nb.observe import structure
from probe_nb.observe.arguments import Arguments
from probe_nb.observe.attach import Attachment
from probe_nb.observe.buffers import Buffers
from probe_nb.observe.calls import Clock
from probe_nb.observe.chosen import Chosen
from probe_nb.observe.compiled import NOTICE, Uncompiled
from probe_nb.observe.coverage import Coverage
from probe_nb.observe.functions import Functions
from probe_nb.observe.functions_choice import Choice
from probe_nb.observe.gradients import Gradients
from probe_nb.observe.hierarchy import Hierarchy
from probe_nb.observe.modules import ModuleHooks
from probe_nb.observe.only import Only, ParameterSink
from probe_nb.observe.optimizers import OptimizerHook, ScalerWatch, as_optimizers, as_scaler
from probe_nb.observe.parameters import Parameters
from probe_nb.observe.select import Watched, watched_modules
from probe_nb.observe.step_rows import ROLES, StepRows
from probe_nb.observe.steps_taken import StepsTaken
from probe_nb.observe.tasks import Tasks
from probe_nb.observe.variables import Variables
from probe_nb.recorder import Recorder
from probe_nb.run import Run
from probe_nb.slicing import Slicing
from probe_nb.stats.checksum import SUMS
from probe_nb.stats.summary import Reducer
from probe_nb.stopping import Stopper
from probe_nb.store.columns import Columns
from probe_nb.summing import Summing
from probe_nb.terms import Role, RunInfo
from probe_nb.unmeasured import Unmeasured
from probe_nb.valuing import ValueWriter

_NOT_THIS_RANK: Final = "this process is rank {rank}, which `ranks={ranks}` leaves out"


class Events(Protocol):
    """What a session is told of while it is open."""

    def step_begins(self) -> None:
        """Take note of the first root forward of a step, before it runs."""

    def step_goes_on(self) -> None:
        """Take note of another root forward of the step."""

    def step_ended(self) -> None:
        """Take note that a step has ended, before the next one begins."""

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        """Take note that the optimizer which ends steps has stepped."""

    def holds_watched(self, optimizer: Optimizer) -> bool:
        """Tell whether an optimizer moves a watched parameter."""

    def stopped(self, reason: str) -> None:
        """End the watch, because what was asked to be raised is about to be."""


@dataclass(frozen=True)
class Rooms:
    """What a session asks and closes."""

    run: Run
    watched: list[Watched]
    by_id: dict[int, Watched]
    clock: Clock
    scaler: ScalerWatch | None
    recorder: Recorder | Keeper | Stopper
    modules: ModuleHooks
    gradients: Gradients
    parameters: Parameters
    buffers: Buffers
    only: Only
    steps: StepsTaken
    coverage: Coverage
    functions: Functions | None
    variables: Variables
    attachment: Attachment


def wired(
    models: dict[str, nn.Module],
    options: WatchConfig,
    optimizer: Any,
    scaler: Any,
    events: Events,
    *,
    into: Run | None = None,
) -> Rooms:
    """Make the rooms of a session, which records into a run that is there, or a new one.

    Raises:
        SelectionError: A pattern matches no module.
        ConfigError: The optimizer or the scaler is none.
    """
    watched = watched_modules(models, options.select)
    by_id = {id(w.module()): w for w in watched}
    optimizers, scaling = as_optimizers(optimizer), as_scaler(scaler)
    info, options = _about(models, watched, options, into)
    chosen = _chosen(watched, options)
    run = into or Run(info, Columns(budget=options.memory, notices=info.notices))
    expects_training = bool(optimizers) or scaling is not None
    clock = _clock(options, events, expects_training=expects_training)
    writer = _recorder(run, options, clock, scaling)
    _measure(writer, options, scaling, watched)
    recorder = _guarded(writer, run, options, watched, events)
    sink = Slicing(recorder, options.slices) if options.slices else recorder
    roles, tasks = _roles(options), Tasks(clock)
    gradients = Gradients(clock, sink, roles, tasks)
    only = Only(by_id, clock)
    only.chosen = chosen
    owned = ParameterSink(sink, only)
    parameters = Parameters(watched, clock, owned, tasks, roles)
    once = options.reduce_once
    buffers = Buffers(watched, clock, owned, wanted="buffer" in roles, once=once)
    info.shared = parameters.shared

    def built(module: Watched) -> None:
        parameters.built(module)
        buffers.built(module)

    only.reads = built
    modules = ModuleHooks(
        by_id,
        clock,
        gradients,
        sink,
        roles,
        only=only,
        records=options.level in config.NEEDS_MODEL,
        recomputes=options.recompute,
        begins=events.step_begins,
        goes_on=events.step_goes_on,
        built=built,
        chosen=chosen,
    )
    functions = None
    if options.level in config.OF_FUNCTIONS:
        functions = Functions(
            clock,
            gradients,
            sink,
            roles,
            only=only,
            modules=modules,
            wants=Choice(options.apis).wants,
            everywhere=not options.select,
            begins=events.step_begins,
            rewrote=writer.rewrote,
            chosen=chosen,
        )
    values = ValueWriter(run.value_table, writer, info.rank)
    _look_beside(modules, functions, run, options, values)
    scale = scaling.scale if scaling is not None else lambda: None
    of_steps = roles if not (options.one_way or options.structure) else frozenset[Role]()
    rows = StepRows(watched, clock, sink, only, roles=of_steps, scale=scale)
    if isinstance(writer, Measuring):
        modules.extras = rows.extras = writer
    info.moved = rows.groups
    asked = any(each.name in OF_STEP for each in options.extras)
    taken = optimizers if asked or of_steps & ROLES else ()
    steps = StepsTaken(taken, clock, rows, recorder, scaling)
    if scaling is not None:
        clock.updated = steps.updated
    stepped = OptimizerHook(optimizers, events.holds_watched, events.optimizer_stepped)
    opened = options.compiled == "eager"
    if opened:
        info.notices.append(NOTICE)
    return Rooms(
        run=run,
        watched=watched,
        by_id=by_id,
        clock=clock,
        scaler=scaling,
        recorder=recorder,
        modules=modules,
        gradients=gradients,
        parameters=parameters,
        buffers=buffers,
        only=only,
        steps=steps,
        coverage=Coverage(
            watched,
            only.named,
            _of_modules(roles, options),
            opened=opened,
            unfused=functions is not None,
        ),
        functions=functions,
        variables=Variables(
            clock,
            gradients,
            sink,
            values,
            modules=modules,
            begins=events.step_begins,
            one_way=options.one_way,
        ),
        attachment=Attachment(
            modules,
            gradients,
            parameters,
            optimizer=stepped,
            steps=steps,
            functions=functions,
            uncompiled=Uncompiled() if opened else None,
        ),
    )


def _about(
    models: dict[str, nn.Module], watched: list[Watched], options: WatchConfig, into: Run | None
) -> tuple[RunInfo, WatchConfig]:
    """Return what the run says of itself, and the options that hold in this process."""
    info = about.begin(models, len(watched), options)
    if into is not None:
        info = about.go_on(into.info, info)
    if not options.wants_rank(rank := _rank(info.rank)):
        options = replace(options, wants=lambda _: False)
        info.notices.append(_NOT_THIS_RANK.format(rank=rank, ranks=options.ranks))
    info.tree = structure.tree(watched)
    return info, options


def _measure(
    writer: Recorder, options: WatchConfig, scaling: ScalerWatch | None, watched: list[Watched]
) -> None:
    """Have computed what is wanted beside the rows.

    Raises:
        ConfigError: It makes no sense with a scaler.
        SelectionError: A pattern matches no module.
    """
    if not isinstance(writer, Measuring):
        return
    if scaling is not None and any(each.name == BELOW for each in options.extras):
        raise ConfigError("`below` counts gradients as they come; give no `scaler` with it.")
    writer.wants(options.extras, watched)


def _guarded(
    writer: Recorder, run: Run, options: WatchConfig, watched: list[Watched], events: Events
) -> Recorder | Keeper | Stopper:
    """Return what keeps tensors and stops at a NaN, where that is asked for, and records all."""
    recorder: Recorder | Keeper = writer
    if options.keep is not None:
        recorder = Keeper(writer, options.keep, run, watched, options.level)
    if options.stop_on is None:
        return recorder
    return Stopper(recorder, run, events.stopped, outputs="output" in options.roles)


def _roles(options: WatchConfig) -> frozenset[Role]:
    """Return the roles that calls, parameters and optimizers have rows of."""
    if options.level == "debug":
        return frozenset()
    roles = frozenset(options.roles)
    return roles & config.OF_CALLS if options.level == "api" else roles


def _look_beside(
    modules: ModuleHooks,
    functions: Functions | None,
    run: Run,
    options: WatchConfig,
    values: ValueWriter,
) -> None:
    """Have written down what ran inside what, and what is no tensor."""
    if options.level != "debug":
        modules.hierarchy = Hierarchy(run.call_table, run.info.rank, stacks=options.stacks)
    if options.values:
        modules.values = Arguments(values, _roles(options), recomputes=options.recompute)
    if functions is not None:
        functions.hierarchy, functions.values = modules.hierarchy, modules.values
        if modules.hierarchy is not None:
            modules.hierarchy.functions = functions.registered.running_rows


def _chosen(watched: list[Watched], options: WatchConfig) -> Chosen | None:
    """Return what says what of each call is recorded; None where all is.

    Raises:
        SelectionError: The scope has a name that nothing has.
        ConfigError: The scope runs backwards, or there is no module whose mode could tell.
    """
    if options.scope is None and not options.names and options.when is None:
        return None
    return Chosen(
        watched,
        scope=options.scope,
        names=options.names,
        when=options.when,
        level=options.level,
    )


def _rank(joined: int | None) -> int:
    """Return the rank of this process; one that joined no others is the first of its own.

    Who launches processes tells them their rank before they join.
    """
    told = os.environ.get("RANK", "")
    return joined if joined is not None else int(told) if told.isdecimal() else 0


def _of_modules(roles: frozenset[Role], options: WatchConfig) -> frozenset[Role]:
    """Return the roles that modules of the model have rows of."""
    return roles if options.level in config.NEEDS_MODEL else frozenset()


def _recorder(
    run: Run,
    options: WatchConfig,
    clock: Clock,
    scaling: ScalerWatch | None,
) -> Recorder:
    settings = (
        run.columns,
        clock,
        Reducer(reduce_once=options.reduce_once),
        scaling.scale if scaling is not None else None,
        run.info.rank,
    )
    if options.structure:
        return Unmeasured(*settings)
    if options.checksum is not None:
        sums = SUMS[options.checksum]
        return (SummingAndMeasuring if options.extras else Summing)(sums, *settings)
    return (Measuring if options.extras else Recorder)(*settings)


def _clock(options: WatchConfig, events: Events, *, expects_training: bool) -> Clock:
    clock = Clock(
        wants=options.wants,
        first=options.first_step,
        micro_batches=options.micro_batches,
        expects_training=expects_training,
        ended=events.step_ended,
    )
    if options.token_range is not None:
        clock.tokens = options.token_range
    return clock
