"""What is known of each tensor that was to be kept: where it was seen, and whether it is there."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import pandas as pd

from probe_nb.errors import SelectionError, closest
from probe_nb.store.filters import as_word, from_the_end
from probe_nb.store.table import ABSENT
from probe_nb.terms import DIRECTIONS, ROLES, shown

KEPT: Final = "kept"
_TEXT: Final = ("model", "module", "api", "direction", "role", "leaf", "dtype", "status")
COLUMNS: Final = (
    *("model", "module", "api", "direction", "role", "leaf", "step", "micro_step", "call"),
    *("backward", "dtype", "shape", "bytes", "status", "rank"),
)
"""The columns of `run.kept()`, in order."""

_LARGEST: Final = 2**63 - 1
_YOUNG: Final = ("rank", "api")
"""What older files know nothing of, the youngest first."""


@dataclass(eq=False, slots=True)
class Kept:
    """One tensor that was to be kept."""

    model: str
    module: str
    direction: str
    role: str
    leaf: str
    step: int
    micro_step: int
    call: int
    backward: int
    """As in the row of its statistics; -1 where there is none."""
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    status: str = KEPT
    api: str = ""
    """Name of a function, or of a value that the user saved."""
    rank: int = -1
    """As in the row of its statistics; -1 where there is none."""
    type: str = ""
    """Class of the module, while it is recorded; no file says it."""
    data: Any = None
    """Its bytes: an array, or what has a `result()` that gives one; None if it is not kept."""

    def drop(self, why: str) -> None:
        """Be not kept, for a reason."""
        self.status = f"not {KEPT}: {why}"  # first: who finds no data asks for the reason
        self.data = None

    def about(self) -> list[Any]:
        """Return what JSON can hold of it: everything but the bytes."""
        return [getattr(self, name) for name in COLUMNS]


def described(about: Any) -> Kept:
    """Return what `Kept.about` wrote.

    Raises:
        TypeError: It is something else.
        ValueError: A role or direction is unknown, or a number is none.
    """
    left = _YOUNG[: max(len(COLUMNS) - len(about), 0)]
    columns = [name for name in COLUMNS if name not in left]
    facts = dict(zip(columns, about, strict=True))
    kept = Kept(**facts | {"shape": tuple(facts["shape"])})
    for field in fields(Kept)[:-1]:
        value: Any = getattr(kept, field.name)
        wanted = _TYPES[str(field.type)]
        if type(value) is not wanted:
            raise TypeError(f"`{field.name}` is {value!r}")
        if isinstance(value, int) and not ABSENT <= value <= _LARGEST:
            raise ValueError(f"`{field.name}` is {value!r}")
        if isinstance(value, str):
            value.encode()  # half a character is none
    if not all(type(n) is int and n >= 0 for n in kept.shape):
        raise TypeError(f"`shape` is {kept.shape!r}")
    if kept.role not in ROLES or kept.direction not in DIRECTIONS:
        raise ValueError(f"unknown direction or role in {kept}")
    return kept


_TYPES: Final = {"str": str, "int": int, "tuple[int, ...]": tuple}


def frame(kept: Sequence[Kept]) -> pd.DataFrame:
    """Return one row per tensor that was to be kept, in the order in which they came."""
    data = {name: [getattr(each, name) for each in kept] for name in COLUMNS}
    made = pd.DataFrame(data, columns=list(COLUMNS)).astype(
        dict.fromkeys(("step", "micro_step", "call", "bytes"), "int64")
        | dict.fromkeys(_TEXT, "category")
    )
    for name in ("backward", "rank"):
        numbers = made[name].astype("Int64")
        made[name] = numbers.mask(numbers < 0)
    return made[[*_FIRST, *(name for name in COLUMNS if name not in _FIRST)]]


_FIRST: Final = ("module", "role", "leaf", "step")
"""What a terminal shows in any case."""


def find(
    everything: Sequence[Kept],
    module: str | None,
    role: str,
    *,
    api: str | None = None,
    step: int | None,
    call: int | None,
    leaf: str | None,
    micro_step: int | None,
    direction: str | None,
    model: str | None,
    rank: int | None = None,
) -> Kept:
    """Return the tensor that all of this is true of, as `Run.tensor` says.

    Raises:
        SelectionError: There is none; the message says what is kept, and why this is not.
    """
    if role not in ROLES:
        raise SelectionError(
            f"`{role}` is not a role.{closest(role, ROLES)} Known: {', '.join(ROLES)}."
        )
    if not everything:
        raise SelectionError(
            "This run keeps no tensors. `watch(keep=...)` says which it is to keep."
        )
    at = _of_module(everything, module, model) if api is None else _of(everything, api, module)
    at = [each for each in at if model in (None, each.model)]
    of_role = [each for each in at if each.role == role]
    name = f"`{at[0].api if api is not None else shown(at[0].module)}`"
    if not of_role:
        raise SelectionError(
            f"Of {name} no `{role}` was to be kept, but {_listed(e.role for e in at)}. "
            "`probe.Keep(..., roles=...)` says what is."
        )
    ways = {each.direction for each in of_role}
    direction = direction or min(ways, key=DIRECTIONS.index)
    wanted: dict[str, Any] = {
        "direction": direction,
        "call": call,
        "leaf": leaf,
        "micro_step": micro_step,
        "rank": rank,
    }
    here = [e for e in of_role if all(v in (None, getattr(e, n)) for n, v in wanted.items())]
    if step is not None:
        step = from_the_end(step, (e.step for e in here if e.data is not None))
    if not here:
        asked = ", ".join(f"{n} {v}" for n, v in wanted.items() if v is not None)
        raise SelectionError(f"{name} has no {role} with {asked}. {_there(of_role)}")
    return _newest(here, of_role, f"{name} {role}", step)


def of_call(
    everything: Sequence[Kept],
    module: str | None,
    *,
    api: str | None = None,
    step: int | None = None,
    call: int | None = None,
    micro_step: int | None = None,
    model: str | None = None,
    rank: int | None = None,
) -> list[Kept]:
    """Return all that was to be kept of one call: the newest of which an input is there.

    Raises:
        SelectionError: There is none; the message says what is kept.
    """
    if not everything:
        raise SelectionError(
            "This run keeps no tensors, and a replay begins with those that came in: "
            "`watch(keep=probe.Keep('*', roles='input, output'))` keeps them."
        )
    wanted = {"step": step, "call": call, "micro_step": micro_step, "rank": rank}
    at = _of_module(everything, module, model) if api is None else _of(everything, api, module)
    of_role = [e for e in at if e.role == "input" and model in (None, e.model)]
    here = [e for e in of_role if all(v in (None, getattr(e, n)) for n, v in wanted.items())]
    there = [e for e in here if e.data is not None]
    if not there:
        name = f"`{shown(module or '') if api is None else api}`"
        asked = "".join(f" of {n} {v}" for n, v in wanted.items() if v is not None)
        why = f"{here[-1].status}. " if here else ""
        raise SelectionError(f"No input{asked} of {name} is there: {why}{_there(of_role)}")
    newest = max(there, key=lambda e: (e.step, e.micro_step, -e.call, -e.rank))
    same = ("model", "module", "step", "micro_step", "call", "rank")
    return [e for e in at if all(getattr(e, n) == getattr(newest, n) for n in same)]


def _of(everything: Sequence[Kept], api: str, module: str | None) -> list[Kept]:
    """Return the tensors of one function, of which there is at least one."""
    as_word("api", api)
    path = "" if module == shown("") else module
    inside = [e for e in everything if e.api and (path is None or fnmatch.fnmatch(e.module, path))]
    known = list(dict.fromkeys(e.api for e in inside))
    hits = [api] if api in known else fnmatch.filter(known, api)
    if len(hits) != 1:
        where = "" if module is None else f" in `{module}`"
        found = f"could be {_listed(hits)}" if hits else f"was not to be kept{where}"
        kept = f" Kept are those of {_listed(known)}." if known and not hits else ""
        raise SelectionError(f"`{api}` {found}.{closest(api, known) if not hits else ''}{kept}")
    return [e for e in inside if e.api == hits[0]]


def _of_module(everything: Sequence[Kept], module: str | None, model: str | None) -> list[Kept]:
    """Return the tensors of one module, of which there is at least one."""
    everything = [e for e in everything if not e.api or e.role == "state"]
    as_word("module", module)
    path = "" if module in (None, shown("")) else str(module)
    known = list(dict.fromkeys(e.module for e in everything if model in (None, e.model)))
    hits = [path] if path in known else fnmatch.filter(known, path)
    if not hits:
        raise SelectionError(
            f"No tensor of `{shown(path)}` was to be kept.{closest(path, known)} "
            f"Kept are those of {_listed(map(shown, known))}."
        )
    at = [e for e in everything if e.module == hits[0] and model in (None, e.model)]
    models = list(dict.fromkeys(e.model for e in at))
    if len(hits) > 1 or len(models) > 1:
        what = map(shown, hits) if len(hits) > 1 else (f"model {m}" for m in models)
        raise SelectionError(
            f"`{shown(path)}` could be {_listed(what)}. Give the path of one, and `model=` if "
            "several models have it."
        )
    return at


def _newest(here: list[Kept], of_role: list[Kept], what: str, step: int | None) -> Kept:
    there = [each for each in here if each.data is not None]
    if step is None and there:
        step = max(each.step for each in there)
    found = [each for each in there if each.step == step]
    if not found:
        missed = [each for each in here if step in (None, each.step)]
        why = missed[-1].status if missed else "none was seen then"
        at = "" if step is None else f" of step {step}"
        raise SelectionError(f"{what}{at} is not there: {why}. {_there(of_role)}")
    ranks = sorted({each.rank for each in found})
    if len(ranks) > 1:
        raise SelectionError(f"{what} is there of several ranks; give `rank=`, one of {ranks}.")
    leaves = list(dict.fromkeys(each.leaf for each in found))
    if len(leaves) > 1:
        raise SelectionError(f"{what} is several tensors; give `leaf=`, one of {_listed(leaves)}.")
    micro_step = max(each.micro_step for each in found)
    found = [each for each in found if each.micro_step == micro_step]
    first = min(each.call for each in found)
    return [each for each in found if each.call == first][-1]  # of the newest backward


def _there(of_role: list[Kept]) -> str:
    """Say what is kept of one role of a module."""
    kept = [each for each in of_role if each.data is not None]
    if not kept:
        return "Nothing is kept of it; `run.kept()` says of each tensor why."
    facts: list[tuple[str, Callable[[Kept], Any]]] = [
        ("steps", lambda e: e.step),
        ("micro steps", lambda e: e.micro_step),
        ("calls", lambda e: e.call),
        ("leaves", lambda e: e.leaf),
    ]
    if len({each.rank for each in kept}) > 1:
        facts.append(("ranks", lambda e: e.rank))
    said = [f"{name} {_listed(sorted({of(e) for e in kept}))}" for name, of in facts]
    return f"Kept are {', '.join(said)}."


def _listed(values: Iterable[Any]) -> str:
    """Write a few values out, of many the first and the last."""
    found = dict.fromkeys(values)
    different = [f"`{each}`" if isinstance(each, str) else str(each) for each in found]
    if len(different) > 6:  # noqa: PLR2004 - as many as a person reads
        return f"{different[0]} to {different[-1]} ({len(different)} in all)"
    return ", ".join(different)
