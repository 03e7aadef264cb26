"""The entries of one file -> rows of records and of values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from struct import Struct
from typing import Any, Final, NamedTuple

from probe_nb.dump.arrays import Saved
from probe_nb.dump.entries import Seen, is_tensor, ours_of, seen_in, text_of, value_of
from probe_nb.dump.facts import Facts, facts_of
from probe_nb.dump.folders import Folder
from probe_nb.dump.numbers import numbers_of
from probe_nb.dump.reports import Report
from probe_nb.dump.rows import Order, Rows, What, When
from probe_nb.dump.walk import Entry, Spot
from probe_nb.store.columns import Columns
from probe_nb.store.table import ABSENT, Interned
from probe_nb.store.values import Values
from probe_nb.terms import Direction, Site, printable

_MANY: Final = 10_000
"""Different types that are told apart: a file can name as many as it likes."""
_LARGEST: Final = 2**31 - 1


class At(NamedTuple):
    """Which call something was in."""

    micro_step: int
    call: int
    backward: int


class Tables:
    """The tables of the run that is read, and the codes of its sites.

    Attributes:
        columns: Of its records.
        values: Of what is no tensor.
        written: How many records there are.
        ours: probe_nb wrote what is read.
        device: The code of no device.
    """

    def __init__(self, columns: Columns, values: Values) -> None:
        """Write into these."""
        self.columns, self.values = columns, values
        self.written = 0
        self.ours = False
        self._sites: dict[Site, int] = {}
        self.device = columns.tables.devices.code("")

    def what(self, site: Site, facts: Facts, at: At) -> What:
        """Return the codes of a tensor."""
        tables = self.columns.tables
        known = len(tables.dtypes.values) < _MANY
        checksum = facts.checksum
        return What(
            tables.sites.code(site),
            tables.dtypes.code(facts.dtype if known else "other"),
            tables.shapes.code(facts.shape),
            ABSENT if checksum is None else tables.checksums.code(checksum),
            at.call,
            at.backward,
            at.micro_step,
            facts.numel,
            facts.requires_grad,
        )


class _Waiting:
    """Values that wait until all of their step are there; 28 bytes each, and each thing once."""

    def __init__(self) -> None:
        self._packed = bytearray()
        self._sites: Interned[Site] = Interned()
        self._things: Interned[tuple[str, str]] = Interned()

    def add(self, order: Order, site: Site, thing: tuple[str, Any], call: int) -> None:
        """Add one: its kind, and what JSON can hold of it."""
        kind, value = thing
        codes = self._sites.code(site), self._things.code((kind, json.dumps(value)))
        self._packed += _PACK(*order, *codes, call)

    def orders(self) -> list[Order]:
        """Return when each was there."""
        return [tuple(each[:4]) for each in _UNPACK(self._packed)]

    def in_order(self, places: list[int]) -> Iterator[tuple[int, Site, str, Any, int]]:
        """Yield them in execution order, each with its place."""
        rows = zip(_UNPACK(self._packed), places, strict=True)
        for (*_, site, thing, call), place in sorted(rows):
            kind, text = self._things.values[thing]
            yield place, self._sites.values[site], kind, json.loads(text), call


_VALUE: Final = Struct("=7i")
_PACK, _UNPACK = _VALUE.pack, _VALUE.iter_unpack


class StepRecords:
    """Takes the entries of one file, and writes their rows when all are there."""

    def __init__(self, tables: Tables, folder: Folder, report: Report) -> None:
        """Write into `tables`."""
        self._tables, self._folder, self._report = tables, folder, report
        self._rows = Rows()
        self._values = _Waiting()

    def take(self, entry: Entry) -> None:
        """Take in what an entry holds."""

        def report(text: str) -> None:
            self._report(f"`{entry.name[:200]}`: {text}")

        for seen in seen_in(entry.key, entry.body, report):
            when = _when(entry, seen)
            if not is_tensor(seen.node):
                site, order = site_of(entry.spot, seen), self._rows.order(when)
                self._values.add(order, site, value_of(seen.node), at_of(entry, {}).call)
                continue
            try:
                facts = facts_of(seen.node)
            except ValueError as error:
                report(f"{seen.where.role} {seen.leaf} was skipped: {error}")
                continue
            self._tensor(entry, seen, when, facts)

    def _tensor(self, entry: Entry, seen: Seen, when: When, facts: Facts) -> None:
        ours = ours_of(seen.node)
        self._tables.ours |= bool(ours)
        site = site_of(entry.spot, seen, facts.part, ours)
        what = self._tables.what(site, facts, at_of(entry, ours))
        self._rows.add(when, what, numbers_of(seen.node, facts.numel))

    def saved(self, saved: Saved) -> None:
        """Take in an array that was saved."""
        facts = Facts(saved.dtype, saved.shape, saved.numel, False, None, "")
        backward = 0 if saved.backward else ABSENT
        what = self._tables.what(site_of_saved(saved), facts, At(0, saved.call, backward))
        self._rows.add(When(saved.call, int(saved.backward), 0), what, saved.numbers)

    def write(self) -> None:
        """Write all down."""
        tables, folder, first = self._tables, self._folder, self._tables.written
        places = self._rows.before(self._values.orders())
        for place, site, kind, value, call in self._values.in_order(places):
            tables.values.add(
                *(site, kind, value),
                step=folder.step,
                call=call,
                rank=folder.rank,
                order=first + place,
            )
        for block in self._rows.blocks(folder.step, folder.rank, first, tables.device):
            tables.columns.append(block)
        tables.written += len(self._rows)


def _when(entry: Entry, seen: Seen) -> When:
    """Return when something was there: what a call was fed before anything inside it."""
    late = seen.where.part == "output" or entry.key.kind in ("parameters_grad", "debug")
    return When(entry.place, 1, 0) if late else When(entry.begin, 0, -entry.place)


def at_of(entry: Entry, ours: dict[str, Any]) -> At:
    """Return which call an entry is of.

    Gradients of parameters are of none, and how often one was added is what is counted there. What
    probe_nb wrote says how it counted itself.
    """
    number, key = entry.key.call or 0, entry.key
    of_parameters = key.kind == "parameters_grad"
    backward = number if of_parameters else 0 if key.direction == "backward" else ABSENT
    return At(
        _place(ours.get("micro_step"), 0),
        _place(ours.get("call"), 0 if of_parameters else number),
        _place(ours.get("backward"), backward),
    )


def site_of(spot: Spot, seen: Seen, part: str = "", ours: dict[str, Any] | None = None) -> Site:
    """Return where something was seen; what probe_nb wrote says what it called it itself."""
    leaf = text_of((ours or {}).get("leaf"), f"{seen.leaf}{part}")
    role, direction, _ = seen.where
    return Site(*spot, direction, role, leaf)


def site_of_saved(saved: Saved) -> Site:
    """Return where an array was saved."""
    way: Direction = "backward" if saved.backward else "forward"
    return Site("", "", "", printable(saved.name), way, "value", "")


def _place(value: Any, instead: int) -> int:
    return value if type(value) is int and 0 <= value <= _LARGEST else instead
