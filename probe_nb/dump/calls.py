"""The calls of a dump -> the table of calls, in the order in which they began."""

from __future__ import annotations

from typing import NamedTuple

from probe_nb.dump.folders import STACK, Folder, trouble
from probe_nb.dump.nesting import stacks_in
from probe_nb.dump.reports import Report
from probe_nb.dump.walk import Entry, Spot, Walk, pairs
from probe_nb.progress import Told
from probe_nb.store.calls import Callee, Calls
from probe_nb.store.table import ABSENT


class _Call(NamedTuple):
    begin: int
    outer: int
    name: str
    spot: Spot
    number: int


class CallReader:
    """Collects the calls of one file, and writes them down when all are known."""

    def __init__(self, table: Calls, folder: Folder) -> None:
        """Write into `table`."""
        self._table, self._folder = table, folder
        self._calls: list[_Call] = []

    def add(self, entry: Entry) -> None:
        """Take a call that has ended."""
        key = entry.key
        if key.direction == "forward" and key.kind in ("module", "api"):
            number = key.call or 0
            self._calls.append(_Call(entry.begin, -entry.place, entry.name, entry.spot, number))

    def write(self, walk: Walk, report: Report, progress: Told) -> None:
        """Write all of them down."""
        stacks = self._stacks(report, progress) if self._calls else {}
        rank = ABSENT if self._folder.rank is None else self._folder.rank
        rows: dict[str, int] = {}
        for call in sorted(self._calls):
            up = next((rows[n] for n in walk.nesting.around(call.name) if n in rows), ABSENT)
            row = self._table.add(
                self._table.callees.code(Callee(*call.spot)),
                call.number,
                step=self._folder.step,
                rank=rank,
                parent=up,
                stack=stacks.get(call.name, ABSENT),
            )
            if row == ABSENT:  # it is full
                return
            rows[call.name] = row

    def _stacks(self, report: Report, progress: Told) -> dict[str, int]:
        path = self._folder.file(STACK)
        if trouble(path, self._folder.root):
            return {}
        found: dict[str, int] = {}
        for _, value in pairs(path, report, progress):
            names, stack = stacks_in(value)
            found |= dict.fromkeys(names, self._table.stack(stack))
        return found
