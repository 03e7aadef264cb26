"""Forward pre and post hooks: process-wide, looked up by module identity.

Hooks on the modules themselves would travel with copies and pickles, refuse scripted modules and
switch torch's fused attention off. See docs/decisions/0001-capture.md.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn

from probe_nb.observe.arguments import Arguments
from probe_nb.observe.aside import aside
from probe_nb.observe.behind import Behinds, overtaken
from probe_nb.observe.calls import WHOLE, Call, Clock, OpenCalls
from probe_nb.observe.chosen import Chosen
from probe_nb.observe.compiled import beside
from probe_nb.observe.gradients import Gradients
from probe_nb.observe.hierarchy import Hierarchy
from probe_nb.observe.leaves import Leaf, arguments, results
from probe_nb.observe.only import Only
from probe_nb.observe.raised import raising
from probe_nb.observe.regions import Place, Regions, local
from probe_nb.observe.replicas import Replicas, is_replica
from probe_nb.observe.select import Watched
from probe_nb.observe.sink import Extras, Facts, Sink
from probe_nb.terms import Role


class ModuleHooks:
    """What happens before and after the forward of a watched module."""

    def __init__(
        self,
        watched: dict[int, Watched],
        clock: Clock,
        gradients: Gradients,
        sink: Sink,
        roles: frozenset[Role],
        *,
        only: Only,
        records: bool,
        recomputes: bool,
        begins: Callable[[], None],
        goes_on: Callable[[], None],
        built: Callable[[Watched], None],
        chosen: Chosen | None = None,
        hierarchy: Hierarchy | None = None,
        values: Arguments | None = None,
        extras: Extras | None = None,
    ) -> None:
        """Tie the parts together.

        `records` says that calls are recorded, not only those of what `only` records alone.
        `begins` is called when a step begins, before its first row; `goes_on` at the other root
        forwards; `built` when a lazy module got its parameters, before its first forward.
        `chosen` says what of a call is recorded, where not all is. `hierarchy` takes note of what
        runs inside what; `values` records what is no tensor, and `extras` computes of calls what
        was asked for beside their tensors.
        """
        self._watched = watched
        self._only = only
        self._records = records
        self._clock = clock
        self._gradients = gradients
        self._sink = sink
        self._roles = roles
        self._recomputes = recomputes
        self._begins = begins
        self._goes_on = goes_on
        self._built = built
        self._chosen, self._hierarchy = chosen, hierarchy
        self._values, self._extras = values, extras
        self._whole = chosen is None and values is None and extras is None
        after = functools.partial(self.after, behind=True)
        self._behind = Behinds(self.before, after, self._fault)
        self._regions = Regions()
        self._replicas = Replicas(watched)
        self._cramped = False
        self.unread: set[str] = set()
        """What of arguments and results was not looked at, in words."""
        self.open = OpenCalls(self._regions, None if chosen is None else chosen.ended)

    # torch calls these two. They hold the only `except` between us and the user's model, and the
    # only guard that keeps the user's function modes and tensor classes from seeing what we read.

    @beside
    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: Any = None) -> None:
        """Forward pre hook of every module in the process; behind a module's own with `kwargs`."""
        watched = None
        try:
            if torch.compiler.is_compiling() or (watched := self._find(module)) is None:
                return
            behind = kwargs is not None
            frame = sys._getframe(2 if behind else 1)
            if not self._clock.recording and self._idle(watched, frame):
                return
            if behind and self.open.runs(frame, module):
                return
            late = False
            if not behind and module._forward_pre_hooks:
                if self._waits(module, pre=True):
                    return
                late = True
            with aside():
                kwargs = kwargs if behind else _kwargs(frame)
                self._before(watched, module, args, kwargs, frame, late=late)
        except RecursionError:  # there is no room on the stack, not even for a call to say so
            self._cramped = True
        except Exception as error:  # a fault of ours is never the user's
            self._sink.fault(watched, "forward", error)

    @beside
    def after(
        self, module: nn.Module, _: tuple[Any, ...], output: Any, *, behind: bool = False
    ) -> None:
        """Forward hook of every module in the process, or behind a module's own hooks."""
        watched = None
        try:
            if torch.compiler.is_compiling() or (watched := self._find(module)) is None:
                return
            frame = sys._getframe(2 if behind else 1)
            if frame.f_code.co_name == "_call_impl":  # torch is passing an exception on
                self.open.unwound(watched)
                return
            late = False
            if not behind and module._forward_hooks:
                if self._waits(module, pre=False):
                    return
                late = True
            if (call := self.open.leave(frame, module)) is not None:
                with aside():
                    self._after(call, output, late=late)
        except RecursionError:  # there is no room on the stack, not even for a call to say so
            self._cramped = True
        except Exception as error:  # a fault of ours is never the user's
            self._sink.fault(watched, "forward", error)

    def _idle(self, watched: Watched, frame: FrameType) -> bool:
        """Tell whether a call in a step not recorded needs nothing: it is inside another."""
        if watched.is_root or not watched.called:
            return False
        return torch._C._current_graph_task_id() == -1 and self.open.around(frame)

    def _fault(self, error: Exception) -> None:
        self._sink.fault(None, "forward", error)

    def where(self, error: BaseException) -> str | None:
        """Return the path of the module in which an exception was raised, if it was in one."""
        found = [watched for m in raising(error) if (watched := self._find(m)) is not None]
        return found[-1].path if found else None

    def knows(self, module: nn.Module) -> bool:
        """Tell whether a module is watched."""
        return self._find(module) is not None

    def _find(self, module: nn.Module) -> Watched | None:
        """Return what is known of a module that is watched, not of a later one at its address."""
        watched = self._watched.get(id(module))
        if watched is not None and watched.module() is module:
            return watched
        return self._replicas.original(module) if is_replica(module) else None

    def prepare(self, modules: list[nn.Module]) -> None:
        """Put ours behind the hooks that the modules have already."""
        for module in modules:
            if module._forward_pre_hooks:
                self._waits(module, pre=True)
            if module._forward_hooks:
                self._waits(module, pre=False)

    def _waits(self, module: nn.Module, *, pre: bool) -> bool:
        """Tell whether a hook of ours runs behind the module's own in this very call."""
        if is_replica(module) and (watched := self._find(module)) is not None:
            module = watched.module() or module  # their hooks are in one table
        return self._behind.waits(module, pre=pre)

    def drop_raised(self) -> None:
        """Let go of the calls of this thread whose forward raised."""
        self.open.enter(sys._getframe())

    def close(self) -> None:
        """Take ours away from the modules that have hooks of their own."""
        if self._chosen is not None:
            self.unread.update(self._chosen.unmet())
        self._behind.remove()
        self._regions.forget()
        self._report_cramped()
        self.open.stack.clear()
        if self._hierarchy is not None:
            self._hierarchy.forget()

    def _report_cramped(self) -> None:
        """Say that modules ran too close to the recursion limit to be recorded."""
        if self._cramped:
            self._cramped = False
            self._sink.fault(None, "forward", RecursionError("too close to the recursion limit"))

    # -- the work -------------------------------------------------------------------------------

    def _before(
        self,
        watched: Watched,
        module: nn.Module,
        args: Any,
        kwargs: Any,
        frame: FrameType,
        *,
        late: bool,
    ) -> None:
        if torch._C._get_tracing_state() is not None:
            return
        clock = self._clock
        task = torch._C._current_graph_task_id()
        opened = self.open
        depth, stack, place = opened.enter(frame), opened.stack, opened.place
        outermost = depth == 0 and task == -1 and place.repeats is None
        if outermost:
            late |= overtaken(self, ModuleHooks)
            self._begin(watched, module)
        watched.called = True
        call = self._repeated(watched, frame, place, task)
        if call is None:
            if not (clock.recording or watched.is_root or outermost):
                return
            call = self._call(watched, module, frame, place, stack[-1] if stack else None)
        call.module = id(module)
        stack.append(call)
        if module._forward_hooks:
            self._waits(module, pre=False)
        if call.recorded:
            leaves = arguments(args, kwargs, self.unread)
            if self._whole:
                self._see(call, "input", leaves, late=late)
            else:
                self._see_beside(call, module, (args, kwargs), leaves, late=late)
            if self._gradients.reads:
                self._enter(call, leaves, late=late)

    def _begin(self, watched: Watched, module: nn.Module) -> None:
        """Take note of a forward that nothing watched runs around; of replicas once."""
        if not is_replica(module):
            self._outermost(watched)
            return
        with self._replicas.lock:
            if not watched.is_root or self._replicas.first(module):
                self._outermost(watched)

    def _outermost(self, watched: Watched) -> None:
        """Let the clock see the forward of a root, and what else can only begin a step."""
        self._report_cramped()
        clock = self._clock
        again = watched.calls > 0 and not clock.expects_training and watched.home is None
        counts = clock.is_due() or watched.is_root or not clock.begun or again
        if counts:
            begins = clock.root_forward(root=watched.is_root, again=again)
            (self._begins if begins else self._goes_on)()

    def _call(
        self,
        watched: Watched,
        module: nn.Module,
        frame: FrameType,
        place: Place,
        around: Call | None,
    ) -> Call:
        """Return the next call of a module."""
        clock = self._clock
        renamed = type(module) is not watched.cls and watched.renamed()
        if renamed and clock.recording:  # lazy until now
            self._built(watched)
        number, watched.calls = watched.calls, watched.calls + 1
        training, choice, recording = bool(module.training), WHOLE, clock.recording
        if self._chosen is not None and recording:
            choice = self._chosen.module(watched, number, around, training=training)
        heard = self._only.hears(watched, choice.silent)
        seen = heard is not None and heard.selected and recording
        recorded = seen and (self._records or heard is self._only.now)
        when = (clock.step, clock.micro_step, number)
        call = Call(heard or watched, id(frame), *when, training, recorded=recorded)
        call.watched.seen |= seen
        call.place = place
        if choice is not WHOLE:
            call.choice, call.silent = choice, choice.silent
        place.note(watched, call)
        if self._hierarchy is not None and recording:
            if heard is None and self._only.now is not None:
                self._hierarchy.passed_over(call, around)
            else:
                self._hierarchy.begin(call, around, frame)
        return call

    def _repeated(self, watched: Watched, frame: FrameType, place: Place, task: int) -> Call | None:
        """Return the call if it repeats an earlier one, None if it is one of its own."""
        clock, repeats = self._clock, place.repeats
        if repeats is None and task == -1:
            return None
        found = place.original(watched, task)
        reentrant = repeats is not None and repeats.is_checkpoint and repeats.is_function
        watched.checkpointed |= reentrant
        if found is not None:
            about = (found.step, found.micro_step, found.number, found.training)
            call = Call(found.watched, id(frame), *about, True, found.recorded, found)
            if found.choice is not WHOLE:
                call.choice, call.silent = found.choice._replace(closes=False), found.silent
            place.note(watched, found)
        elif repeats is not None and repeats.is_checkpoint:  # one whose forward was not seen
            when = (clock.step, clock.micro_step)
            call = Call(watched, id(frame), *when, 0, False, True, recorded=False)
        else:
            return None
        call.place = place
        return call

    def _see_beside(
        self,
        call: Call,
        module: nn.Module,
        given: tuple[Any, Any],
        leaves: list[Leaf],
        *,
        late: bool,
    ) -> None:
        """Hand over what goes in where not only tensors are recorded, or not all of them."""
        if self._extras is not None and not late:
            self._extras.entering(call, module, leaves)
        if call.silent == "forward":
            return
        self._see(call, "input", leaves, late=late)
        if self._values is not None and not late:
            self._values.given(call, *given, self.unread)

    def _see_results(self, call: Call, output: Any, leaves: list[Leaf], *, late: bool) -> None:
        if call.silent != "forward":
            self._see(call, "output", leaves, late=late)
            if self._values is not None and not late:
                self._values.returned(call, output, self.unread)
        if self._extras is not None and (module := call.watched.module()) is not None:
            self._extras.leaving(call, module, [] if late else leaves)

    def _enter(self, call: Call, leaves: list[Leaf], *, late: bool) -> None:
        """Attach to the graph of a call's inputs."""
        if call.silent != "backward" and call.place.flows and torch.is_grad_enabled():
            if late:
                self._gradients.owe(call, "grad_input", leaves)
            call.entered = self._gradients.entering([] if late else leaves)

    def _after(self, call: Call, output: Any, *, late: bool) -> None:
        entered, call.entered = call.entered, None
        if self._chosen is not None:
            self._chosen.ended(call)
        leaves = results(output, self.unread)
        if call.watched.is_root and not call.recompute:
            self._gradients.notice(call, leaves)
        if not call.recorded:
            return
        if self._whole:
            self._see(call, "output", leaves, late=late)
        else:
            self._see_results(call, output, leaves, late=late)
        if entered is not None:
            original = call.original or call
            if late:
                self._gradients.lost(original, entered, leaves)
            else:
                self._gradients.leaving(original, entered, leaves)

    def _see(self, call: Call, role: Role, leaves: list[Leaf], *, late: bool) -> None:
        """Hand tensors over; `late` says that a hook of the user's may still replace them."""
        if role not in self._roles or (call.recompute and not self._recomputes):
            return
        for leaf, t in leaves:
            if late:
                self._sink.absent(call, (role, leaf), Facts.of(t), "unsupported")
            else:
                self._sink.tensor(call, (role, leaf), t)


def _kwargs(frame: FrameType) -> dict[str, Any]:
    """Return the keyword arguments of the call that runs in torch's frame.

    A process-wide pre hook is not handed them. The alternative, a mark in every module's table
    of hooks that want keywords, would be copied and saved with the module.
    """
    found = local(frame, "kwargs")
    return found if isinstance(found, dict) else {}
