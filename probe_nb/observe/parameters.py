"""Parameters: their values, and what a backward adds to their gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from probe_nb.observe import graph
from probe_nb.observe.accumulated import Accumulated, Added, State
from probe_nb.observe.aside import aside
from probe_nb.observe.calls import Clock
from probe_nb.observe.compiled import beside
from probe_nb.observe.select import Watched, own_parameter, own_parameters
from probe_nb.observe.shards import Owned, owned
from probe_nb.observe.shares import Hook
from probe_nb.observe.sink import Facts, Sink
from probe_nb.observe.tasks import Tasks, When
from probe_nb.observe.views import stale
from probe_nb.terms import Role


class Parameters:
    """Reads parameters when a step begins and hooks those that require grad."""

    def __init__(
        self,
        watched: list[Watched],
        clock: Clock,
        sink: Sink,
        tasks: Tasks,
        roles: frozenset[Role],
    ) -> None:
        """Attach to nothing yet. `watched` may grow."""
        self.shared: dict[str, str] = {}
        self._watched = watched
        self._clock = clock
        self._sink = sink
        self._tasks = tasks
        self._values = "param" in roles
        self._gradients = "param_grad" in roles
        self._held: dict[int, _Held] = {}
        self._unhooked = False
        self._accumulated = Accumulated(sink, tasks, self._looked_at)

    # -- forward side -------------------------------------------------------------------------

    def step_begins(self) -> None:
        """Read every parameter, and attach to those that are new or came back."""
        if not (self._values or self._gradients):
            return
        now = list(self._once(self._watched))
        if self._gradients:
            self._unhooked = any(each.looked_at or not each.hooked for each in now)
            gone = self._held.keys() - {id(each.parameter) for each in now}
            for key in gone:
                self._held.pop(key).handle.remove()
        self._take(now)

    def built(self, watched: Watched) -> None:
        """Read the parameters of a lazy module that was built by its first call."""
        self._take(list(self._once([watched])))

    def _once(self, watched: Iterable[Watched]) -> Iterator[Owned]:
        """Yield each parameter under its first owner."""
        owners: dict[int, Owned] = {}
        for each in owned(watched):
            if type(each.parameter) is not nn.Parameter and is_lazy(each.parameter):
                continue
            owner = owners.setdefault(id(each.parameter), each)
            if owner is each:
                yield each
            else:
                self.shared[_place(each)] = _place(owner)

    def _take(self, now: list[Owned]) -> None:
        when = self._now()
        for each in now:
            if self._gradients and each.hooked and each.parameter.requires_grad:
                self._attach(each)
            if self._values:
                call = each.watched.parameters_call(when)
                self._sink.tensor(call, ("param", each.name + each.suffix), each.value)

    def _now(self) -> When:
        return When(self._clock.step, self._clock.micro_step, self._clock.recording)

    def _attach(self, each: Owned) -> None:
        held = self._held.get(id(each.parameter))
        if held is not None and held.is_as_before(each):
            return
        if not graph.plain(each.parameter) or stale(each.parameter):
            return  # `functional_call` puts any tensor in a parameter's place
        if held is not None and held.sits_on(each.parameter):
            held.look(each)
            return
        if held is not None:
            held.leave(each.parameter)
        hook = ParameterHook(self)
        hook.belongs(each)  # it may be called from here on
        handle = each.parameter.register_hook(hook)
        try:
            new = self._held[id(each.parameter)] = _Held(hook, handle, each.parameter._cdata)
        except BaseException:  # else the next step would add a second
            handle.remove()
            raise
        new.look(each)
        if held is not None and held.others and held.cdata != new.cdata:
            call = each.watched.parameters_call(self._now())  # they are dead, and so is ours
            facts = Facts.of(each.parameter)
            self._sink.absent(call, ("param_grad", each.name), facts, "unsupported")

    def _looked_at(self) -> Iterable[Owned]:
        """Return the parameters of whose gradient no hook tells, or not all."""
        if not self._unhooked:
            return ()
        return [each for each in self._once(self._watched) if each.looked_at or not each.hooked]

    # -- backward side ------------------------------------------------------------------------

    def arrived(self, watched: Watched, name: str, parameter: int, g: Tensor) -> None:
        """Hand over what this backward adds to a parameter's gradient."""
        self._clock.backward_ran()
        task = graph.task()
        if (found := self._tasks.parameters_call(task, watched)) is None:
            return
        call, number = found
        self._sink.tensor(call, ("param_grad", name), g, number)
        module = watched.module()
        p = None if module is None else own_parameter(module, name)
        if p is not None and id(p) == parameter and p.is_leaf:
            before = None if (grad := p.grad) is None else State.of(grad)
            mine = State.of(g)
            added = Added(call, number, name, parameter, before, mine, self._alone(p))
            self._accumulated.adds(task, added)

    def _alone(self, p: Any) -> bool:
        """Tell whether nothing of the user's comes between this hook and the end."""
        held = self._held.get(id(p))
        return held is not None and held.is_last(p) and not p._post_accumulate_grad_hooks

    def fault(self, watched: Watched, error: Exception) -> None:
        """Report an error of our own inside a hook."""
        self._sink.fault(watched, "backward", error)

    # -- lifetime -----------------------------------------------------------------------------

    def close(self, watched: Iterable[nn.Module]) -> None:
        """Remove every hook, also those whose handles an interrupt kept from us."""
        for module in watched:
            for parameter in own_parameters(module).values():
                if (held := self._held.get(id(parameter))) is not None:
                    held.leave(parameter)
                self._clear(parameter)
        for held in self._held.values():
            held.handle.remove()
        self._held.clear()
        self._accumulated.forget()
        self._tasks.forget()

    def _clear(self, parameter: Tensor) -> None:
        hooks = parameter._backward_hooks or {}
        for key, hook in list(hooks.items()):
            if isinstance(hook, ParameterHook) and hook.reports_to(self):
                hooks.pop(key, None)


def _place(each: Owned) -> str:
    """Return the name that `named_parameters` has for a parameter, without wrappers."""
    return f"{each.watched.path}.{each.name}" if each.watched.path else each.name


class ParameterHook(Hook):
    """Reads what a backward adds to a parameter's gradient."""

    __slots__ = ("_name", "_parameter", "_parameters", "_watched")

    def __init__(self, parameters: Parameters) -> None:
        """Remember whom to tell."""
        self._parameters = parameters

    def belongs(self, each: Owned) -> None:
        """Remember the module, the name in it, and which parameter it is."""
        self._watched, self._name, self._parameter = each.watched, each.name, id(each.parameter)

    def is_of(self, each: Owned) -> bool:
        """Tell whether it reports the gradient under this owner's name."""
        return self._watched is each.watched and self._name == each.name

    def reports_to(self, parameters: Parameters) -> bool:
        """Tell whose hook this is."""
        return self._parameters is parameters

    @beside
    def __call__(self, g: Tensor | None) -> None:
        """Run before the gradient is accumulated; None comes where nothing flowed to it."""
        if g is None:
            return
        try:
            with aside():
                self._parameters.arrived(self._watched, self._name, self._parameter, g)
        except Exception as error:
            self._parameters.fault(self._watched, error)


@dataclass
class _Held:
    """A hook of ours on a parameter. The parameter itself is not kept, not even weakly."""

    hook: ParameterHook
    handle: RemovableHandle
    cdata: int
    """Which tensor of C++ the hook was put on. `swap_tensors` changes it under the parameter."""
    others: bool = False
    """The user has hooks there too."""

    def sits_on(self, p: Any) -> bool:
        """Tell whether the hook will be called with the gradient of `p`."""
        hooks = p._backward_hooks
        return p._cdata == self.cdata and hooks is not None and self.handle.id in hooks

    def is_as_before(self, each: Owned) -> bool:
        """Tell whether the hook is where it was put, alone and of the same owner."""
        p: Any = each.parameter
        hooks = p._backward_hooks
        if hooks is None or len(hooks) != 1 or self.others or p._cdata != self.cdata:
            return False
        return self.handle.id in hooks and self.hook.is_of(each)

    def is_last(self, p: Any) -> bool:
        """Tell whether no hook of the user's comes after this one."""
        hooks = p._backward_hooks or {}
        if len(hooks) == 1:
            return self.handle.id in hooks
        for key, hook in reversed(hooks.items()):
            if key == self.handle.id:
                return True
            if not isinstance(hook, Hook):
                return False
        return False

    def look(self, each: Owned) -> None:
        """Take note of the parameter's owner, and go behind the user's hooks."""
        hooks: Any = each.parameter._backward_hooks
        self.hook.belongs(each)
        self.others = any(not isinstance(hook, Hook) for hook in hooks.values())
        if not self.is_last(each.parameter):  # put in anew: torch knows of no `move_to_end`
            hooks[self.handle.id] = hooks.pop(self.handle.id)

    def leave(self, p: Any) -> None:
        """Take the hook away, and let no trace of it be left on a tensor that was swapped.

        A swapped parameter has its table of hooks still, but torch does not look into it: a hook
        that the user puts there would be dead because of ours.
        """
        self.handle.remove()
        if p._cdata != self.cdata and not self.others:
            p._backward_hooks = p._backward_hooks or None
