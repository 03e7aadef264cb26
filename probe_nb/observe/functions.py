"""API level: every call of a function of torch, seen by a function mode of torch's own.

Nothing is replaced. Torch calls the mode instead of a function, the mode calls the function. While
it does the mode is off, so what a function calls is part of it and has no rows of its own.
See docs/api-level.md for what a mode cannot see.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Collection, Iterator
from types import FrameType
from typing import Any, Final, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from probe_nb.errors import ConfigError
from probe_nb.observe.arguments import Arguments
from probe_nb.observe.aside import aside
from probe_nb.observe.calls import WHOLE, Call, Clock
from probe_nb.observe.chosen import Chosen
from probe_nb.observe.compiled import beside
from probe_nb.observe.functions_called import Written
from probe_nb.observe.functions_names import Known, Namer
from probe_nb.observe.functions_registered import Registered, Seen, named
from probe_nb.observe.functions_stack import Place
from probe_nb.observe.gradients import Gradients
from probe_nb.observe.graph import Entered
from probe_nb.observe.hierarchy import Hierarchy
from probe_nb.observe.leaves import arguments, results
from probe_nb.observe.modules import ModuleHooks
from probe_nb.observe.only import Only
from probe_nb.observe.select import Watched
from probe_nb.observe.sink import Facts, Sink
from probe_nb.terms import Role

_WRITES_UNSEEN: Final = frozenset(
    f"{prefix}.{name}"
    for prefix in ("Functional", "Torch")
    for name in ("batch_norm", "instance_norm", "native_batch_norm", "batch_norm_update_stats")
)
"""Functions that write running statistics, which no version tells of."""

_task: Final[Callable[[], int]] = torch._C._current_graph_task_id
_tracing: Final[Callable[[], Any]] = torch._C._get_tracing_state


class Begun(NamedTuple):
    """What is remembered of a call while the function runs."""

    call: Call
    entered: Entered | None
    written: Any
    """What the call writes to and does not return."""
    graph: bool
    """Whether autograd sees what it does."""


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
        rewrote: Callable[[], object],
        hierarchy: Hierarchy,
        values: Arguments | None = None,
        chosen: Chosen | None = None,
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
            rewrote: Called when a function wrote where autograd does not see it.
            hierarchy: Takes note of what runs inside what.
            values: Records what is no tensor, where that is asked for.
            chosen: Says what of a call is recorded, where not all is.
        """
        self._clock, self._gradients, self._sink = clock, gradients, sink
        self._inputs, self._outputs = "input" in roles, "output" in roles
        self._only, self._open, self._unread = only, modules.open, modules.unread
        self._everywhere, self._begins, self._rewrote = everywhere, begins, rewrote
        self._chosen = chosen
        self._namer, self._written = Namer(wants), Written()
        self._counts: dict[str, Iterator[int]] = {}
        self._sites: dict[tuple[Watched | None, str], Watched] = {}
        self._mode = _Mode(self)
        self.place = Place(self._mode, modules.knows)
        self._cramped = False
        self._hierarchy, self._values = hierarchy, values
        self.registered = Registered(self, hierarchy.functions)
        self._renamed: list[tuple[Any, str, Any]] = []
        self.closed = True

    # -- lifetime -------------------------------------------------------------------------------

    def open(self) -> None:
        """See what this thread calls from here on."""
        self.closed = False
        self.registered.add_built_in()
        self.place.put()

    def close(self) -> None:
        """Take the mode away; may be repeated. In another thread it is only silenced."""
        self.closed = True
        self.place.leave()
        self._namer.forget()
        self._written.forget()
        self.registered.restore()
        if self._cramped:
            self._cramped = False
            self._sink.fault(None, "function", RecursionError("too close to the recursion limit"))

    def begin_step(self) -> None:
        """Count calls from 0 again."""
        self._counts.clear()
        self.registered.add_built_in()

    # -- functions of the user's ----------------------------------------------------------------

    def register(self, owner: Any, name: Any, prefix: Any) -> None:
        """Record a function as `prefix.name`; one that a mode does not see is replaced.

        Raises:
            ConfigError: There is no such function, or a name is no text.
        """
        if not isinstance(name, str) or not isinstance(prefix, str | None):
            raise ConfigError("`register_custom_api` takes a module, a name and a prefix.")
        known = getattr(owner, "__name__", type(owner).__name__)
        full, function = f"{prefix or known}.{name}", getattr(owner, name, None)
        if self._namer.rename(function, full):
            self._renamed.append((owner, name, function))
        else:
            self.registered.add(owner, name, named(full), custom=True)

    def unregister(self, owner: Any = None, name: str | None = None) -> int:
        """Undo `register`, of all functions or one; return how many there were."""
        chosen = [
            each
            for each in self._renamed
            if (owner is None or each[0] is owner) and name in (None, each[1])
        ]
        for each in chosen:
            self._namer.own_name(each[2])
            self._renamed.remove(each)
        return len(chosen) + self.registered.restore(owner, name, custom=True)

    def fault(self, error: Exception) -> None:
        """Take an error of our own."""
        self._sink.fault(None, "function", error)

    # -- around a call --------------------------------------------------------------------------

    def begin(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Begun | None:
        """See what a function is given; None if its call is not recorded."""
        known = self._namer.known(function)
        if known is None or not self._clock.recording or self.registered.running():
            return None
        return self._guarded(sys._getframe(1), known, Seen("", args, kwargs))

    def begin_registered(self, seen: Seen) -> Begun | None:
        """See what a registered function is given; None if its call is not recorded."""
        if self.closed or not self._clock.recording or torch.compiler.is_compiling():
            return None
        return self._guarded(sys._getframe(1), None, seen)

    def _guarded(self, frame: FrameType, known: Known | None, seen: Seen) -> Begun | None:
        if self._only.now is not None or _task() != -1 or _tracing() is not None:
            return None
        watched = None
        try:
            around = self._around(frame)
            watched = None if around is None else around.watched
            chosen = self._everywhere if watched is None else watched.selected
            if known is not None and chosen:
                name = self._namer.name(known, seen.args, frame)
                args, kwargs = self._written.of(seen.args, seen.kwargs, frame)
                seen = Seen(name, args, kwargs)
            if chosen and seen.name:
                with aside():
                    return self._begin(seen, around, frame)
        except RecursionError:  # there is no room on the stack, not even for a call to say so
            self._cramped = True
        except Exception as error:  # a fault of ours is never the user's
            self._sink.fault(watched, "function", error)
        return None

    def end(self, begun: Begun, result: Any, *, late: bool = False) -> None:
        """See what it gave back; `late` says that what it gives is not there yet."""
        try:
            with aside():
                self._end(begun, result, late=late)
        except RecursionError:
            self._cramped = True
        except Exception as error:  # a fault of ours is never the user's
            self._sink.fault(begun.call.watched, "function", error)

    # -- the work -------------------------------------------------------------------------------

    def _around(self, frame: FrameType) -> Call | None:
        """Return the innermost call of a module that runs around a frame."""
        opened = self._open
        if not opened.stack:
            return None
        if not opened.around(frame):
            opened.enter(frame)  # drops what was left by an interrupt
        return opened.stack[-1] if opened.stack else None

    def _begin(self, seen: Seen, around: Call | None, frame: FrameType) -> Begun | None:
        clock, name, args = self._clock, seen.name, seen.args
        if not clock.begun and clock.root_forward(root=False):
            self._begins()
        counter = self._counts.get(name) or self._counts.setdefault(name, itertools.count())
        number = next(counter)  # in one go: other threads count too
        choice = WHOLE if self._chosen is None else self._chosen.function(name, number, around)
        if choice.silent == "all":
            return None
        watched = self._watched(None if around is None else around.watched, name)
        when = (
            (clock.step, clock.micro_step) if around is None else (around.step, around.micro_step)
        )
        training = around is not None and around.training
        call = Call(watched, 0, *when, number, training, silent=choice.silent)
        self._hierarchy.begin(call, around, frame)
        leaves = arguments(args, seen.kwargs, self._unread)
        if self._inputs and call.silent != "forward":
            for leaf, t in leaves:
                self._sink.tensor(call, ("input", leaf), t)
        if self._values is not None and call.silent != "forward":
            self._values.given(call, args, seen.kwargs, self._unread)
        entered = None
        flows = seen.graph and call.silent != "backward" and self._gradients.reads
        if flows and torch.is_grad_enabled():
            entered = self._gradients.entering(leaves)
        written = args[0] if name == "Tensor.__setitem__" else seen.written
        return Begun(call, entered, written, seen.graph)

    def _end(self, begun: Begun, result: Any, *, late: bool) -> None:
        call = begun.call
        if not begun.graph or call.watched.api in _WRITES_UNSEEN:
            self._rewrote()
        result = begun.written if result is None else result
        leaves = results(result, self._unread)
        if self._outputs and call.silent != "forward":
            for leaf, t in leaves:
                if late:
                    self._sink.absent(call, ("output", leaf), Facts.of(t), "unsupported")
                else:
                    self._sink.tensor(call, ("output", leaf), t)
        if self._values is not None and not late and call.silent != "forward":
            self._values.returned(call, result, self._unread)
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
