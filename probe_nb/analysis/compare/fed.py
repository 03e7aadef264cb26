"""Whether two runs were fed the same: root inputs, first parameters, buffers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.compare.checksums import UNSURE
from probe_nb.analysis.compare.compared import Compared
from probe_nb.analysis.compare.judge import CLOSE, DIVERGED, NOT_COMPARABLE, SAME
from probe_nb.analysis.compare.measures import MEASURES
from probe_nb.analysis.words import plural
from probe_nb.terms import shown

if TYPE_CHECKING:
    import pandas as pd

Rows = NDArray[np.intp]

_PARTS: Final = {"input": "inputs", "param": "initial parameters", "buffer": "initial buffers"}
_NAMED: Final = 4
"""Modules that are named."""


@dataclass(frozen=True, eq=False)
class Fed:
    """Whether both runs were fed the same.

    Attributes:
        same: True or False; None where nothing of it was recorded, or checksums alone differ.
        sentence: What is the same and what is not.
        df: The rows of `comparison.df` that it was judged by.
    """

    same: bool | None
    sentence: str
    df: pd.DataFrame = field(repr=False)

    def __bool__(self) -> bool:
        """Be true if they were."""
        return bool(self.same)

    def __repr__(self) -> str:
        """Say it."""
        return self.sentence


def fed_same(of: Compared, frame: pd.DataFrame) -> Fed:
    """Say whether both runs were fed the same."""
    rows = np.flatnonzero(of.fed)
    role = (
        np.array([s.role for s in of.places.sites], object)[of.places.site[rows]]
        if len(rows)
        else np.empty(0)
    )
    parts, verdicts = [], of.verdicts[rows]
    for name, word in _PARTS.items():
        parts.append(_said(word, of, rows[role == name]))
    judged = verdicts[verdicts != NOT_COMPARABLE]
    bad = bool((judged == DIVERGED).any())
    same = None if not bad and (not len(judged) or of.unsure[rows].any()) else not bad
    return Fed(same, _joined(parts, same=same), frame.iloc[rows])


def _said(word: str, of: Compared, rows: Rows) -> str:
    verdicts = of.verdicts[rows]
    if not len(rows):
        return f"{word}: none recorded"
    bad, unclear = ((verdicts == each).sum() for each in (DIVERGED, NOT_COMPARABLE))
    if bad:
        return f"{word}: {bad:,} of {plural(len(rows), 'row')} differ{_where(of, rows)}"
    if unclear == len(rows):
        return f"{word}: not comparable"
    doubt = int(of.unsure[rows].sum())
    if doubt:
        return f"{word}: the same statistics, but of {doubt:,} of {len(rows):,} {UNSURE}"
    near = rows[verdicts == CLOSE]
    if _in_values(of, near).any():
        return f"{word}: the same within rounding ({len(near):,} of {len(rows):,} not to the bit)"
    last = f"; the last digits of {len(near):,} of {len(rows):,} differ" if len(near) else ""
    return f"{word}: the same (by {_by(of, rows[verdicts == SAME])}{last})"


def _where(of: Compared, rows: Rows) -> str:
    """Return the modules whose parameters or buffers differ."""
    sites = (of.places.sites[of.places.site[r]] for r in rows[of.verdicts[rows] == DIVERGED])
    found = list(dict.fromkeys(shown(site.module) for site in sites if site.role != "input"))
    more = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    return f" (in {', '.join(found[:_NAMED])}{more})" if found else ""


def _in_values(of: Compared, rows: Rows) -> NDArray[np.bool_]:
    """Tell where more differs than mean, std and l2, which are not known to the last digit."""
    sums = [MEASURES.index(name) for name in ("mean", "std", "l2")]
    apart = np.delete(of.found.apart[:, rows], sums, axis=0)
    bits = (of.checksums[rows] == 0) | (of.distance[rows] > 0)
    differs: NDArray[np.bool_] = (apart > 0).any(axis=0) | bits
    return differs


def _by(of: Compared, rows: Rows) -> str:
    if len(rows) and (of.checksums[rows] == 1).all():
        return "checksum"
    return "statistics and histograms" if np.isfinite(of.distance[rows]).any() else "statistics"


def _joined(parts: list[str], *, same: bool | None) -> str:
    head = {
        True: "Both were fed the same",
        False: "They were not fed the same",
        None: "Whether both were fed the same is not known",
    }[same]
    return f"{head}. {'; '.join(parts)}."
