"""The name that a function's rows have -> the function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch._ops import OpOverload, OpOverloadPacket

from probe_nb.errors import SelectionError
from probe_nb.observe.functions_names import Names

_PACKAGES: Final[dict[str, tuple[Any, ...]]] = {
    "Functional": (nn.functional,),
    "Tensor": (torch.Tensor,),
    "Torch": (
        *(torch, torch.functional, torch.linalg, torch.fft, torch.special, torch.sparse),
        *(torch.nested, torch._VF),  # noqa: SLF001
    ),
    "VF": (torch._VF,),  # noqa: SLF001
    "Aten": (torch.ops.aten,),
}


def function_named(name: str) -> Callable[..., Any]:
    """Return the function of torch that has this name in a run.

    A run is data, maybe of somebody else: what it names is called only if it computes.

    Raises:
        SelectionError: There is none that could be called; the message says what to do.
    """
    prefix, _, rest = name.partition(".")
    for package in _PACKAGES.get(prefix, ()):
        found = package
        for part in rest.split("."):
            found = getattr(found, part, None)
        if callable(found) and _computes(prefix, rest, found):
            return found  # type: ignore[no-any-return]
    raise SelectionError(
        f"`{name}` is no function of torch that can be replayed. Give the function yourself, as "
        "`of=`."
    )


def _computes(prefix: str, name: str, function: Any) -> bool:
    """Tell whether a function computes with tensors: it opens no file and loads no code."""
    if prefix == "Aten":
        return _takes_a_tensor(function)
    if f"{prefix}.{name}" not in _listed():
        return False
    if prefix == "Torch":
        return id(function) in _overridable()[0] or name.removesuffix("_") in _overridable()[1]
    return not name.startswith("__") or name in _overridable()[1]


def _takes_a_tensor(function: Any) -> bool:
    """Tell of an operator whether a form of it begins with a tensor."""
    if isinstance(function, OpOverload):
        forms = [function]
    elif isinstance(function, OpOverloadPacket):
        forms = [getattr(function, each) for each in function.overloads()]
    else:
        return False
    firsts = [each for form in forms for each in form._schema.arguments[:1]]  # noqa: SLF001 - no public name
    return any("Tensor" in str(each.type) and not each.kwarg_only for each in firsts)


@functools.cache
def _listed() -> frozenset[str]:
    return Names().all()


@functools.cache
def _overridable() -> tuple[frozenset[int], frozenset[str]]:
    """Return what torch lets a tensor of another class take over, which is what computes.

    The functions, which torch keeps, by identity, and their names: it leaves out those in place.
    """
    every = [f for found in torch.overrides.get_overridable_functions().values() for f in found]
    return frozenset(map(id, every)), frozenset(each.__name__ for each in every)
