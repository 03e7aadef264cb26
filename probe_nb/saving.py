"""`probe.save`: a run into a file, or any other value into the open watch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, overload

from probe_nb.config import as_name
from probe_nb.run import Run


@overload
def save(value: Run, name: str | os.PathLike[str]) -> Path: ...
@overload
def save(value: Any, name: str, backward: bool = ...) -> None: ...  # noqa: FBT001 - see below
def save(
    value: Any,
    name: str | os.PathLike[str],
    backward: bool = True,  # noqa: FBT001, FBT002 - who comes from msProbe gives it by position
) -> Path | None:
    """Record a value in the open watch, at any line of your code; or write a run to a file.

    Where no watch is open nothing happens: the line may stay in the code. Of compiled code nothing
    is recorded, unless `watch(compiled="eager")` runs it uncompiled.

    Args:
        value: Tensors, numbers, text, None, or lists, tuples, dicts and dataclasses of them, nested
            as you like. Of another object the name of its class is recorded. A `Run` is written to
            the file `name`; the same as `run.save(name)`.
        name: The name of its rows, in column `api`; `call` counts how often it was used in a step.
            Of a run, the path of the file.
        backward: Record the gradients of tensors too, when a backward brings them.

    Returns:
        The path of the file; of a value None.

    Raises:
        ConfigError: `name` is no text, or empty.

    Tensors have rows with `role="value"`, and `leaf` says where they lie in the value; the rest is
    in `run.values()`. See docs/saved-values.md.

    >>> import torch, probe_nb as probe
    >>> x = torch.ones(3, requires_grad=True)
    >>> with probe.watch(level="debug") as run:
    ...     h = x * 2
    ...     probe.save({"h": h, "lr": 0.1}, "mine")
    ...     h.sum().backward()
    >>> run.df[["api", "call", "direction", "leaf", "mean"]].values.tolist()
    [['mine', 0, 'forward', 'h', 2.0], ['mine', 0, 'backward', 'h', 1.0]]
    >>> run.values()[["api", "leaf", "kind", "value"]].values.tolist()
    [['mine', 'lr', 'float', 0.1]]
    """
    if issubclass(type(value), Run):
        written: Path = value.save(name)
        return written
    if _compiles():
        return None
    name = as_name(name)
    session = sys.modules.get("probe_nb.session")
    if session is not None:
        session.save(value, name, backward=bool(backward))
    return None


def _compiles() -> bool:
    """Tell whether torch.compile reads this call, instead of running it."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()
