"""What a self-check found: one line per check, as text, Markdown, HTML or a DataFrame."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from html import escape
from typing import Final, Literal

import pandas as pd

Outcome = Literal["failed", "passed", "measured", "skipped"]

_ORDER: Final[tuple[Outcome, ...]] = ("failed", "passed", "measured", "skipped")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at, and what came of it.

    `skipped` says why it could not be looked at; `measured` is a figure that nothing judges.
    """

    check: str
    subject: str
    outcome: Outcome
    detail: str


@dataclass(frozen=True)
class SelfCheck:
    """The report of `probe.self_check`; printed, it can be pasted into a bug report.

    Attributes:
        device: The device that was checked.
        devices: The accelerators of the process by name, or the CPU.
        versions: Of probe_nb, Python, torch and what drives the device.
        checks: Everything that was looked at, in the order in which it was done.
    """

    device: str
    devices: tuple[str, ...]
    versions: dict[str, str]
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether something was checked and nothing failed."""
        outcomes = self._counted()
        return bool(outcomes["passed"]) and not outcomes["failed"]

    @property
    def df(self) -> pd.DataFrame:
        """One row per check: `check`, `subject`, `outcome`, `detail`."""
        columns = ["check", "subject", "outcome", "detail"]
        rows = [[each.check, each.subject, each.outcome, each.detail] for each in self.checks]
        return pd.DataFrame(rows, columns=columns)

    def __repr__(self) -> str:
        """Say what came of it, on what, then every check, the failed ones first."""
        width = [max(len(cells[i]) for cells in self._cells()) for i in range(3)]
        lines = [
            "  ".join([cells[i].ljust(width[i]) for i in range(3)] + [cells[3]]).rstrip()
            for cells in self._cells()
        ]
        return "\n".join([self._headline(), *self._made_with(), "", *lines])

    def _repr_markdown_(self) -> str:
        head = [f"**{_plain(self._headline())}**", "", *[_plain(t) for t in self._made_with()], ""]
        table = ["| outcome | check | subject | detail |", "|---|---|---|---|"]
        rows = ["| " + " | ".join(map(_plain, cells)) + " |" for cells in self._cells()]
        return "\n".join([*head, *table, *rows])

    def _repr_html_(self) -> str:
        head = f"<div><b>{escape(self._headline())}</b></div>" + "".join(
            f"<div>{escape(line)}</div>" for line in self._made_with()
        )
        rows = "".join(
            "<tr>" + "".join(f'<td align="left">{escape(c)}</td>' for c in cells) + "</tr>"
            for cells in self._cells()
        )
        return f"{head}<table>{rows}</table>"

    def _counted(self) -> Counter[Outcome]:
        return Counter(each.outcome for each in self.checks)

    def _headline(self) -> str:
        outcomes = self._counted()
        counts = ", ".join(f"{outcomes[each]} {each}" for each in _ORDER if outcomes[each])
        verdict = "all is well" if self.ok else "NOT all is well"
        return f"probe_nb self-check on {self.device}: {verdict} ({counts or 'nothing done'})"

    def _made_with(self) -> list[str]:
        versions = " · ".join(f"{word} {version}" for word, version in self.versions.items())
        return [versions, f"devices: {', '.join(self.devices)}"]

    def _cells(self) -> list[tuple[str, str, str, str]]:
        by_outcome = sorted(self.checks, key=lambda each: _ORDER.index(each.outcome))
        return [(each.outcome, each.check, each.subject, each.detail) for each in by_outcome]


def _plain(text: str) -> str:
    """Return text for a cell of a Markdown table, in which HTML and marks mean nothing."""
    marked = "".join(f"\\{c}" if c in r"\`*_{}[]|#~" else c for c in escape(text, quote=False))
    return " ".join(marked.split())
