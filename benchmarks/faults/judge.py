"""Ask the tool about a program, and judge the first thing it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import probe_nb as probe
from benchmarks.faults.case import Case, Healthy, Program

Verdict = Literal["right", "right place, wrong kind", "wrong", "nothing found"]

KINDS: Final[dict[str, tuple[str, ...]]] = {
    "nonfinite": ("non_finite",),
    "overflow": ("overflow_risk", "clipped"),
    "exploding": ("exploding", "growing"),
    "saturation": ("saturated",),
    "stuck": ("stuck", "update_lost"),
    "ratio": ("update_ratio",),
    "sudden": ("sudden_change",),
    "scale": ("loss_scale",),
}
"""The tool's words for the kinds of the cases; a kind that is missing has the same word."""

_ABOVE_NOTE: Final = frozenset({"error", "warning"})


@dataclass(frozen=True)
class Finding:
    """One row of `run.findings()`: the columns that are judged."""

    severity: str
    kind: str
    module: str
    role: str
    sentence: str


@dataclass(frozen=True)
class Result:
    """What the tool said of one program, first things first."""

    title: str
    name: str
    planted: str
    findings: tuple[Finding, ...]
    verdict: Verdict | None = None

    @property
    def first(self) -> Finding | None:
        """Return the first finding."""
        return self.findings[0] if self.findings else None

    @property
    def alarms(self) -> tuple[Finding, ...]:
        """Return the findings above "note"."""
        return tuple(f for f in self.findings if f.severity in _ABOVE_NOTE)


def findings(program: Program) -> tuple[Finding, ...]:
    """Run the program under a watch with default options; return all findings in their order."""
    with probe.watch(
        program.model, optimizer=program.optimizer, scaler=program.scaler, live=False
    ) as run:
        program.run()
    return tuple(_finding(row) for row in run.findings().to_dict("records"))


def _finding(row: dict[str, Any]) -> Finding:
    names = ("severity", "kind", "module", "role", "sentence")
    return Finding(*("" if row[n] is None or row[n] != row[n] else str(row[n]) for n in names))


def judged(case: Case) -> Result:
    """Run the broken program and judge the first finding."""
    found = findings(case.program())
    where = " or ".join(f"`{path or '(root)'}`" for path in case.at)
    return Result(case.title, case.name, where, found, verdict(case, found))


def verdict(case: Case, found: tuple[Finding, ...]) -> Verdict:
    """Compare the first finding with the answers that were written down before."""
    if not found:
        return "nothing found"
    first = found[0]
    role_counts = not case.roles or not first.role or first.role in case.roles
    if not case.names(first.module) or not role_counts:
        return "wrong"
    words = {word for kind in case.kinds for word in KINDS.get(kind, (kind,))}
    return "right" if first.kind in words else "right place, wrong kind"


def asked(healthy: Healthy) -> Result:
    """Run a healthy model."""
    return Result(healthy.title, healthy.name, "", findings(healthy.program()))


def asked_whole(case: Case) -> Result:
    """Run the program of a case without its fault."""
    return Result(case.title, case.name, "", findings(case.program(broken=False)))
