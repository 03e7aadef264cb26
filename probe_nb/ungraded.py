"""Doing something without history, so that no Ctrl-C leaves the user without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_T = TypeVar("_T")


def ungraded(act: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Do something without history; a Ctrl-C at any moment leaves the grad mode as it was.

    `with torch.no_grad()` loses the mode to one that comes when its end has begun. Between a
    `finally` and a call into C nothing hears it. To be used where no function mode is on.
    """
    before = torch.is_grad_enabled()
    try:
        torch._C._set_grad_enabled(False)  # noqa: SLF001
        return act(*args, **kwargs)
    finally:
        torch._C._set_grad_enabled(before)  # noqa: SLF001
