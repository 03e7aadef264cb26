"""What is read around an optimizer's step, and under which call it is written down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from probe_nb.observe.calls import Call, Clock
from probe_nb.observe.copies import copied, difference, obstacle, size
from probe_nb.observe.only import Only, ParameterSink
from probe_nb.observe.select import Watched
from probe_nb.observe.shards import Owned, held, owned
from probe_nb.observe.sink import Extras, Facts, Sink, Where
from probe_nb.observe.stepping import Named, Step
from probe_nb.observe.values import Values
from probe_nb.terms import Role, Status

ROLES: Final[frozenset[Role]] = frozenset({"param_grad", "param", "update", "state"})
"""Roles of which rows are written when an optimizer steps."""


class StepRows:
    """Reads parameters, gradients and what an optimizer keeps."""

    def __init__(
        self,
        watched: list[Watched],
        clock: Clock,
        sink: Sink,
        only: Only,
        *,
        roles: frozenset[Role],
        scale: Callable[[], Tensor | None],
        extras: Extras | None = None,
    ) -> None:
        """Write to `sink`; `watched` may grow, and `scale` gives the loss scale in force.

        `extras` computes what was asked for beside the rows.
        """
        self.groups: dict[str, dict[str, str]] = {}
        self._extras = extras
        self._watched = watched
        self._clock = clock
        self._sink = ParameterSink(sink, only)
        self._own_sink = sink
        self._only = only
        self._roles = roles
        self._scale = scale
        self._values = Values()

    # -- before the step ----------------------------------------------------------------------

    def look(self, named: Named, optimizer: Optimizer, step: Step) -> None:
        """Read gradients, unless they are computed inside, and copy parameters."""
        step.looked = True
        step.moved = self.moved(named, optimizer)
        if not step.closure:
            step.moved = _with_gradients(step)
            scale = getattr(optimizer, "grad_scale", None)
            self._gradients(named, step, scale if isinstance(scale, Tensor) else None)
        if self._extras is not None:
            self._before(self._extras, named, optimizer, step)
        if "update" in self._roles:
            _copy(named, step)

    def _before(self, extras: Extras, named: Named, optimizer: Optimizer, step: Step) -> None:
        """Hand over what the optimizer keeps now."""
        calls = self._calls(named)
        for each in step.moved:
            kept = list(self._values.of(optimizer.state.get(each.parameter), each.name))
            extras.before_step(calls(each.watched), each.name, each.parameter.grad, kept)

    def moved(self, named: Named, optimizer: Optimizer) -> list[Owned]:
        """Return the parameters that the optimizer moves, of the modules that are watched."""
        found, mine = [], dict[int, Owned]()
        for owner in owned(self._watched):
            mine.setdefault(id(owner.parameter), owner)
        for number, group in enumerate(optimizer.param_groups):
            where = f"{named.itself.api}.group{number}"
            for p in group["params"]:
                if p.requires_grad and (each := mine.get(id(p))) is not None:
                    found.append(each)
                    self.groups.setdefault(each.watched.model, {})[_path(each)] = where
        models = {each.watched.model for each in found}
        model = models.pop() if len(models) == 1 else ""
        if model != named.itself.model:
            named.itself.model = model
            named.itself.sites.clear()
        return found

    def _gradients(self, named: Named, step: Step, scale: Tensor | None = None) -> None:
        calls = self._calls(named)
        for each in step.moved if "param_grad" in self._roles else ():
            where: Where = ("param_grad", f"{each.name}{each.of_grad}", "optimizer")
            self._sink.tensor(calls(each.watched), where, _gradient(each), scale=scale)

    # -- after it -----------------------------------------------------------------------------

    def write(self, named: Named, optimizer: Optimizer, step: Step) -> None:
        """Write down what the step has done."""
        if step.closure:
            step.moved = _with_gradients(step)
            self._gradients(named, step)
        calls, roles = self._calls(named), self._roles
        for each in step.moved:
            call = calls(each.watched)
            if "param" in roles:
                where: Where = ("param", f"{each.name}{each.suffix}", "optimizer")
                self._sink.tensor(call, where, each.value)
            if "update" in roles:
                self._update(call, each, step.copies.pop(id(each.parameter), "failed"))
            if "state" in roles:
                self._state(call, each, optimizer)
        if "state" in roles:
            found = getattr(optimizer, "found_inf", None)
            skipped = found > 0 if isinstance(found, Tensor) else self._values.tensor(number=False)
            self._settings(calls(named.itself), optimizer)
            self._skipped(calls(named.itself), skipped)
        self._count(named)

    def _update(self, call: Call, each: Owned, before: Tensor | Status) -> None:
        local, part = held(each.value)
        where: Where = ("update", f"{each.name}{each.suffix}{part}")
        if isinstance(before, Tensor):
            try:
                before = difference(each.value, before)
            except RuntimeError as error:  # it has another shape now, or lies elsewhere
                self._sink.fault(each.watched, "optimizer", error)
                before = "failed"
        if isinstance(before, Tensor):
            self._sink.tensor(call, where, before)
        else:
            self._sink.absent(call, where, Facts.of(local), before)

    def _state(self, call: Call, each: Owned, optimizer: Optimizer) -> None:
        for leaf, t in self._values.of(optimizer.state.get(each.parameter), each.name):
            part = each.suffix if t.shape == each.value.shape else ""
            self._sink.tensor(call, ("state", f"{leaf}{part}"), t)

    def _settings(self, call: Call, optimizer: Optimizer) -> None:
        if self._only.places:
            return
        for number, group in enumerate(optimizer.param_groups):
            settings = {key: value for key, value in group.items() if key != "params"}
            for leaf, t in self._values.of(settings, f"group{number}"):
                self._own_sink.tensor(call, ("state", leaf), t)
        scale = self._scale()
        if scale is not None:
            self._own_sink.tensor(call, ("state", "loss_scale"), scale)

    def _skipped(self, call: Call, value: Tensor) -> None:
        if not self._only.places:
            self._own_sink.tensor(call, ("state", "skipped"), value)

    def skipped(self, named: Named, optimizer: Optimizer) -> None:
        """Write down that a step was not made."""
        self.moved(named, optimizer)
        if "state" in self._roles:
            self._skipped(self._calls(named)(named.itself), self._values.tensor(number=True))
        self._count(named)

    # -- calls --------------------------------------------------------------------------------

    def _calls(self, named: Named) -> Callable[[Watched], Call]:
        """Return what gives the call that rows of a module are written under in this step."""
        clock, known = self._clock, dict[Watched, Call]()
        number = named.number[1] if named.number[0] == clock.step else 0
        when = (clock.step, max(clock.micro_step, 0), number)

        def call(watched: Watched) -> Call:
            found = known.get(watched)
            if found is None:
                module: Any = watched.module()
                training = bool(getattr(module, "training", True))
                found = known[watched] = Call(watched, 0, *when, training)
            return found

        return call

    def _count(self, named: Named) -> None:
        step = self._clock.step
        number = named.number[1] if named.number[0] == step else 0
        named.number = (step, number + 1)


def _with_gradients(step: Step) -> list[Owned]:
    return [each for each in step.moved if each.parameter.grad is not None]


def _gradient(each: Owned) -> Tensor:
    grad = each.parameter.grad
    if grad is None:
        raise RuntimeError(f"the gradient of {_path(each)} went away")
    return grad


def _copy(named: Named, step: Step) -> None:
    """Copy parameters while the budget lasts."""
    sizes = [size(each.value) for each in step.moved]
    for each, taken in zip(step.moved, named.turns.take(sizes), strict=True):
        status = obstacle(each.value)
        if status == "ok" and not taken:
            status = "skipped_budget"
        step.copies[id(each.parameter)] = "failed" if status == "ok" else status
        if status == "ok":
            try:
                step.copies[id(each.parameter)] = copied(each.value)
            except torch.OutOfMemoryError:
                step.copies[id(each.parameter)] = "skipped_budget"


def _path(each: Owned) -> str:
    """Return the path of a parameter, without wrappers."""
    return f"{each.watched.path}.{each.name}" if each.watched.path else each.name
