"""What ran inside what: `construct.json`, `stack.json`, and where they are silent, paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from probe_nb.dump.keys import Key, parse
from probe_nb.store.calls import Frame, Stack
from probe_nb.terms import printable

_FRAME: Final = re.compile(r"File (.+), line ([0-9]{1,9}), in ([^\n]*), ?\n ?(.*)", re.DOTALL)
_WRAPPERS: Final = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_SHELL: Final = "module"
_LONGEST: Final = 2_000


class Names:
    """How the names of one file are read: what its modules' names begin with, and its wrappers."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Look at all names that are known beforehand."""
        keys = [key for name in names if (key := parse(name)) is not None and is_module(key)]
        self.listed = bool(keys) and all(_may_be_listed(key.name) for key in keys)
        paths = [key.name for key in keys]
        self._shelled = bool(paths) and all(_first(path) == _SHELL for path in paths)
        self._known: dict[str, str] = {}

    def parse(self, text: str) -> Key | None:
        """Return what a name says."""
        return parse(text, listed=self.listed and text.startswith(("Module.", "Cell.")))

    def path(self, name: str) -> str:
        """Return the path of a module without what wrappers add to it."""
        known = self._known.get(name)
        if known is None:
            parts = [part for part in name.split(".") if part not in _WRAPPERS]
            while self._shelled and parts[:1] == [_SHELL]:
                parts = parts[1:]
            known = self._known[name] = printable(".".join(parts))
        return known

    @property
    def wrapped(self) -> dict[str, str]:
        """Paths whose names had wrappers in them, and these names."""
        return {path: name for name, path in self._known.items() if name != path}


def is_module(key: Key) -> bool:
    """Tell whether a key is of a module or its parameters."""
    return key.kind in ("module", "parameters_grad")


def _first(path: str) -> str:
    return path.partition(".")[0]


def _may_be_listed(name: str) -> bool:
    """Tell whether a name may begin with the index of a model: a model itself is never dumped."""
    index, _, rest = name.partition(".")
    return index.isascii() and index.isdigit() and bool(rest)


class Nesting:
    """Which call is around which, and which of all that runs inside one ended first."""

    def __init__(self, parents: Mapping[str, Any] | None = None) -> None:
        """Take what `construct.json` says; without it paths of modules have to do."""
        said = (parents or {}).items()
        self._parents = {name: _parent(value) for name, value in said}
        self._first: dict[str, int] = {}
        self._open: dict[str, list[tuple[str, str, str, int]]] = {}

    def parent(self, name: str) -> str | None:
        """Return the name of the call right around one, None if there is none."""
        return self._parents.get(name)

    def around(self, name: str) -> Iterable[str]:
        """Yield the names of the calls around one, the innermost first."""
        seen = {name}
        up = self.parent(name)
        while up is not None and up not in seen:
            yield up
            seen.add(up)
            up = self.parent(up)

    def begin(self, name: str, key: Key, path: str, place: int) -> int:
        """Return the place of the first call to end of those inside one that ends now, or its own.

        To be asked for each call once, as they ended.
        """
        if name not in self._parents and key.kind == "module":
            self._adopt(name, key, path, place)
        first = self._first.pop(name, place)
        for up in self.around(name):
            if up in self._first:  # what is around it is known as well
                break
            self._first[up] = first
        return first

    def _adopt(self, name: str, key: Key, path: str, place: int) -> None:
        """Take what ended last and has a path inside for what ran inside."""
        model = str(key.model)
        ended = self._open.setdefault(key.direction, [])
        first = place
        while ended and ended[-1][0] == model and _lies_in(ended[-1][1], path):
            _, _, child, first = ended.pop()
            self._parents[child] = name
        self._first[name] = first
        ended.append((model, path, name, first))


def _lies_in(path: str, around: str) -> bool:
    return path != around and (not around or path.startswith(f"{around}."))


def _parent(value: Any) -> str | None:
    if isinstance(value, list):  # with the number of a micro step behind it
        value = value[0] if value else None
    return value if isinstance(value, str) else None


def stack_lines(values: Iterable[Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield each call that `stack.json` names with its lines, as they are there."""
    for value in values:
        if isinstance(value, list) and len(value) == 2:  # noqa: PLR2004 - names and lines
            names, lines = value
            if isinstance(names, list) and isinstance(lines, list):
                yield from ((name, lines) for name in names if isinstance(name, str))


def stacks_in(value: Any) -> tuple[list[str], Stack]:
    """Return the calls that one member of `stack.json` names, and the lines that led to them."""
    if not isinstance(value, list) or len(value) != 2:  # noqa: PLR2004 - names and lines
        return [], ()
    names, lines = value
    if not isinstance(names, list) or not isinstance(lines, list):
        return [], ()
    frames = tuple(_frame(line) for line in lines[:_LONGEST] if isinstance(line, str))
    return [name for name in names if isinstance(name, str)], frames


def _frame(line: str) -> Frame:
    found = _FRAME.fullmatch(line)
    if found is None:
        return Frame(printable(line[:_LONGEST]), 0, "", "")
    file, number, function, source = found.groups()
    texts = [printable(text[:_LONGEST]) for text in (file, function, source)]
    return Frame(texts[0], int(number), texts[1], texts[2])
