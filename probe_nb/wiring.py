"""The rooms of one session, made and connected: who hands what to whom.

Nothing is attached here. A session keeps what it asks later, and what happens it is told as its
`Events`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
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
from probe_nb.observe.sink import Sink
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
    sink: Sink
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


@dataclass(frozen=True)
class _Ground:
    """What all rooms stand on."""

    run: Run
    options: WatchConfig
    events: Events
    watched: list[Watched]
    by_id: dict[int, Watched]
    clock: Clock
    scaler: ScalerWatch | None
    writer: Recorder
    recorder: Recorder | Keeper | Stopper
    sink: Sink
    roles: frozenset[Role]
    chosen: Chosen | None
    only: Only
    tasks: Tasks
    gradients: Gradients
    values: ValueWriter
    arguments: Arguments | None
    hierarchy: Hierarchy | None

    @property
    def extras(self) -> Measuring | None:
        """What is computed beside the rows, where that is asked for."""
        return self.writer if isinstance(self.writer, Measuring) else None


@dataclass(frozen=True)
class _Forward:
    """What sees modules and what they own."""

    modules: ModuleHooks
    parameters: Parameters
    buffers: Buffers


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
    optimizers, scaling = as_optimizers(optimizer), as_scaler(scaler)
    info, options = _about(models, watched, options, into)
    run = into or Run(info, Columns(budget=options.memory, notices=info.notices))
    expects_training = bool(optimizers) or scaling is not None
    clock = _clock(options, events, expects_training=expects_training)
    ground = _ground(run, options, events, watched, clock=clock, scaling=scaling)
    forward = _forward(ground)
    functions = _functions(ground, forward.modules)
    steps = _steps(ground, optimizers)
    opened = options.compiled == "eager"
    if opened:
        info.notices.append(NOTICE)
    return Rooms(
        run=run,
        watched=watched,
        by_id=ground.by_id,
        clock=clock,
        scaler=scaling,
        recorder=ground.recorder,
        sink=ground.sink,
        modules=forward.modules,
        gradients=ground.gradients,
        parameters=forward.parameters,
        buffers=forward.buffers,
        only=ground.only,
        steps=steps,
        coverage=Coverage(
            watched,
            ground.only.named,
            _of_modules(ground.roles, options),
            opened=opened,
            unfused=functions is not None,
            here=options.wants_rank(_rank(info.rank)),
        ),
        functions=functions,
        variables=Variables(
            clock,
            ground.gradients,
            ground.sink,
            ground.values,
            modules=forward.modules,
            begins=events.step_begins,
            one_way=options.one_way,
        ),
        attachment=Attachment(
            forward.modules,
            ground.gradients,
            forward.parameters,
            optimizer=OptimizerHook(optimizers, events.holds_watched, events.optimizer_stepped),
            steps=steps,
            functions=functions,
            uncompiled=Uncompiled() if opened else None,
        ),
    )


def _ground(
    run: Run,
    options: WatchConfig,
    events: Events,
    watched: list[Watched],
    *,
    clock: Clock,
    scaling: ScalerWatch | None,
) -> _Ground:
    chosen = _chosen(watched, options)
    writer = _recorder(run, options, clock, scaling)
    _measure(writer, options, scaling, watched)
    recorder = _guarded(writer, run, options, watched, events)
    by_id = {id(w.module()): w for w in watched}
    sink = Slicing(recorder, options.slices) if options.slices else recorder
    roles, tasks, rank = _roles(options), Tasks(clock), run.info.rank
    values = ValueWriter(run.value_table, writer, rank)
    arguments = hierarchy = None
    if options.values:
        arguments = Arguments(values, roles, recomputes=options.recompute)
    if options.level != "debug":
        hierarchy = Hierarchy(run.call_table, rank, stacks=options.stacks)
    return _Ground(
        run=run,
        options=options,
        events=events,
        watched=watched,
        by_id=by_id,
        clock=clock,
        scaler=scaling,
        writer=writer,
        recorder=recorder,
        sink=sink,
        roles=roles,
        chosen=chosen,
        only=Only(by_id, clock, chosen),
        tasks=tasks,
        gradients=Gradients(clock, sink, roles, tasks),
        values=values,
        arguments=arguments,
        hierarchy=hierarchy,
    )


def _forward(ground: _Ground) -> _Forward:
    """Make what sees modules, and the parameters and buffers that they own."""
    options, roles = ground.options, ground.roles
    owned = ParameterSink(ground.sink, ground.only)
    parameters = Parameters(ground.watched, ground.clock, owned, ground.tasks, roles)
    wanted, once = "buffer" in roles, options.reduce_once
    buffers = Buffers(ground.watched, ground.clock, owned, wanted=wanted, once=once)
    ground.run.info.shared = parameters.shared

    def built(module: Watched) -> None:
        parameters.built(module)
        buffers.built(module)

    ground.only.reads = built  # what is owned asks it under which name it is written
    modules = ModuleHooks(
        ground.by_id,
        ground.clock,
        ground.gradients,
        ground.sink,
        roles,
        only=ground.only,
        records=options.level in config.NEEDS_MODEL,
        recomputes=options.recompute,
        begins=ground.events.step_begins,
        goes_on=ground.events.step_goes_on,
        built=built,
        chosen=ground.chosen,
        hierarchy=ground.hierarchy,
        values=ground.arguments,
        extras=ground.extras,
    )
    return _Forward(modules, parameters, buffers)


def _functions(ground: _Ground, modules: ModuleHooks) -> Functions | None:
    """Make what sees functions, where the level has them."""
    options = ground.options
    if options.level not in config.OF_FUNCTIONS or ground.hierarchy is None:
        return None
    return Functions(
        ground.clock,
        ground.gradients,
        ground.sink,
        ground.roles,
        only=ground.only,
        modules=modules,
        wants=Choice(options.apis).wants,
        everywhere=not options.select,
        begins=ground.events.step_begins,
        rewrote=ground.writer.rewrote,
        hierarchy=ground.hierarchy,
        values=ground.arguments,
        chosen=ground.chosen,
    )


def _steps(ground: _Ground, optimizers: Sequence[Optimizer]) -> StepsTaken:
    """Make what sees optimizers step."""
    options, scaler = ground.options, ground.scaler
    roles = ground.roles if not (options.one_way or options.structure) else frozenset[Role]()
    rows = StepRows(
        ground.watched,
        ground.clock,
        ground.sink,
        ground.only,
        roles=roles,
        scale=scaler.scale if scaler is not None else lambda: None,
        extras=ground.extras,
    )
    ground.run.info.moved = rows.groups
    asked = any(each.name in OF_STEP for each in options.extras)
    taken = optimizers if asked or roles & ROLES else ()
    steps = StepsTaken(taken, ground.clock, rows, ground.recorder, scaler)
    if scaler is not None:
        ground.clock.updated = steps.updated  # which counts steps by this clock
    return steps


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
