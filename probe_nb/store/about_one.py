"""What a run says about itself, read back: every fact is of the type that it has to have."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from probe_nb.store.newer import UnknownError
from probe_nb.terms import Made, RunInfo

_TYPES: Final[dict[str, Any]] = {
    "name": str,
    "created": str,
    "models": dict,
    "modules": int,
    "config": dict,
    "versions": dict,
    "devices": list,
    "rank": (int, type(None)),
    "ended": str,
    "steps": int,
    "notices": list,
    "unobserved": list,
    "shared": dict,
    "wrapped": dict,
    "moved": dict,
    "tree": list,
    "world": (int, type(None)),
    "processes": dict,
    "unnamed_scaler": bool,
}


def as_info(found: Any) -> RunInfo:
    """Return the description of a run, every field of the type that it has.

    Raises:
        UnknownError: It has a fact that this version does not know.
        TypeError: It is no description.
    """
    if not isinstance(found, dict):
        raise TypeError("it is no description of a run")
    if unknown := sorted(found.keys() - _TYPES.keys()):
        raise UnknownError(f"it says of itself what `{unknown[0]}` is")
    info = RunInfo(**found)
    for field in dataclasses.fields(RunInfo):
        _check_type(field.name, getattr(info, field.name))
    _check_texts(info)
    return info


def _check_type(name: str, value: Any) -> None:
    wanted = _TYPES[name]
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise TypeError(f"`{name}` is {type(value).__name__}")


def _check_texts(info: RunInfo) -> None:
    texts = [*info.notices, *info.devices, *info.models, *info.models.values()]
    texts += [*info.shared, *info.shared.values(), *info.moved]
    texts += [*info.wrapped, *info.wrapped.values()]
    for groups in info.moved.values():
        texts += [*groups, *groups.values()]
    for module in info.unobserved:
        texts += [module["model"], module["module"], module["type"], module["reason"]]
    for process in info.processes.values():
        texts += [*process, *(str(value) for value in process.values())]
    for made in map(Made._make, info.tree):
        texts += made[:3]
        if not all(number is None or type(number) is int for number in made[3:]):
            raise TypeError("a number is not a number")
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a text is not a text")
