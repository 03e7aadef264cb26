"""What is no tensor -> the table of values of a run: where `observe` and `store.values` meet."""

from __future__ import annotations

from probe_nb.observe.arguments import Plain
from probe_nb.observe.calls import Call
from probe_nb.observe.select import Watched
from probe_nb.recorder import DIRECTION, Recorder
from probe_nb.store.values import Values
from probe_nb.terms import Role, Site, printable


class ValueWriter:
    """Writes values into the table of a run (it is the `ValueSink` of `observe`)."""

    def __init__(self, table: Values, recorder: Recorder, rank: int | None) -> None:
        """Write into `table`, beside the rows of `recorder`."""
        self._table = table
        self._recorder = recorder
        self._rank = rank
        self._sites: dict[tuple[Watched, Role, str], Site] = {}

    def value(self, call: Call, role: Role, found: Plain) -> None:
        """Write a value down."""
        leaf, kind, value = found
        key = (call.watched, role, leaf)
        self._table.add(
            self._sites.get(key) or self._site(key),
            kind,
            value,
            step=call.step,
            micro_step=call.micro_step,
            call=call.number,
            rank=self._rank,
            order=self._recorder.order,
        )

    def _site(self, key: tuple[Watched, Role, str]) -> Site:
        watched, role, leaf = key
        about = (watched.model, watched.path, watched.type, watched.api)
        site = self._sites[key] = Site(*about, DIRECTION[role], role, printable(leaf))
        return site

    def fault(self, watched: Watched | None, where: str, error: Exception) -> None:
        """Hand on an error of our own."""
        self._recorder.fault(watched, where, error)
