"""Whoever wants to hear of findings while the run is open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from probe_nb.analysis.finding import SEVERITIES, Finding
from probe_nb.analysis.tally import Tally
from probe_nb.analysis.verdict import Judge
from probe_nb.errors import notify
from probe_nb.store.columns import Columns
from probe_nb.terms import RunInfo


class Hearer:
    """Calls a function with each new finding; one that raises is not called again.

    It is called after the drain, so with what is on the host already: a step itself is not slower,
    what lies between two steps is by the time that the rules take.
    """

    def __init__(self, columns: Columns, info: RunInfo, hear: Callable[[Finding], object]) -> None:
        """Read these records, which grow."""
        self._info = info
        self._columns = columns
        self._judge: Judge | None = None
        self._hear: Callable[[Finding], object] | None = hear
        self._told: dict[Any, int] = {}
        self._busy = False

    def __call__(self) -> None:
        """Read what is new, and tell what was not told yet, or is graver now."""
        if self._hear is None or self._busy:  # who hears may ask the run, which drains
            return
        self._busy = True
        try:
            judge = self._read()
            if judge is not None:
                self._tell(judge.findings(self._info))
        except Exception as error:
            self._hear = None
            notify(f"probe_nb stopped looking for findings while the run is open: {error!r}")
        finally:
            self._busy = False

    def _read(self) -> Judge | None:
        """Read what is new; None if nothing is.

        A reading that is interrupted may have counted a part: then all is read again.
        """
        judge, self._judge = self._judge or Judge(Tally(self._columns)), None
        new = judge.tally.read()
        self._judge = judge
        return judge if new else None

    def _tell(self, findings: list[Finding]) -> None:
        for each in findings:
            key, gravity = (each.kind, each.site), SEVERITIES.index(each.severity)
            if self._hear is None or self._told.get(key, len(SEVERITIES)) <= gravity:
                continue
            self._told[key] = gravity
            try:
                self._hear(each)
            except Exception as error:
                self._hear = None
                notify(f"`on_finding` raised and is not called again: {error!r}")
