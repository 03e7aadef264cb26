"""Stretches of the forward that run once more in the backward: activation checkpointing.

Torch has one object for each such stretch, and that object is there both times: the node of a
custom autograd Function, which is handed to its forward and to its backward, and the frame of a
checkpoint that is not reentrant. Both are found on Python's stack, so which call a repeated call
stands for is known, whatever the order of the repeats. See docs/decisions/0008.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from torch.autograd.function import BackwardCFunction, Function
from torch.utils import checkpoint

if TYPE_CHECKING:
    from probe_nb.observe.calls import Call
    from probe_nb.observe.select import Watched


def _code(function: Any) -> CodeType | None:
    return getattr(inspect.unwrap(function), "__code__", None)


def _inner_code(function: Any, name: str) -> CodeType | None:
    """Return the code of a function that is defined inside another."""
    code = _code(function)
    found = [c for c in (code.co_consts if code else ()) if getattr(c, "co_name", "") == name]
    return found[0] if found else None


FUNCTION: Final = _code(Function.apply)
"""Runs the forward of a custom Function."""
CHECKPOINT: Final = _code(checkpoint.checkpoint)
"""Runs the forward of a checkpoint."""
BACKWARD: Final = _code(BackwardCFunction.apply)
"""Runs the backward of a custom Function, which may repeat its forward."""
BACKWARD_BOXED: Final = _code(getattr(BackwardCFunction, "apply_boxed", BackwardCFunction.apply))
UNPACK: Final = _inner_code(checkpoint._checkpoint_hook.__init__, "unpack_hook")
"""Repeats the forward of a checkpoint, for the tensors that it did not keep."""

_MARKS: Final = {id(code) for code in (FUNCTION, CHECKPOINT, BACKWARD, BACKWARD_BOXED, UNPACK)}
_TABLES: Final = frozenset(("locals", "vars", "dir", "eval", "exec"))
_ROOM: Final = 64
_KEEPS: Final = sys.version_info < (3, 13)
"""A frame keeps the table of its variables that somebody asked for."""


class Mark(NamedTuple):
    """A frame of torch's, on the stack between two calls, that runs a region."""

    code: CodeType
    frame: FrameType
    called: FrameType
    """The frame that it called."""


class Region:
    """The calls that ran in one such stretch, by module, in order."""

    def __init__(self, key: Any, outer: Region | None = None, *, known: bool = True) -> None:
        """Begin one that belongs to the object `key`; `known` says that its forward was seen."""
        self.key = weakref.ref(key) if key is not None else lambda: None
        self.outer = outer
        self.is_known = known
        self.is_function = not isinstance(key, checkpoint._CheckpointFrame)
        """Gradients flow back through what it repeats; else only saved tensors are taken."""
        cls = getattr(key, "_forward_cls", None)
        self.is_checkpoint = not self.is_function or cls is checkpoint.CheckpointFunction
        """All that it does in the backward is to repeat."""
        self._calls: dict[Watched, list[Call]] = {}
        self._repeated: dict[tuple[int, Watched], int] = {}

    def note(self, watched: Watched, call: Call) -> None:
        """Take note of a module's call, here and in the regions around."""
        region: Region | None = self
        while region is not None:
            region._calls.setdefault(watched, []).append(call)
            region = region.outer

    def repeat(self, watched: Watched, task: int) -> Call | None:
        """Return the call that a module now repeats, in one graph task; None if there is none."""
        key = (task, watched)
        place = self._repeated[key] = self._repeated.get(key, -1) + 1
        calls = self._calls.get(watched, [])
        return calls[place] if place < len(calls) else None


class Place(NamedTuple):
    """Where a call runs: in a region of the forward, in one that is repeated, or in neither."""

    region: Region | None = None
    repeats: Region | None = None

    @property
    def flows(self) -> bool:
        """Whether gradients flow back through what runs here."""
        return self.repeats is None or self.repeats.is_function

    def note(self, watched: Watched, call: Call) -> None:
        """Remember that a module ran here, so that it may be repeated."""
        if self.region is not None:
            self.region.note(watched, call)
            waiting = watched.unrepeated
            if waiting and waiting[0].step != call.step:
                waiting.clear()
            if self.region.is_function:
                waiting.append(call)

    def original(self, watched: Watched, task: int) -> Call | None:
        """Return the call that a module repeats here, in one graph task.

        Where torch does not say what a backward repeats, it is the newest call inside a custom
        Function that was not repeated yet.
        """
        region, waiting = self.repeats, watched.unrepeated
        found = None if region is None else region.repeat(watched, task)
        if region is None or not (region.is_known or region.is_checkpoint):
            found = waiting[-1] if waiting else None
        if found in waiting:
            waiting.remove(found)
        return found


class Regions:
    """The regions whose objects still live."""

    def __init__(self) -> None:
        """Know of none."""
        self._known: dict[int, Region] = {}
        self._room = _ROOM

    def place(self, around: Place, marks: list[Mark]) -> Place:
        """Return where a call runs, given where the one around it does and what lies between."""
        for mark in reversed(marks):
            around = self._inside(around, mark)
        return around

    def _inside(self, around: Place, mark: Mark) -> Place:
        if mark.code is FUNCTION:
            return around._replace(region=self._begun(_first_argument(mark.called), around))
        if mark.code is CHECKPOINT:
            key = _checkpoint_frame(mark.frame)
            return around if key is None else around._replace(region=self._begun(key, around))
        key = local(mark.frame, "frame" if mark.code is UNPACK else "self")
        found = self._find(key)
        return Place(None, Region(key, known=False) if found is None else found)

    def _find(self, key: Any) -> Region | None:
        found = self._known.get(id(key))
        return found if found is not None and found.key() is key else None

    def _begun(self, key: Any, around: Place) -> Region:
        found = None if key is None else self._find(key)
        if found is None:
            found = Region(key, around.region)
            if key is not None:
                self._make_room()
                self._known[id(key)] = found
        return found

    def _make_room(self) -> None:
        if len(self._known) >= self._room:
            self._known = {k: r for k, r in self._known.items() if r.key() is not None}
            self._room = 2 * len(self._known) + _ROOM

    def forget(self) -> None:
        """Know of none any more."""
        self._known.clear()


def marks_between(frame: FrameType, until: Call | None) -> list[Mark] | None:
    """Return the marks on the way out from `frame`, innermost first.

    The way ends at the frame of the call `until`: None if it is not met. Without one it ends
    where the stack does.
    """
    marks: list[Mark] = []
    end = 0 if until is None else until.frame
    called, caller = frame, frame.f_back
    while caller is not None:
        if id(caller) == end and until is not None:
            return marks if until.is_in(caller) else None
        code = caller.f_code
        if id(code) in _MARKS:
            marks.append(Mark(code, caller, called))
        called, caller = caller, caller.f_back
    return None if until is not None else marks


def local(frame: FrameType, name: str) -> Any:
    """Return a variable of a frame, and leave no table of all of them behind.

    In it the frame would keep what the code has let go of since.
    """
    table = frame.f_locals
    value = table.get(name)
    if _KEEPS and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        table.clear()
    return value


def _first_argument(frame: FrameType) -> Any:
    """Return the node that torch hands to the forward of a Function; None in the newer style.

    It is not asked of code that may hold the table of its variables: it is the one we would get.
    """
    code = frame.f_code
    if not code.co_varnames or _TABLES.intersection(code.co_names):
        return None
    value = local(frame, code.co_varnames[0])
    if not code.co_argcount and isinstance(value, tuple) and value:  # a decorator's `*args`
        value = value[0]
    return value if isinstance(value, BackwardCFunction) else None


def _checkpoint_frame(frame: FrameType) -> Any:
    """Return what stands for a checkpoint that is not reentrant; None for one that is."""
    generator = getattr(local(frame, "gen"), "gi_frame", None)
    return None if generator is None else local(generator, "new_frame")
