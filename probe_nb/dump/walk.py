"""The entries of one file of records, each with its place among the calls and in the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from probe_nb.dump.entries import said_of, text_of
from probe_nb.dump.folders import CONSTRUCT, DEBUG, Folder, trouble
from probe_nb.dump.keys import Key, spell
from probe_nb.dump.nesting import Names, Nesting
from probe_nb.dump.reports import Report
from probe_nb.dump.text import members
from probe_nb.progress import Told, silent
from probe_nb.terms import printable

DATA: Final = "data"
_HEADER: Final = ("task", "level", "framework", "dump_data_dir")


class Spot(NamedTuple):
    """Where an entry was taken: what its rows have in common."""

    model: str
    module: str
    type: str
    api: str


class Entry(NamedTuple):
    """One entry of a file.

    Attributes:
        name: Its name in the file.
        key: What that says.
        spot: Where it was taken.
        begin: The place of the first entry to end of those that ran inside it, or its own.
        place: Its own place in the file.
        body: What it holds.
    """

    name: str
    key: Key
    spot: Spot
    begin: int
    place: int
    body: Any


class Walk:
    """Reads one file of records.

    Attributes:
        header: What the file says of itself, once it was read.
        is_dump: It has what a dump has.
        names: How its names are read.
        nesting: What ran inside what.
    """

    def __init__(self, folder: Folder, name: str, report: Report, progress: Told = silent) -> None:
        """Read `construct.json` beside it, if it is there."""
        self._folder, self._file = folder, name
        self._progress = progress
        self._report = report
        self.header: dict[str, Any] = {}
        self.is_dump = False
        parents = {} if name == DEBUG else self._parents()
        self.names, self.nesting = Names(parents), Nesting(parents)
        self._saved: set[str] = set()
        self._places = 0

    def _parents(self) -> dict[str, Any]:
        path = self._folder.file(CONSTRUCT)
        if trouble(path, self._folder.root):
            return {}
        return dict(pairs(path, self._report, self._progress))

    def entries(self) -> Iterator[Entry]:
        """Yield its entries, in its order."""
        path = self._folder.file(self._file)
        if why := trouble(path, self._folder.root):
            self._report(f"`{path}` was skipped: {why}")
            return
        with path.open("rb") as file:
            told = _about(path, self._report)
            for member in members(file, told, inside=DATA, progress=self._progress):
                if member.inside:
                    self.is_dump = True
                    yield from self._entry(member.name, member.value, told)
                elif member.name == DATA:
                    told(f"`{DATA}` was skipped: it is no object")
                elif member.name in _HEADER:
                    self.header[member.name] = member.value
        self.is_dump |= bool(self.header)

    def _entry(self, name: str, body: Any, told: Report) -> Iterator[Entry]:
        key = self.names.parse(name)
        if key is None:
            told(f"`{name[:200]}` was skipped: no call is named so")
            return
        self._places += 1
        place = self._places
        if key.kind == "debug":
            key = self._value(key)
            yield Entry(name, key, Spot("", "", "", printable(key.name)), place, place, body)
            return
        begin = place
        if key.kind != "parameters_grad":
            begin = self.nesting.begin(name, key, self.names.path(key.name), place)
        spot = self.spot(name, key)
        if key.kind == "api":
            spot = _said(said_of(key, body), spot)
        yield Entry(name, key, spot, begin, place, body)

    def _value(self, key: Key) -> Key:
        """Tell the gradient of `x` from a value whose name is `x_grad`."""
        if key.direction == "forward":
            self._saved.add(key.name)
        elif key.name not in self._saved:
            return replace(key, name=f"{key.name}_grad", direction="forward")
        return key

    def spot(self, name: str, key: Key) -> Spot:
        """Return where a call was; of a function, in which module."""
        if key.kind != "api":
            return Spot(self._model(key), self.names.path(key.name), printable(key.type), "")
        around = self._module_around(name)
        if around is None and key.direction == "backward":
            around = self._module_around(spell(replace(key, direction="forward")))
        at = ("", "", "") if around is None else self.spot("", around)[:3]
        return Spot(*at, printable(f"{key.prefix}.{key.name}"))

    def _module_around(self, name: str) -> Key | None:
        for up in self.nesting.around(name):
            key = self.names.parse(up)
            if key is not None and key.kind == "module":
                return key
        return None

    @staticmethod
    def _model(key: Key) -> str:
        return "model" if key.model is None else str(key.model)


def _said(ours: dict[str, Any], spot: Spot) -> Spot:
    """Return where a function was called; what probe_nb wrote says where it saw it itself."""
    if not isinstance(ours.get("module"), str):
        return spot
    module, kind = text_of(ours["module"], ""), text_of(ours.get("type"), spot.type)
    return Spot(text_of(ours.get("model"), spot.model or "model"), module, kind, spot.api)


def _about(path: Path, report: Report) -> Report:
    return lambda text: report(f"`{path}`: {text}")


def pairs(path: Path, report: Report, progress: Told) -> Iterator[tuple[str, Any]]:
    """Yield the members of the object in a small file."""
    with path.open("rb") as file:
        for member in members(file, _about(path, report), progress=progress):
            yield member.name, member.value
