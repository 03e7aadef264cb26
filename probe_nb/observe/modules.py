"""Forward pre and post hooks: process-wide, looked up by module identity.

Hooks on the modules themselves would travel with copies and pickles, refuse scripted modules and
switch torch's fused attention off. See docs/decisions/0001-capture.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from probe_nb.observe.calls import Call, Clock, OpenCalls
from probe_nb.observe.gradients import Gradients
from probe_nb.observe.leaves import arguments, results
from probe_nb.observe.select import Watched
from probe_nb.observe.sink import Sink
from probe_nb.terms import Role


class ModuleHooks:
    """What happens before and after the forward of a watched module."""

    def __init__(  # noqa: PLR0913 - the parts it ties together
        self,
        watched: dict[int, Watched],
        clock: Clock,
        gradients: Gradients | None,
        sink: Sink,
        roles: frozenset[Role],
        begins: Callable[[], None],
    ) -> None:
        """Tie the parts together; `begins` is called when a step begins, before its first row."""
        self._watched = watched
        self._clock = clock
        self._gradients = gradients
        self._sink = sink
        self._inputs = "input" in roles
        self._outputs = "output" in roles
        self._begins = begins
        self.open = OpenCalls()

    # torch calls these two. They hold the only `except` between us and the user's model.

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Forward pre hook of every module in the process."""
        if torch.compiler.is_compiling():
            return
        watched = self._watched.get(id(module))
        if watched is None or not self._alive(watched, module):
            return
        try:
            if torch._C._get_tracing_state() is None:
                self._before(watched, module, args, sys._getframe(1))
        except Exception as error:  # noqa: BLE001 - a fault of ours is never the user's
            self._sink.fault(watched, "forward", error)

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Forward hook of every module in the process."""
        if torch.compiler.is_compiling():
            return
        watched = self._watched.get(id(module))
        if watched is None:
            return
        try:
            call = self.open.leave(id(sys._getframe(1)))
            if call is not None:
                self._after(call, output)
        except Exception as error:  # noqa: BLE001 - a fault of ours is never the user's
            self._sink.fault(watched, "forward", error)

    def _alive(self, watched: Watched, module: nn.Module) -> bool:
        """Tell whether this is the module that was watched, not a later one at its address."""
        return watched.module() is module

    def _before(
        self, watched: Watched, module: nn.Module, args: tuple[Any, ...], frame: FrameType
    ) -> None:
        clock = self._clock
        recompute = torch._C._current_graph_task_id() != -1
        depth = self.open.enter(frame)
        if depth == 0 and not recompute:
            self._outermost(watched)
        if not clock.recording and not watched.is_root:
            return
        call = self._call(watched, module, id(frame), recompute=recompute)
        self.open.stack.append(call)
        if watched.selected and clock.recording:
            self._observe_inputs(call, arguments(args, _kwargs(frame)))

    def _outermost(self, watched: Watched) -> None:
        """Let the clock see the forward of a root, and any forward after an optimizer step."""
        if watched.is_root or self._clock.due or not self._clock.begun:
            if self._clock.root_forward():
                self._begins()
        elif watched.calls and not self._clock.expects_training:
            if self._clock.root_forward():
                self._begins()

    def _call(
        self, watched: Watched, module: nn.Module, frame: int, *, recompute: bool
    ) -> Call:
        clock = self._clock
        if type(module) is not watched.cls:
            watched.cls = type(module)
            watched.sites.clear()
        watched.seen = True
        if recompute:
            watched.recomputed += 1
            number = max(watched.calls - watched.recomputed, 0)
        else:
            number, watched.calls = watched.calls, watched.calls + 1
            watched.recomputed = 0
        return Call(
            watched, frame, clock.step, clock.micro_step, number, module.training, recompute
        )

    def _observe_inputs(self, call: Call, leaves: list[tuple[str, Tensor]]) -> None:
        if self._inputs and not call.recompute:
            for leaf, t in leaves:
                self._sink.tensor(call, "input", leaf, t)
        if self._gradients is not None and torch.is_grad_enabled():
            call.entered = self._gradients.entering(leaves)

    def _after(self, call: Call, output: Any) -> None:
        entered, call.entered = call.entered, None
        if not call.watched.selected or not self._clock.recording:
            return
        leaves = results(output)
        if self._outputs and not call.recompute:
            for leaf, t in leaves:
                self._sink.tensor(call, "output", leaf, t)
        if self._gradients is not None and entered is not None:
            self._gradients.leaving(call, entered, leaves)


def _kwargs(frame: FrameType) -> dict[str, Any]:
    """Return the keyword arguments of the call that runs in torch's frame.

    A process-wide pre hook is not handed them. The alternative, a mark in every module's table
    of hooks that want keywords, would be copied and saved with the module.
    """
    found = frame.f_locals.get("kwargs")
    return found if isinstance(found, dict) else {}
