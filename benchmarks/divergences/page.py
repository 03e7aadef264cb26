"""The results as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.divergences.judge import MODES, Mode, Result, Said, named

_SHORT: Final = {
    "right": "✓",
    "right place, other phase": "✓, but of another phase",
    "nothing found": "nothing",
    "not in it": "-",
}


@dataclass(frozen=True)
class Results:
    """What was found in one set of cases."""

    title: str
    cases: Sequence[Result]
    pairs: Sequence[Result]
    modes: tuple[Mode, ...] = MODES


def figures(results: Results) -> str:
    """Return the figures of one set in words."""
    found = ", ".join(
        f"{sum(named(r, mode) for r in results.cases)} of {_possible(results, mode)} by {mode}"
        for mode in results.modes
    )
    alarms = sum(told is not None for r in results.pairs for told in r.said.values())
    asked = sum(len(r.said) for r in results.pairs)
    kinds = len({r.architecture for r in results.cases})
    return (
        f"The first divergence names the planted module in **{found}**, in {kinds} programs. "
        f"Healthy pairs of which a divergence is reported: "
        f"**{sum(any(r.said.values()) for r in results.pairs)} of {len(results.pairs)}** "
        f"({alarms} of {asked} comparisons)."
    )


def _possible(results: Results, mode: Mode) -> int:
    return sum(r.verdicts.get(mode, "not in it") != "not in it" for r in results.cases)


def page(sets: Sequence[Results], taken_with: str) -> str:
    """Return the whole page in Markdown."""
    parts = ["# Planted divergences, and what was named first", taken_with]
    for results in sets:
        parts += [f"## {results.title}", figures(results), _table(results)]
        parts += ["Pairs that only rounding parts:", _quiet(results)]
        corrected = [r for r in (*results.cases, *results.pairs) if r.note]
        if corrected:
            lines = [f"* {_cell(r.title)}: {_cell(r.note)}" for r in corrected]
            parts += ["Programs that were wrong and were put right:", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def _table(results: Results) -> str:
    columns = ["divergence", "program", "planted in", *(f"by {mode}" for mode in results.modes)]
    lines = [
        [_cell(r.title), r.architecture, r.planted, *(_case(r, mode) for mode in results.modes)]
        for r in results.cases
    ]
    return _lines(columns, lines)


def _case(result: Result, mode: Mode) -> str:
    verdict = result.verdicts.get(mode, "not in it")
    return _SHORT.get(verdict) or f"✗ {_said(result.said[mode])}"


def _quiet(results: Results) -> str:
    columns = ["pair", "program", *(f"by {mode}" for mode in results.modes)]
    lines = [
        [_cell(r.title), r.architecture, *(_pair(r, mode) for mode in results.modes)]
        for r in results.pairs
    ]
    return _lines(columns, lines)


def _pair(result: Result, mode: Mode) -> str:
    return _said(result.said[mode]) if mode in result.said else "-"


def _lines(columns: list[str], lines: list[list[str]]) -> str:
    rows = [columns, ["---"] * len(columns), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _said(said: Said | None) -> str:
    return "nothing" if said is None else f"{said.phase} of `{said.module or '(root)'}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
