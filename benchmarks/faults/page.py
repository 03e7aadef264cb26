"""The results as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.faults.judge import Finding, Result

_ROOT: Final = "(root)"


@dataclass(frozen=True)
class Results:
    """What was found in one set of cases."""

    title: str
    faults: Sequence[Result]
    healthy: Sequence[Result]
    whole: Sequence[Result]


def figures(results: Results) -> str:
    """Return the figures of one set in words."""
    count = len(results.faults)
    named = sum(r.verdict in {"right", "right place, wrong kind"} for r in results.faults)
    kinds = sum(r.verdict == "right" for r in results.faults)
    wrong = sum(r.verdict == "wrong" for r in results.faults)
    silent = sum(r.verdict == "nothing found" for r in results.faults)
    return (
        f"**{named} of {count}** first findings name the planted module ({kinds} also with the "
        f"right kind of fault); {wrong} name another, {silent} programs had no finding. "
        f"Healthy models with a finding above note: **{_alarmed(results.healthy)} of "
        f"{len(results.healthy)}**; the same programs without their fault: "
        f"{_alarmed(results.whole)} of {len(results.whole)}."
    )


def _alarmed(results: Sequence[Result]) -> int:
    return sum(bool(r.alarms) for r in results)


def page(sets: Sequence[Results], taken_with: str) -> str:
    """Return the whole page in Markdown."""
    parts = ["# Planted faults, and what was reported first", taken_with]
    for results in sets:
        parts += [f"## {results.title}", figures(results), _table(results.faults)]
        parts += ["Healthy models:", _quiet(results.healthy)]
        if any(r.alarms for r in results.whole):
            alarmed = [r for r in results.whole if r.alarms]
            parts += ["Programs without their fault that raised an alarm:", _quiet(alarmed)]
    return "\n\n".join(parts) + "\n"


def _table(results: Sequence[Result]) -> str:
    head = "| fault | planted in | reported first | verdict |\n|---|---|---|---|"
    lines = [
        f"| {_cell(r.title)} | {r.planted} | {_said(r.first)} | {r.verdict} |" for r in results
    ]
    return "\n".join([head, *lines])


def _quiet(results: Sequence[Result]) -> str:
    head = "| model | findings above note | first of all findings |\n|---|---|---|"
    lines = [f"| {_cell(r.title)} | {len(r.alarms)} | {_said(r.first)} |" for r in results]
    return "\n".join([head, *lines])


def _said(finding: Finding | None) -> str:
    if finding is None:
        return "nothing"
    return (
        f"{finding.severity}, {finding.kind}, `{finding.module or _ROOT}`: "
        f"{_cell(finding.sentence)}"
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
