"""The name that a function's rows have -> the function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from probe_nb.errors import SelectionError

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

    Raises:
        SelectionError: There is none that could be called; the message says what to do.
    """
    prefix, _, rest = name.partition(".")
    for package in _PACKAGES.get(prefix, ()):
        found = package
        for part in rest.split("."):
            found = getattr(found, part, None)
        if callable(found):
            return found  # type: ignore[no-any-return]
    raise SelectionError(
        f"`{name}` is no function of torch that can be replayed. Give the function yourself, as "
        "`of=`."
    )
