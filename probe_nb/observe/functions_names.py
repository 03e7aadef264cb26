"""Function of torch -> the name that its rows have: `Functional.relu`, `Tensor.add`, `Torch.cat`.

The same object may lie in several packages under several names. It is then taken for the one that
models call: `torch.nn.functional.conv1d` is `torch.conv1d`, and its name is `Functional.conv1d`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch._ops import OpOverload, OpOverloadPacket

from probe_nb.observe.functions_lists import is_question
from probe_nb.observe.functions_spelling import Spelling, spellings

_handles: Final = torch.overrides.handle_torch_function.__code__
"""Calls modes for functions that are written in Python, from inside of them."""

Named = tuple[str, str]
"""A prefix, and the name behind it."""

_RECURRENT: Final = (
    *("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell"),
    "rnn_relu_cell",
)
"""What layers call through `torch._VF`."""

PREFIXES: Final = (
    *("Functional", "Tensor", "Torch", "VF", "Aten", "NPU", "Distributed", "MindSpeed", "Triton"),
)
"""Before the names of functions; those that a user registers may have any other."""

LISTED: Final = ("Functional", "Tensor", "Torch", "VF")
"""Those of packages whose functions are all known."""

_PACKAGES: Final = {
    "Functional": nn.functional,
    "Tensor": torch.Tensor,
    "Torch": torch,
    "VF": torch._VF,
}
"""Where functions are whose names begin so."""

_OLD_NAMES: Final = ("dsmm", "spmm", "hsmm", "saddmm")
"""Names of products that torch itself takes for their newer ones, when it tells who was called."""

_NAMESPACES: Final = {"aten": "Aten", "npu": "NPU", "prims": "Prims"}
"""Operators of these namespaces of `torch.ops`; others go by the namespace itself."""

_INNER: Final = frozenset(
    ("profiler", "prim", "debugprims", "inductor", "fsdp", "_c10d_functional", "c10d", "streams")
)
"""Namespaces of `torch.ops` that torch uses for itself."""


class Known(NamedTuple):
    """What is known of a function that is recorded."""

    name: str
    """As its rows have it: `Tensor.add`."""
    spelt: bool
    """Whether its calls may have other names, such as `Tensor.__add__`."""


class Namer:
    """Says under which name a call is recorded, and whether it is."""

    def __init__(self, wants: Callable[[str, str], bool]) -> None:
        """Know of no function; `wants` tells of a prefix and a name whether it is recorded."""
        self._wants = wants
        self._names, self._spelling = Names(), Spelling()
        self._known: dict[Any, Known | None] = {}
        self._wanted: dict[str, bool] = {}

    def known(self, function: Any) -> Known | None:
        """Return what is known of a function; None if none of its calls is recorded."""
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

    def name(self, known: Known, args: Any, frame: FrameType) -> str:
        """Return the name of a call, as the line that calls it is written; "" if not wanted.

        `frame` is that of the mode that was called.
        """
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
        return name if wanted else ""

    def rename(self, function: Any, name: str) -> bool:
        """Record a function of torch under a name of the user's; False if a mode cannot see it."""
        seen = self._names.of(function) is not None
        if seen:
            self._known[function] = Known(name, spelt=False)
        return seen

    def own_name(self, function: Any) -> None:
        """Record a function under its own name again."""
        self._known.pop(function, None)

    def forget(self) -> None:
        """Let go of all functions."""
        self._known.clear()
        self._spelling.forget()


class Names:
    """Knows the names of functions; the packages are read once, when the first is asked for."""

    def __init__(self) -> None:
        """Know of none."""
        self._known: dict[Any, Named] = {}

    def of(self, function: Any) -> Named | None:
        """Return the name of a function, None if it is none of torch's that computes."""
        if isinstance(function, (OpOverload, OpOverloadPacket)):
            return _operator(function)
        if not self._known:
            self._read()
        found = self._known.get(function) or _of_device(function)
        return None if found is None or is_question(found[1]) else found

    def all(self) -> frozenset[str]:
        """Return the names of all functions that torch shows by itself and that compute."""
        if not self._known:
            self._read()
        computing = (named for named in self._known.values() if not is_question(named[1]))
        return spellings().union(map(".".join, computing))

    def own(self, prefix: str, name: str) -> Named:
        """Return the name that a function has here, of one that others call by another."""
        function: Any = _PACKAGES.get(prefix)
        for part in name.split("."):
            function = getattr(function, part, None)
        try:
            named = self.of(function)
        except TypeError:  # no key of a dict: no function
            named = None
        last = name.rpartition(".")[2]
        return (prefix, last) if named is None or prefix == "Tensor" else named

    def _read(self) -> None:
        """Read the packages, those first whose names are preferred."""
        functional = [(name, f) for name, f in _functions(nn.functional) if _is_public(name)]
        self._add("Functional", functional)
        recurrent = [(name, getattr(torch._VF, name, None)) for name in _RECURRENT]
        self._add("VF", recurrent)
        self._add("Tensor", [(n, f) for n in dir(torch.Tensor) if (f := _method(n)) is not None])
        for package in (torch, torch.functional, torch._C._VariableFunctions):
            self._add("Torch", _functions(package))
        for package in (torch.linalg, torch.fft, torch.special, torch.sparse, torch.nested):
            self._add("Torch", _functions(package))
        self._add("Torch", _functions(torch._VF))

    def _add(self, prefix: str, functions: Any) -> None:
        """Take functions in; of several names of one the one that it has itself goes first."""
        for name, function in functions:
            if name in _OLD_NAMES:
                continue
            try:
                known = self._known.setdefault(function, (prefix, name))
            except TypeError:  # no key of a dict: no function
                continue
            own = getattr(function, "__name__", None)
            if known[0] == prefix and name == own and known[1] != own:
                self._known[function] = (prefix, name)


def _functions(package: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions of a package by name; classes and modules are none."""
    for name in dir(package):
        value = getattr(package, name, None)
        if callable(value) and not isinstance(value, (type, ModuleType)):
            yield name, value


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def _method(name: str) -> Any:
    """Return a method of tensors as torch hands it to a mode."""
    value = inspect.getattr_static(torch.Tensor, name, None)
    if value is None or isinstance(value, (type, property, staticmethod, classmethod)):
        return None
    found = getattr(torch.Tensor, name, None)
    return found if callable(found) else None


def _operator(function: Any) -> Named | None:
    """Name what was called as `torch.ops.aten.relu` or `torch.ops.aten.relu.default`."""
    packet = function.overloadpacket if isinstance(function, OpOverload) else function
    space, _, name = packet._qualified_op_name.partition("::")
    if space in _INNER or is_question(name):
        return None
    if isinstance(function, OpOverload):
        name = f"{name}.{function._overloadname}"
    return _NAMESPACES.get(space, space), name


def _of_device(function: Any) -> Named | None:
    """Name a function of a device's own package."""
    home, name = getattr(function, "__module__", None), getattr(function, "__name__", None)
    if isinstance(home, str) and isinstance(name, str) and home.partition(".")[0] == "torch_npu":
        return "NPU", name
    return None
