"""What a finding is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["error", "warning", "note"]

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")

KINDS: Final = (
    *("non_finite", "loss_scale", "clipped", "overflow_risk", "underflow"),
    *("sudden_change", "exploding", "vanishing", "growing"),
    *("dead", "saturated", "unused", "frozen", "stuck", "update_lost", "update_ratio"),
    "rates_apart",
    *("not_zeroed", "gradient_noise", "drift", "same_input", "input_scale", "alert"),
)
"""Every kind of finding; `docs/findings.md` says of each what it means and what to try."""


@dataclass(frozen=True)
class Finding:
    """One statement about a run.

    Attributes:
        severity: `error`: the numbers are lost, or training cannot go on; `warning`: it will not
            do what was meant; `note`: worth knowing, and often on purpose.
        kind: One of `KINDS`.
        sentence: What is the matter, where and since when.
        detail: The numbers that say so; may be empty.
        advice: What to try.
        model, module, role, leaf: The site that is named, as the columns of `run.df` have it.
        step: The step from which it holds.
        value: The number that was compared.
        threshold: What it was compared with; NaN where nothing was.
        site: The number of the site.
        row: The number of the record that the sentence is about.
        rows: Numbers of the records that are evidence: labels of the index of `run.df`.
        order: Where in its step it stands, for the ranking.
        others: Numbers of further sites of which the same holds.
    """

    severity: Severity
    kind: str
    sentence: str
    detail: str
    advice: str
    model: str
    module: str
    role: str
    leaf: str
    step: int
    value: float
    threshold: float
    site: int
    row: int
    rows: tuple[int, ...]
    order: int = 0
    others: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return the sentence."""
        return self.sentence
