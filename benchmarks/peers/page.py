"""The page that says what was seen: docs/peers.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any, Final

from benchmarks.peers.tools import NAMES, load
from benchmarks.peers.verdicts import CLAIMS, HAS, Cell, cost
from benchmarks.timing import Ratio

_MARKS: Final = {2: "✓", 1: "◐", 0: "-", None: "?"}
_YES: Final = 2
_SIZES: Final = {"d256": "8 layers, d=256", "d64": "4 layers, d=64"}
_TEMPLATE: Final = Path(__file__).with_name("page.md")


def text(seen: Mapping[str, Any], costs: Mapping[str, Mapping[str, Ratio]], taken: str) -> str:
    """Return the page."""
    cells = {
        claim: {tool: _cell(judge, each) for tool, each in seen.items()}
        for claim, judge in [*CLAIMS.items(), *HAS.items()]
    }
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        better=_better(cells, costs),
        claims=_table({claim: cells[claim] for claim in CLAIMS}, words=True),
        recorded=_table({claim: cells[claim] for claim in HAS}, words=False),
        costs=_costs(costs),
        versions=_versions(seen),
        taken=taken,
    )


def short(seen: Mapping[str, Any], costs: Mapping[str, Mapping[str, Ratio]]) -> str:
    """Return the table of the README: marks and medians."""
    chosen = {claim: {t: _cell(CLAIMS[claim], s) for t, s in seen.items()} for claim in CLAIMS}
    counted = [
        sum(_cell(judge, each).mark == _YES for judge in HAS.values()) for each in seen.values()
    ]
    kinds = (
        f"| of {len(HAS)} kinds of tensors in a step, recorded | {' | '.join(map(str, counted))} |"
    )
    return "\n".join([_table(chosen, words=False), kinds, _short_costs(costs, list(seen))])


def _cell(judge: Any, seen: Mapping[str, Any]) -> Cell:
    try:
        found: Cell = judge(seen)
    except (KeyError, TypeError) as error:
        return Cell(None, f"not found out: {error}")
    return found


def _table(cells: Mapping[str, Mapping[str, Cell]], *, words: bool) -> str:
    tools = list(next(iter(cells.values())))
    lines = [
        f"| | {' | '.join(NAMES[each] for each in tools)} |",
        f"|---|{'---|' * len(tools)}",
    ]
    for claim, row in cells.items():
        shown = [
            f"{_MARKS[each.mark]} {each.words}" if words else _MARKS[each.mark]
            for each in row.values()
        ]
        lines.append(f"| {claim} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _label(key: str) -> str:
    tool, _, level = key.partition(" ")
    return f"{NAMES[tool]}, {level}" if level else NAMES[tool]


def _costs(costs: Mapping[str, Mapping[str, Ratio]]) -> str:
    keys = list(next(iter(costs.values())))
    lines = [f"| | {' | '.join(_SIZES[size] for size in costs)} |", f"|---|{'---|' * len(costs)}"]
    lines += [
        f"| {_label(key)} | {' | '.join(cost(costs[size].get(key)) for size in costs)} |"
        for key in keys
    ]
    return "\n".join(lines)


def _short_costs(costs: Mapping[str, Mapping[str, Ratio]], tools: list[str]) -> str:
    medians = costs["d256"]
    shown = []
    for tool in tools:
        mine = [each.median for key, each in medians.items() if key.partition(" ")[0] == tool]
        shown.append(" / ".join(f"{each:.1f}" for each in mine) or "?")
    return f"| time of a step, bare = 1; modules / functions, too | {' | '.join(shown)} |"


def _better(cells: Mapping[str, Mapping[str, Cell]], costs: Mapping[str, Any]) -> str:
    lines = [
        f"- **{NAMES[tool]}**, {claim}: {cell.words}; ours: {row['ours'].words}"
        for claim, row in cells.items()
        for tool, cell in row.items()
        if (cell.mark or 0) > (row["ours"].mark or 0)
    ]
    for size, found in costs.items():
        mine = found["ours module"].median
        lines += [
            f"- **{_label(key)}**, time of a step ({_SIZES[size]}): {each.median:.2f} times the "
            f"bare step; ours: {mine:.2f}"
            for key, each in found.items()
            if each.median < mine and not key.startswith("ours")
        ]
    return "\n".join(lines) or "- In nothing that this page asks."


def _versions(seen: Mapping[str, Any]) -> str:
    lines = ["| | version | used as |", "|---|---|---|"]
    lines += [
        f"| {NAMES[tool]} | {each['write'].get('version', '?')} | {load(tool).HOW} |"
        for tool, each in seen.items()
    ]
    return "\n".join(lines)
