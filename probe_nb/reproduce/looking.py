"""Where random calls show: torch's operators, Python's calls, and the names of NumPy's methods."""

from __future__ import annotations

import functools
import inspect
import random
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import BuiltinFunctionType, FrameType
from typing import Any, Final

from probe_nb.reproduce.finding import Draw, Seen
from probe_nb.reproduce.names import Names
from probe_nb.reproduce.operators import Operators
from probe_nb.reproduce.standing import of_numpy, python_generator

AnyFunction = Callable[..., Any]

_PROFILED: Final = (
    "Another profiler runs here: the calls of Python's random are not seen, and torch's functions "
    "are named after their operators."
)
_NOT_DRAWS: Final = frozenset({"bit_generator", "get_state", "seed", "set_state", "spawn"})
_SOURCE: Final = random.Random.choice.__code__.co_filename
_CODES: Final = {
    function.__code__: name
    for owner in (random.SystemRandom, random.Random)
    for name, function in vars(owner).items()
    if inspect.isfunction(function)
    and not name.startswith("_")
    and (owner, name) != (random.SystemRandom, "getrandbits")
    and name not in {"seed", "getstate", "setstate"}
}
"""The functions of Python's generators that are written in Python.

NumPy asks the system for bits whenever it makes a generator, also for one that it seeds at once.
"""


def attach(attached: ExitStack, seen: Seen) -> tuple[str, ...]:
    """Begin to look; what closes the stack ends it. Return what will not be seen."""
    calls = Calls(seen)
    _numpys(attached, seen)
    attached.enter_context(Operators(seen, calls.native))
    if not calls.can_attach():
        return (_PROFILED,)
    calls.attach()
    attached.callback(calls.detach)
    return ()


class Calls:
    """A profile function: it is told of each call in its thread, also of functions written in C.

    So no name of Python's is replaced, and a function is seen however it was imported. The profile
    function that was there before is told of everything, too.
    """

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._thread = threading.get_ident()
        self._before: Any = None
        self._running: list[tuple[FrameType, Any]] = []
        """The functions written in C that run now, and the frames that called them."""
        self._is_open = False

    @staticmethod
    def can_attach() -> bool:
        """Tell whether what is there already can be told by us: profilers in C cannot."""
        return sys.getprofile() is None or callable(sys.getprofile())

    def attach(self) -> None:
        """Begin."""
        self._before, self._is_open = sys.getprofile(), True
        sys.setprofile(self._event)

    def detach(self) -> None:
        """End; in another thread than ours it is the next call there that ends it."""
        self._is_open = False
        if threading.get_ident() == self._thread and sys.getprofile() == self._event:
            sys.setprofile(self._before)
        self._running.clear()

    def native(self, frame: FrameType) -> Any:
        """Return the function written in C that a frame is calling, if it can be told."""
        return next((each for caller, each in reversed(self._running) if caller is frame), None)

    def _event(self, frame: FrameType, event: str, arg: Any) -> None:
        if self._before is not None:
            self._before(frame, event, arg)
        if not self._is_open:
            if sys.getprofile() == self._event:
                sys.setprofile(self._before)
        elif event == "c_call":
            self._running.append((frame, arg))
            if arg.__name__ in {"random", "getrandbits"}:
                self._c_method(frame, arg)
        elif event == "call":
            name = _CODES.get(frame.f_code)
            if name is not None:
                self._seen(
                    lambda: _of_python(name, frame.f_locals.get("self"), frame.f_back, frame)
                )
        elif event != "return" and self._running and self._running[-1][0] is frame:
            self._running.pop()

    def _c_method(self, frame: FrameType, function: BuiltinFunctionType) -> None:
        generator = function.__self__
        if issubclass(type(generator), random.Random):
            self._seen(lambda: _of_python(function.__name__, generator, frame, frame))


def _of_python(
    name: str | None, generator: object, caller: FrameType | None, frame: FrameType
) -> Draw | None:
    if caller is not None and caller.f_code.co_filename == _SOURCE:
        return None  # a part of what was seen already
    if generator is python_generator():
        return Draw(f"random.{name}", "python", "global", frame)
    if isinstance(generator, random.SystemRandom):
        return Draw(f"random.SystemRandom.{name}", "python", "system", frame)
    return Draw(f"random.Random.{name}", "python", "own", frame)


def _numpys(attached: ExitStack, seen: Seen) -> None:
    """Replace NumPy's functions and methods: before Python 3.12 nothing tells of their calls."""
    room = sys.modules.get("numpy.random")
    if room is None:
        return
    watched, names = Watched(seen, room), Names()
    attached.callback(names.restore)
    methods = [
        (owner, name)
        for owner in (room.Generator, room.RandomState)
        for name in vars(owner)
        if not name.startswith("_") and name not in _NOT_DRAWS
    ]
    names.replace(of_numpy(), methods, watched)
    names.replace([room.default_rng], [], watched.unseeded)


class Watched:
    """Makes functions that tell of their calls and call NumPy's."""

    def __init__(self, seen: Seen, room: Any) -> None:
        self._seen = seen
        self._global = room.mtrand._rand  # noqa: SLF001 - its methods are the functions
        self._thread = threading.get_ident()
        self._inside = False

    def __call__(self, function: AnyFunction) -> AnyFunction:
        """Return a function that stands in for a function or method of `numpy.random`."""
        is_method = not hasattr(inspect.unwrap(function), "__self__")
        name = function.__qualname__ if is_method else function.__name__

        @functools.wraps(function)
        def told(*args: Any, **kwargs: Any) -> Any:
            is_global = not is_method or args[:1] == (self._global,)
            return self._call(function, name, "global" if is_global else "own", args, kwargs)

        return told

    def unseeded(self, default_rng: AnyFunction) -> AnyFunction:
        """Return a function that stands in for `default_rng`, which draws if it has no seed."""

        @functools.wraps(default_rng)
        def told(seed: Any = None) -> Any:
            if seed is None:
                return self._call(default_rng, "default_rng", "system", (), {})
            return default_rng(seed)

        return told

    def _call(
        self, function: AnyFunction, name: str, whose: str, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        if self._inside or threading.get_ident() != self._thread:
            return function(*args, **kwargs)
        self._inside = True
        try:
            frame = sys._getframe(2)  # noqa: SLF001 - there is no other way to the line
            self._seen(lambda: Draw(f"numpy.random.{name}", "numpy", whose, frame))
            return function(*args, **kwargs)
        finally:
            self._inside = False
