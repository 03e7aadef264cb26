"""What was found, in the words of every view, and as the front end reads it: each with its rows."""

from __future__ import annotations

from typing import Any, Final

from probe_nb.analysis import verdict as v
from probe_nb.analysis.finding import Finding

BADGED: Final = (
    (v.SATURATED, "! saturated"),
    (v.RISK, "! overflow risk"),
    (v.EXPLODING, "↑ exploding"),
    (v.VANISHING, "↓ vanishing"),
    (v.DEAD, "~ all zeros"),
)
"""Badges below non-finite, gravest first: a sign and a word, for colour may be missing."""

MARKS: Final = {"error": "✕", "warning": "!", "note": "\N{MIDDLE DOT}"}

NAMED: Final = {
    "alert": "alert",
    "clipped": "clipped",
    "drift": "drift",
    "frozen": "frozen",
    "gradient_noise": "noise",
    "growing": "growing",
    "input_scale": "input scale",
    "loss_scale": "overflows",
    "not_zeroed": "not zeroed",
    "rates_apart": "learns faster",
    "same_input": "same input",
    "saturated": "saturated",
    "stuck": "does not move",
    "sudden_change": "sudden change",
    "underflow": "underflow",
    "unused": "no gradient",
    "update_lost": "update lost",
    "update_ratio": "update size",
}
"""What a row says of the findings that are about it and have no badge."""

_OF_BADGES: Final = {
    "overflow_risk": "! overflow risk",
    "exploding": "↑ exploding",
    "vanishing": "↓ vanishing",
    "dead": "~ all zeros",
}
"""Those that a badge says in most rows: not where the latest record is another one."""

_FURTHER: Final = 2
"""Findings that are said besides the headline."""

_LISTED: Final = 100
"""Findings that are sent to a front end."""


def said(found: Finding) -> str:
    """Return a sign and a word for a row that a finding is about; "" for NaN and Inf."""
    if found.kind in NAMED:
        return f"{MARKS[found.severity]} {NAMED[found.kind]}"
    return _OF_BADGES.get(found.kind, "")


def further(found: list[Finding]) -> tuple[list[Finding], int]:
    """Return what is said besides the headline: two findings at most, and how many more there are.

    Errors and warnings; notes only where nothing else was found, and not that of a loss scale: the
    headline has it then.
    """
    loud = [each for each in found if each.severity != "note"]
    rest = loud[1:] if loud else [each for each in found if each.kind != "loss_scale"]
    return rest[:_FURTHER], max(0, len(rest) - _FURTHER)


def told(found: list[Finding], places: dict[int, int] | None = None) -> dict[str, Any]:
    """Return the findings, worst first, which of them are said under the headline, and the rest.

    Args:
        found: All findings, worst first.
        places: Where only some sites are shown: the row of each of them.
    """
    next_ones, left = further(found)
    return {
        "findings": [_told(each, places) for each in found[:_LISTED]],
        "further": [at for at, each in enumerate(found[:_LISTED]) if each in next_ones],
        "left": left,
    }


def _told(found: Finding, places: dict[int, int] | None) -> dict[str, Any]:
    sign, _, word = said(found).partition(" ")
    row: int | None = found.site
    others = list(found.others)
    if places is not None:
        row, others = places.get(found.site), [places[site] for site in others if site in places]
    return {
        "severity": found.severity,
        "sign": sign or MARKS[found.severity],
        "word": word,
        "text": found.sentence,
        "advice": found.advice,
        "step": found.step,
        "row": row,
        "others": others,
    }
