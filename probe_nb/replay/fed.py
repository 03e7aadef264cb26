"""What a call was given, put together again: kept tensors, recorded values, what the user adds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import torch

from probe_nb.errors import ConfigError, SelectionError
from probe_nb.replay.running import Arguments
from probe_nb.store.kept import Kept
from probe_nb.store.tensors import as_tensor, bytes_of
from probe_nb.store.values import Value, Values

_KWARGS: Final = "kwargs"
_ADD: Final = "Give it as `inputs={{{leaf!r}: …}}`."


def tensor_of(kept: Kept) -> torch.Tensor:
    """Return a kept tensor.

    Raises:
        SelectionError: It is not there; the message says why.
    """
    data = bytes_of(kept)
    if data is None:
        raise SelectionError(
            f"The {kept.role} `{kept.leaf}` of this call is {kept.status}. "
            + _ADD.format(leaf=kept.leaf)
        )
    return as_tensor(kept, data)


def arguments(call: Sequence[Kept], values: Values, given: Mapping[str, Any]) -> Arguments:
    """Return what a call was given.

    Args:
        call: What was to be kept of the call.
        values: What the run recorded that is no tensor.
        given: Leaf path -> value, which goes before what was recorded.

    Raises:
        SelectionError: A part of it was not kept or recorded; the message says which.
    """
    found = {
        each.leaf: each for each in call if each.role == "input" and each.direction == "forward"
    }
    known: dict[str, Any] = {
        leaf: tensor_of(each) for leaf, each in found.items() if not _covered(leaf, given)
    }
    first = next(iter(found.values()))
    for each in values:
        leaf = each.site.leaf
        if _is_of(each, first) and leaf not in known and not _covered(leaf, given):
            known[leaf] = _value(each)
    return _assembled(known | dict(given))


def _covered(leaf: str, given: Iterable[str]) -> bool:
    return any(leaf == each or leaf.startswith(f"{each}.") for each in given)


def _is_of(value: Value, kept: Kept) -> bool:
    site = value.site
    return (
        (value.step, value.micro_step, value.call) == (kept.step, kept.micro_step, kept.call)
        and (site.model, site.module, site.api) == (kept.model, kept.module, kept.api)
        and (site.role, site.direction) == ("input", "forward")
    )


def _value(each: Value) -> Any:
    """Return the Python object that was recorded.

    Raises:
        SelectionError: No more than its class was.
    """
    kind, value = each.kind, each.value
    if kind == "object":
        raise SelectionError(
            f"The argument `{each.site.leaf}` was a `{value}`, of which a run records no more than "
            "that. " + _ADD.format(leaf=each.site.leaf)
        )
    if kind in _MADE:
        return _MADE[kind](value)
    return value


def _named(kind: type) -> Callable[[Any], Any]:
    """Return what finds a constant of torch by its name: of this kind, and nothing else."""

    def found(text: Any) -> Any:
        named = vars(torch).get(str(text).removeprefix("torch."))
        if not isinstance(named, kind):
            raise SelectionError(f"`{text}` is no {kind.__name__} of torch that is here.")
        return named

    return found


_MADE: Final[dict[str, Any]] = {
    "slice": lambda parts: slice(*parts),
    "ellipsis": lambda _: ...,
    "torch.Size": torch.Size,
    "torch.dtype": _named(torch.dtype),
    "torch.memory_format": _named(torch.memory_format),
    "torch.device": lambda _: torch.device("cpu"),
    "tuple": tuple,
}


def _assembled(known: Mapping[str, Any]) -> Arguments:
    """Return positional and keyword arguments, nested as the paths say."""
    tree: dict[str, Any] = {}
    for leaf, value in known.items():
        *around, last = leaf.split(".")
        place = tree
        for name in around:
            place = place.setdefault(name, _Inner())
            if not isinstance(place, _Inner):
                raise ConfigError(f"`inputs` names `{leaf}` and a part of it.")
        place[last] = value
    keywords = {name: _closed(each, name) for name, each in tree.pop(_KWARGS, _Inner()).items()}
    args = _row(tree, "")
    if args is None:
        missing = next(n for n in range(len(tree) + 1) if str(n) not in tree)
        raise SelectionError(
            f"Argument {missing} was not recorded: `watch(values=True)` records arguments that are "
            "no tensors. " + _ADD.format(leaf=str(missing))
        )
    return args, keywords


class _Inner(dict[str, Any]):
    """A container of which parts are known, told from a dict of the user's."""


def _closed(value: Any, path: str) -> Any:
    """Return a container as a tuple if its parts are numbered, else as a dict."""
    if not isinstance(value, _Inner):
        return value
    row = _row(value, path)
    if row is not None:
        return row
    return {name: _closed(each, f"{path}.{name}") for name, each in value.items()}


def _row(tree: Mapping[str, Any], path: str) -> tuple[Any, ...] | None:
    names = [str(n) for n in range(len(tree))]
    if set(names) != set(tree):
        return None
    return tuple(_closed(tree[name], f"{path}.{name}") for name in names)


def left_to_defaults(called: Any, args: Arguments) -> list[str]:
    """Return the parameters of a function that these arguments leave to their defaults.

    Raises:
        SelectionError: One that has none is missing; the message says which.
    """
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # one of torch's own, written in C++
        return []
    try:
        bound = signature.bind(*args[0], **args[1])
    except TypeError as error:
        raise SelectionError(
            f"It cannot be called with what was recorded: {error}. `watch(values=True)` records "
            "arguments that are no tensors; `inputs={'kwargs.name': …}` gives what is missing."
        ) from error
    return [
        name
        for name, each in signature.parameters.items()
        if name not in bound.arguments and each.default is not inspect.Parameter.empty
    ]
