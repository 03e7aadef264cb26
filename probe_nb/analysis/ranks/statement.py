"""One statement about the ranks of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pandas as pd

from probe_nb.analysis.finding import SEVERITIES, Severity
from probe_nb.terms import Site

KINDS: Final = ("non_finite", "drift", "same_input", "outlier", "stopped", "parameters", "inputs")
COLUMNS: Final = (
    *("severity", "kind", "ranks", "model", "module", "role", "leaf", "step", "sentence"),
    *("detail", "advice", "rows", "value", "threshold"),
)
"""The columns of what `compare_ranks` gives."""


@dataclass(frozen=True)
class Statement:
    """What holds of some ranks.

    Attributes:
        severity: As of a finding: `error`, `warning`, `note`.
        kind: One of `KINDS`.
        ranks: The ranks that it is about.
        sentence: What is the matter.
        step: The step from which on it holds.
        at: Where; None where it is about no site.
        detail: The numbers that say so, and what else is known.
        advice: What to try.
        rows: Labels of rows of `run.df` that say so.
        value: The number that was compared.
        threshold: What it was compared with; NaN where nothing was.
    """

    severity: Severity
    kind: str
    ranks: tuple[int, ...]
    sentence: str
    step: int = 0
    at: Site | None = None
    detail: str = ""
    advice: str = ""
    rows: tuple[int, ...] = field(default=())
    value: float = np.nan
    threshold: float = np.nan

    @property
    def place(self) -> tuple[int, int, int]:
        """Where it stands among others: the gravest first, of these what began first."""
        return SEVERITIES.index(self.severity), self.step, KINDS.index(self.kind)


def as_frame(said: Sequence[Statement]) -> pd.DataFrame:
    """Return statements as a DataFrame."""
    rows = []
    for each in said:
        site = {name: getattr(each.at, name, "") for name in ("model", "module", "role", "leaf")}
        known = {**vars(each), **site, "ranks": list(each.ranks), "rows": list(each.rows)}
        rows.append([known[name] for name in COLUMNS])
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    text = ("severity", "kind", "model", "module", "role", "leaf", "sentence", "detail", "advice")
    return frame.astype(dict.fromkeys(text, "str") | {"step": "int64"})
