"""API level: every call of a function of torch, seen by a function mode of torch's own.

Nothing is replaced. Torch calls the mode instead of a function, the mode calls the function. While
it does the mode is off, so what a function calls is part of it and has no rows of its own.
See docs/api-level.md for what a mode cannot see.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any, Final, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from probe_nb.observe.aside import aside
from probe_nb.observe.calls import Call, Clock
from probe_nb.observe.compiled import beside
from probe_nb.observe.functions_names import Names
from probe_nb.observe.functions_spelling import Spelling
from probe_nb.observe.functions_stack import Place
from probe_nb.observe.gradients import Gradients
from probe_nb.observe.graph import Entered
from probe_nb.observe.leaves import arguments, results
from probe_nb.observe.modules import ModuleHooks
from probe_nb.observe.only import Only
from probe_nb.observe.select import Watched
from probe_nb.observe.sink import Sink
from probe_nb.terms import Role

OF_CALLS: Final[frozenset[Role]] = frozenset({"input", "output", "grad_output", "grad_input"})
"""What is recorded of a call of a function."""

_task: Final[Callable[[], int]] = torch._C._current_graph_task_id
_handles: Final = torch.overrides.handle_torch_function.__code__
"""Calls modes for functions that are written in Python, from inside of them."""

_tracing: Final[Callable[[], Any]] = torch._C._get_tracing_state


class Known(NamedTuple):
    """What is known of a function."""

    name: str
    """As its rows have it: `Tensor.add`."""
    spelt: bool
    """Whether its calls may have other names, such as `Tensor.__add__`."""


class Begun(NamedTuple):
    """What is remembered of a call while the function runs."""

    call: Call
    entered: Entered | None
    written: Any
    """What the call writes to and does not return."""


class _Outside(type):
    """Makes the class of what is around calls outside of any module: it has no name."""


_NOWHERE: Final[Any] = _Outside("", (), {})
_gone: Final[Any] = lambda: None  # noqa: E731 - stands for a reference to a module


class Functions:
    """What happens before and after a function of torch."""

    def __init__(
        self,
        clock: Clock,
        gradients: Gradients,
        sink: Sink,
        roles: Collection[Role],
        *,
        only: Only,
        modules: ModuleHooks,
        wants: Callable[[str, str], bool],
        everywhere: bool,
        begins: Callable[[], object],
    ) -> None:
        """Tie the parts together; nothing is seen before `open`.

        Args:
            clock: Tells the step.
            gradients: Attaches to the graphs of the calls.
            sink: Takes what is seen.
            roles: What is recorded of a call.
            only: Knows whether one module alone is recorded.
            modules: Knows the module calls that run, and takes what was not looked at.
            wants: Tells of a prefix and a name whether the function is recorded.
            everywhere: Record also what no chosen module runs around.
            begins: Called when a step begins with a function.
        """
        self._clock, self._gradients, self._sink = clock, gradients, sink
        self._inputs, self._outputs = "input" in roles, "output" in roles
        self._only, self._open, self._unread = only, modules.open, modules.unread
        self._wants, self._everywhere, self._begins = wants, everywhere, begins
        self._names, self._spelling = Names(), Spelling()
        self._known: dict[Any, Known | None] = {}
        self._wanted: dict[str, bool] = {}
        self._counts: Counter[str] = Counter()
        self._sites: dict[tuple[Watched | None, str], Watched] = {}
        self._mode = _Mode(self)
        self.place = Place(self._mode)
        self._cramped = False
        self.closed = True

    # -- lifetime -------------------------------------------------------------------------------

    def open(self) -> None:
        """See what this thread calls from here on."""
        self.closed = False
        self.place.put()

    def close(self) -> None:
        """Take the mode away; may be repeated. In another thread it is only silenced."""
        self.closed = True
        self.place.leave()
        self._known.clear()
        self._spelling.forget()
        if self._cramped:
            self._cramped = False
            self._sink.fault(None, "function", RecursionError("too close to the recursion limit"))

    def begin_step(self) -> None:
        """Count calls from 0 again."""
        self._counts.clear()

    # -- around a call --------------------------------------------------------------------------

    def begin(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Begun | None:
        """See what a function is given; None if its call is not recorded."""
        known = self._find(function)
        if known is None or not self._clock.recording or self._only.now is not None:
            return None
        if _task() != -1 or _tracing() is not None:
            return None
        watched = None
        try:
            frame = sys._getframe(1)
            around = self._around(frame)
            watched = None if around is None else around.watched
            chosen = self._everywhere if watched is None else watched.selected
            name = self._name(known, args, frame) if chosen else None
            if name is not None:
                with aside():
                    return self._begin(name, around, args, kwargs)
        except RecursionError:  # there is no room on the stack, not even for a call to say so
            self._cramped = True
        except Exception as error:  # a fault of ours is never the user's
            self._sink.fault(watched, "function", error)
        return None

    def end(self, begun: Begun, result: Any) -> None:
        """See what it gave back."""
        try:
            with aside():
                self._end(begun, result)
        except RecursionError:
            self._cramped = True
        except Exception as error:  # a fault of ours is never the user's
            self._sink.fault(begun.call.watched, "function", error)

    # -- the work -------------------------------------------------------------------------------

    def _find(self, function: Any) -> Known | None:
        """Return what is known of a function; None if it is not recorded."""
        try:
            return self._known[function]
        except KeyError:
            return self._learn(function)
        except Exception:  # an object of the user's that is no key of a dict
            return None

    def _learn(self, function: Any) -> Known | None:
        """Find out about a function that is called for the first time."""
        named, known = self._names.of(function), None
        if named is not None:
            name = ".".join(named)
            spelt = self._spelling.may_differ(name)
            known = Known(name, spelt) if spelt or self._wants(*named) else None
        self._known[function] = known
        return known

    def _name(self, known: Known, args: Any, frame: FrameType) -> str | None:
        """Return the name of a call, as the line that calls it is written; None if not wanted."""
        if not known.spelt:
            return known.name
        caller: FrameType | None = frame
        while caller is not None and caller.f_code.co_name == "__torch_function__":
            caller = caller.f_back  # ours, and those of modes of the user's above it
            if caller is not None and caller.f_code is _handles:
                caller = caller.f_back and caller.f_back.f_back  # past torch and the function
        name = known.name if caller is None else self._spelling.of(known.name, args, caller)
        wanted = self._wanted.get(name)
        if wanted is None:
            prefix, _, rest = name.partition(".")
            wanted = self._wanted[name] = self._wants(prefix, rest)
        return name if wanted else None

    def _around(self, frame: FrameType) -> Call | None:
        """Return the innermost call of a module that runs around a frame."""
        opened = self._open
        if not opened.stack:
            return None
        if not opened.around(frame):
            opened.enter(frame)  # drops what was left by an interrupt
        return opened.stack[-1] if opened.stack else None

    def _begin(self, name: str, around: Call | None, args: Any, kwargs: Any) -> Begun:
        clock = self._clock
        if not clock.begun and clock.root_forward(root=False):
            self._begins()
        number = self._counts[name]
        self._counts[name] = number + 1
        watched = self._watched(None if around is None else around.watched, name)
        when = (
            (clock.step, clock.micro_step) if around is None else (around.step, around.micro_step)
        )
        training = around is not None and around.training
        call = Call(watched, 0, *when, number, training)
        leaves = arguments(args, kwargs, self._unread)
        if self._inputs:
            for leaf, t in leaves:
                self._sink.tensor(call, ("input", leaf), t)
        entered = None
        if self._gradients.reads and torch.is_grad_enabled():
            entered = self._gradients.entering(leaves)
        return Begun(call, entered, args[0] if name == "Tensor.__setitem__" else None)

    def _end(self, begun: Begun, result: Any) -> None:
        call = begun.call
        leaves = results(begun.written if result is None else result, self._unread)
        if self._outputs:
            for leaf, t in leaves:
                self._sink.tensor(call, ("output", leaf), t)
        if begun.entered is not None:
            self._gradients.leaving(call, begun.entered, leaves)

    def _watched(self, around: Watched | None, name: str) -> Watched:
        """Return what the rows of a function have in common, inside one module."""
        found = self._sites.get((around, name))
        if found is None or (around is not None and found.path != around.path):
            about = (_gone, "", "", _NOWHERE)
            if around is not None:
                about = (around.module, around.model, around.path, around.cls)
            found = Watched(*about, is_root=False, selected=True, api=name)
            self._sites[around, name] = found
        return found


class _Mode(TorchFunctionMode):
    """What torch calls instead of a function."""

    def __init__(self, functions: Functions) -> None:
        super().__init__()
        self.functions = functions

    @beside
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function, and look at what goes in and comes out."""
        __tracebackhide__ = True
        kwargs = {} if kwargs is None else kwargs
        if torch.compiler.is_compiling() or self.functions.closed:
            return func(*args, **kwargs)
        begun = self.functions.begin(func, args, kwargs)
        result = func(*args, **kwargs)
        if begun is not None:
            self.functions.end(begun, result)
        return result
