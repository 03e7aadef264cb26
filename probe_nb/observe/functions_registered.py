"""Functions that a mode cannot see: plain Python ones, whose names are replaced and restored.

The user registers them by name. `torch.distributed` is registered by itself where processes have
been joined, MindSpeed's operators and Triton's kernels where these packages are loaded.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

import torch

from probe_nb.errors import ConfigError

_MISSING: Final = object()
_MARK: Final = "probe_nb_replaced"

_WRITES: Final[dict[str, str]] = {
    "all_reduce": "tensor",
    "broadcast": "tensor",
    "reduce": "tensor",
    "all_gather": "tensor_list",
    "all_gather_into_tensor": "output_tensor",
    "all_gather_single": "output_tensor",
    "_all_gather_base": "output_tensor",
    "gather": "gather_list",
    "scatter": "tensor",
    "reduce_scatter": "output",
    "reduce_scatter_tensor": "output",
    "reduce_scatter_single": "output",
    "_reduce_scatter_base": "output",
    "all_to_all": "output_tensor_list",
    "all_to_all_single": "output",
    "send": "",
    "isend": "",
    "recv": "tensor",
    "irecv": "tensor",
}
"""Collectives, and the argument that each writes its result to."""

_BATCH: Final = "batch_isend_irecv"
_BY_IDENTITY: Final = ("isend", "irecv")
"""Collectives that torch knows by what they are."""

_READ_AS_WELL: Final = frozenset(("all_reduce", "broadcast", "reduce"))
"""Collectives that read what they write to."""


class Seen(NamedTuple):
    """What to look at around one call."""

    name: str
    """Prefix and name."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    """What is read, in place of what is only written to."""
    written: Any = None
    """What is looked at afterwards where nothing is returned."""
    graph: bool = True
    """Whether gradients flow through it."""


Look = Callable[[tuple[Any, ...], dict[str, Any]], Seen]


class Observer(Protocol):
    """Looks at what goes in and comes out of a call: `functions.Functions`."""

    def begin_registered(self, seen: Seen) -> Any | None:
        """See what a function is given; None if its call is not recorded."""

    def end(self, begun: Any, result: Any, *, late: bool = False) -> None:
        """See what it gave back."""

    def fault(self, error: Exception) -> None:
        """Take an error of our own."""


class Replaced(NamedTuple):
    """A name that was replaced."""

    owner: Any
    name: str
    before: Any
    """What was stored there; `_MISSING` if it was inherited."""
    ours: Any
    custom: bool
    """Whether the user asked for it."""


class Registered:
    """The names that are replaced."""

    def __init__(self, observer: Observer, rows: dict[int, int]) -> None:
        """Replace nothing yet; `observer` hears of the calls.

        Into `rows` goes, of each thread that runs a registered function, its row in the table of
        calls.
        """
        self._observer = observer
        self._rows = rows
        self._replaced: list[Replaced] = []
        self._built_in: set[str] = set()

    def add(self, owner: Any, name: str, look: Look, *, custom: bool = False) -> None:
        """Replace one name; one that is replaced already stays as it is.

        Raises:
            ConfigError: There is nothing of this name that can be called.
        """
        before = vars(owner).get(name, _MISSING) if hasattr(owner, "__dict__") else _MISSING
        function = getattr(owner, name, None)
        if not callable(function) or isinstance(function, type):
            known = getattr(owner, "__name__", type(owner).__name__)
            raise ConfigError(f"`{known}` has no function `{name}` that could be registered.")
        if any(each.owner is owner and each.name == name for each in self._replaced):
            return
        self._replace(owner, name, self._wrapped(function, before, look), custom=custom)

    def _replace(self, owner: Any, name: str, ours: Any, *, custom: bool) -> None:
        before = vars(owner).get(name, _MISSING) if hasattr(owner, "__dict__") else _MISSING
        vars(getattr(ours, "__func__", ours))[_MARK] = (self, before)
        self._replaced.append(Replaced(owner, name, before, ours, custom))
        setattr(owner, name, ours)

    def _wrapped(self, function: Any, before: Any, look: Look) -> Any:
        run = self._run
        kind = type(before) if isinstance(before, staticmethod | classmethod) else None
        inner = function if kind is None else before.__func__

        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            return run(inner, look, args, kwargs)

        return call if kind is None else kind(call)

    def running(self) -> bool:
        """Tell whether this thread runs a registered function: what it calls is part of it."""
        return bool(self._rows) and threading.get_ident() in self._rows

    def _run(
        self,
        function: Callable[..., Any],
        look: Look,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call a function, and have what goes in and comes out looked at."""
        __tracebackhide__ = True
        begun = seen = None
        if not self.running():
            try:
                seen = look(args, kwargs)
            except Exception as error:  # such as arguments that do not fit: not ours to say
                self._observer.fault(error)
            else:
                begun = self._observer.begin_registered(seen)
        if begun is None or seen is None:
            return function(*args, **kwargs)
        thread = threading.get_ident()
        self._rows[thread] = begun.call.row
        try:
            result = function(*args, **kwargs)
        finally:
            self._rows.pop(thread, None)
        running = result if isinstance(result, list) else [result]
        late = not seen.graph and any(isinstance(each, _work()) for each in running)
        self._observer.end(begun, result if seen.graph else None, late=late)
        return result

    def add_built_in(self) -> None:
        """Register what is loaded and not registered yet."""
        distributed = torch.distributed
        joined = distributed.is_available() and distributed.is_initialized()
        if joined and "torch" not in self._built_in:
            self._built_in.add("torch")
            self._add_collectives(distributed)
        if "mindspeed" not in self._built_in and "mindspeed.ops" in sys.modules:
            self._built_in.add("mindspeed")
            for owner, name in _mindspeed():
                self.add(owner, name, named(f"MindSpeed.{name}"))
        kernels = getattr(sys.modules.get("triton.runtime.jit"), "JITFunction", None)
        if "triton" not in self._built_in and kernels is not None:
            self._built_in.add("triton")
            self.add(kernels, "run", _of_kernel)

    def _add_collectives(self, distributed: Any) -> None:
        """Register what `torch.distributed` has, under both of its names.

        Of a `P2POp` torch asks whether its function *is* `isend`. So that one is replaced where
        people call it from alone, and an operation holds the function itself, also for later.
        """
        inner = distributed.distributed_c10d
        for owner in (distributed, inner):
            for name, written in _WRITES.items():
                if hasattr(owner, name) and not (owner is inner and name in _BY_IDENTITY):
                    self.add(owner, name, _of_collective(getattr(owner, name), written))
            self.add(owner, _BATCH, _of_batch)
        for name in ("__new__", "__init__"):
            self._replace(inner.P2POp, name, _with_itself(vars(inner.P2POp)[name]), custom=False)

    def restore(self, owner: Any = None, name: str | None = None, *, custom: bool = False) -> int:
        """Put back what was there, of all names or one; return how many there were.

        `custom` leaves those that the user did not ask for. May be repeated.
        """
        chosen = [
            each
            for each in self._replaced
            if (owner is None or each.owner is owner)
            and name in (None, each.name)
            and (each.custom or not custom)
        ]
        for each in reversed(chosen):
            self._put_back(each)
            self._replaced.remove(each)
        return len(chosen)

    @staticmethod
    def _put_back(each: Replaced) -> None:
        """Put back one; a name that somebody else has replaced since is theirs to restore."""
        if vars(each.owner).get(each.name) is not each.ours:
            return
        before = each.before
        while (mark := _mark(before)) is not None and not mark[0]._holds(before):
            before = mark[1]  # of a session that was closed before this one
        if before is _MISSING:
            delattr(each.owner, each.name)
        else:
            setattr(each.owner, each.name, before)

    def _holds(self, ours: Any) -> bool:
        return any(each.ours is ours for each in self._replaced)


def _mark(value: Any) -> tuple[Registered, Any] | None:
    """Return who replaced a name by a function of ours, and what was there before."""
    function = getattr(value, "__func__", value)
    found = vars(function).get(_MARK) if inspect.isfunction(function) else None
    return found if isinstance(found, tuple) else None


def _work() -> Any:
    """Return the class of what stands for communication that still runs."""
    return getattr(torch.distributed, "Work", ())


def named(name: str) -> Look:
    """Return what to look at where a function has one name and is read like any other."""

    def look(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
        return Seen(name, args, kwargs)

    return look


def _of_collective(function: Any, written: str) -> Look:
    """Return what to look at around a collective: results come back in an argument."""
    signature = inspect.signature(function)
    own = function.__name__

    def look(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
        bound = signature.bind(*args, **kwargs).arguments
        into = bound.get(written)
        if own in _READ_AS_WELL:
            read, named_ = args, kwargs
        else:
            read = tuple(None if each is into else each for each in args)
            named_ = {key: None if each is into else each for key, each in kwargs.items()}
        return Seen(f"Distributed.{own}", read, named_, into, graph=False)

    return look


def _of_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    """Return what to look at around several sends and receives at once."""
    operations = args[0] if args else kwargs["p2p_op_list"]
    sends = [each.op.__name__ == "isend" for each in operations]
    tensors = [{"tensor": each.tensor} for each in operations]
    sent, got = (
        [each if send is wanted else None for each, send in zip(tensors, sends, strict=True)]
        for wanted in (True, False)
    )
    return Seen(f"Distributed.{_BATCH}", (sent,), {}, got, graph=False)


def _with_itself(before: Any) -> Any:
    """Return a constructor of operations that hold no function of ours, but the one behind it."""
    inner = getattr(before, "__func__", before)

    @functools.wraps(inner)
    def made(itself: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        while _mark(op) is not None:
            op = op.__wrapped__
        return inner(itself, op, *args, **kwargs)

    return staticmethod(made) if isinstance(before, staticmethod) else made


def _of_kernel(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    """Return what to look at around a kernel of Triton: it may write to all that it is given."""
    kernel, *given = args
    name = getattr(getattr(kernel, "fn", None), "__name__", type(kernel).__name__)
    rest = {key: each for key, each in kwargs.items() if key not in ("grid", "warmup")}
    return Seen(f"Triton.{name}", tuple(given), rest, (tuple(given), rest), graph=False)


def _mindspeed() -> Iterator[tuple[Any, str]]:
    """Yield MindSpeed's operators and where each is."""
    for place, module in list(sys.modules.items()):
        if place.startswith("mindspeed.ops") and module is not None:
            for name, value in list(vars(module).items()):
                if name.startswith("npu_") and inspect.isfunction(value):
                    yield module, name
