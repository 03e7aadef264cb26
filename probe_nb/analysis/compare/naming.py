"""Which site of one run is which of the other: wrappers taken off, renamed modules mapped."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from probe_nb.dump import keys
from probe_nb.errors import ConfigError, closest
from probe_nb.terms import ROOT_LABEL, Direction, Role, Site

WRAPPERS: Final = frozenset(
    {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
)
"""Parts of a path that DataParallel, torch.compile, FSDP and checkpointing put in front."""

Mapped = Mapping[str, str] | Callable[[str], str] | str | os.PathLike[str] | None
"""What `compare(mapping=...)` takes."""

_ROLES: Final[dict[tuple[str, str], Role]] = {
    ("forward", "input"): "input",
    ("forward", "kwargs"): "input",
    ("forward", "output"): "output",
    ("forward", "parameters"): "param",
    ("backward", "input"): "grad_output",
    ("backward", "output"): "grad_input",
}
"""What a part of one of msProbe's calls is here."""


class Name(NamedTuple):
    """What a site is called in both runs."""

    model: str
    module: str
    api: str
    direction: Direction
    role: Role
    leaf: str


class Tensor(NamedTuple):
    """One tensor in one numbered call, as msProbe's data mapping names it."""

    name: Name
    call: int


class Mapping_(NamedTuple):  # noqa: N801 - the bare word is Python's
    """How the names of the candidate become those of the baseline.

    Attributes:
        path: Gives the baseline's module path for one of the candidate's.
        tensors: Single tensors of the candidate, and what they are in the baseline.
    """

    path: Callable[[str], str]
    tensors: dict[Tensor, Tensor]


def mapping_of(given: Mapped) -> Mapping_:
    """Read what `compare(mapping=...)` was given.

    Raises:
        ConfigError: It is none of what can be given, two names map to one, or it is a file that
            cannot be read.
        FileNotFoundError: There is no such file.
    """
    if given is None:
        return Mapping_(str, {})
    if isinstance(given, Mapping):
        return Mapping_(_replacing({_path(c): _path(b) for b, c in _checked(given)}), {})
    if callable(given):
        return Mapping_(given, {})
    if isinstance(given, (str, os.PathLike)):
        return _of_file(Path(given).expanduser())
    raise ConfigError(
        f"`mapping` is {given!r}; give a dict `{{baseline: candidate}}`, a function that gives the "
        "baseline's path for one of the candidate's, or the path of one of msProbe's yaml files."
    )


def _checked(given: Mapping[Any, Any]) -> Iterable[tuple[str, str]]:
    for one, other in given.items():
        if not isinstance(one, str) or not isinstance(other, str):
            raise ConfigError(f"`mapping` has {one!r}: {other!r}; give module paths.")
    twice = [name for name, count in Counter(map(_path, given.values())).items() if count > 1]
    if twice:
        raise ConfigError(f"`mapping` gives `{twice[0] or ROOT_LABEL}` to two modules.")
    return given.items()


def check_known(given: Mapped, baseline: Iterable[str], candidate: Iterable[str]) -> None:
    """Refuse a dict with a name that neither run has: it would say nothing.

    Args:
        given: What `compare(mapping=...)` was given.
        baseline: The module paths of the baseline.
        candidate: Those of the candidate.

    Raises:
        ConfigError: Neither run has a name, and the nearest is said; or it is no name.
    """
    if not isinstance(given, Mapping):
        return
    one, other = _with_parents(baseline), _with_parents(candidate)
    for pair in _checked(given):
        for name, known in zip(pair, (one, other), strict=True):
            if one and other and _path(name) not in one | other:
                raise ConfigError(
                    f"`mapping` has `{name}`, and neither run has such a module."
                    f"{closest(name, sorted(known))}"
                )


def _with_parents(paths: Iterable[str]) -> set[str]:
    """Return paths as they are and without wrappers, and all that they are in.

    >>> sorted(_with_parents(["module.a.b"]))
    ['', 'a', 'a.b', 'module', 'module.a', 'module.a.b']
    """
    found = set()
    for each in paths:
        for path in (each, unwrapped(each)):
            parts = path.split(".")
            found |= {"", *(".".join(parts[: n + 1]) for n in range(len(parts)))}
    return found


def _path(text: str) -> str:
    return "" if text == ROOT_LABEL else text


def _replacing(paths: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that replaces the longest beginning of a path that is known.

    >>> of = _replacing({"net.blocks": "layers", "net": "body"})
    >>> of("net.blocks.3.fc"), of("net.norm"), of("network")
    ('layers.3.fc', 'body.norm', 'network')
    """
    longest = sorted(paths, key=len, reverse=True)

    def replaced(path: str) -> str:
        for each in longest:
            if path == each:
                return paths[each]
            if not each:
                return f"{paths[each]}.{path}" if paths[each] else path
            if path.startswith(f"{each}."):
                return ".".join(part for part in (paths[each], path[len(each) + 1 :]) if part)
        return path

    return replaced


# -- msProbe's files ---------------------------------------------------------------------------


def _of_file(path: Path) -> Mapping_:
    """Read a data mapping or a cell mapping of msProbe: `candidate: baseline`, one a line."""
    pairs = dict(_lines(path))
    tensors: dict[Tensor, Tensor] = {}
    cells: dict[str, str] = {}
    for candidate, baseline in pairs.items():
        one, other = _tensor(candidate), _tensor(baseline)
        if one is not None and other is not None:
            tensors[one] = other
        elif one is None and other is None:
            cells[_cell(candidate)] = _cell(baseline)
        else:
            raise ConfigError(f"`{path}` maps `{candidate}` to `{baseline}`: not of one kind.")
    return Mapping_(_replacing(cells), tensors)


def _lines(path: Path) -> Iterable[tuple[str, str]]:
    for number, line in enumerate(_text(path).splitlines(), 1):
        text = line.split(" #")[0].strip()
        if not text or text.startswith(("#", "---")):
            continue
        name, colon, value = text.partition(": ")
        if not colon:
            raise ConfigError(f"`{path}`, line {number}: `{text}` is no `name: name`.")
        yield name.strip().strip("'\""), value.strip().strip("'\"")


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise FileNotFoundError(f"`mapping` names `{path}`, and there is no such file.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"`mapping` names `{path}`, which cannot be read: {error}") from None


def _cell(text: str) -> str:
    """Return the path in `{name}.{Class}`, as msProbe writes a cell.

    >>> _cell("mlp.0.Linear"), _cell("Module.mlp.0.Linear")
    ('mlp.0', 'mlp.0')
    """
    text = text.removeprefix(f"{keys.MODULE}.").removeprefix(f"{keys.CELL}.")
    path, dot, kind = text.rpartition(".")
    return path if dot and kind[:1].isupper() else text


def _tensor(text: str) -> Tensor | None:
    """Return the tensor that one of msProbe's full names is of."""
    for way in ("forward", "backward"):
        head, found, tail = text.partition(f".{way}.")
        if not found:
            continue
        for part in ("input", "output", "kwargs", "parameters"):
            name, dot, leaf = tail.partition(f".{part}.")
            if dot or tail.startswith(f"{part}."):
                leaf = leaf if dot else tail.removeprefix(f"{part}.")
                key = keys.parse(f"{head}.{way}.{name}" if dot else f"{head}.{way}")
                known = key is not None and (key.direction, part) in _ROLES
                return _of_key(key, part, leaf) if key is not None and known else None
    return None


def _of_key(key: keys.Key, part: str, leaf: str) -> Tensor:
    api = "" if key.kind == "module" else f"{key.prefix}.{key.name}"
    module = key.name if key.kind == "module" else ""
    leaf = f"kwargs.{leaf}" if part == "kwargs" else leaf
    role = _ROLES[key.direction, part]
    return Tensor(Name("", module, api, key.direction, role, leaf), key.call or 0)


# -- sites ---------------------------------------------------------------------------------------


def unwrapped(path: str) -> str:
    """Return a module path without what wrappers put into it.

    >>> unwrapped("module._orig_mod.layers.0.fc"), unwrapped("_orig_mod")
    ('layers.0.fc', '')
    """
    return ".".join(part for part in path.split(".") if part not in WRAPPERS)


def names_of(sites: Sequence[Site], path: Callable[[str], str], *, models: bool) -> list[Name]:
    """Return the name of each site; wrappers stay where two modules would become one."""
    paths = dict.fromkeys(site.module for site in sites)
    kept: dict[str, Any] = {}
    for each in paths:
        kept.setdefault((unwrapped(each)), []).append(each)
    bare = {
        each: (short if len(many) == 1 else each) for short, many in kept.items() for each in many
    }
    known = {each: str(path(short)) for each, short in bare.items()}
    return [
        Name(
            site.model if models else "",
            known[site.module],
            site.api,
            site.direction,
            site.role,
            site.leaf,
        )
        for site in sites
    ]
