"""Whether two runs were fed the same: root inputs, first parameters, buffers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from probe_nb.analysis.compare.compared import Compared
from probe_nb.analysis.compare.judge import CLOSE, DIVERGED, NOT_COMPARABLE, SAME
from probe_nb.analysis.words import plural

if TYPE_CHECKING:
    import pandas as pd

_PARTS: Final = {"input": "inputs", "param": "initial parameters", "buffer": "initial buffers"}


@dataclass(frozen=True, eq=False)
class Fed:
    """Whether both runs were fed the same.

    Attributes:
        same: True or False; None where nothing of it was recorded.
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
        parts.append(_said(word, verdicts[role == name], of, rows[role == name]))
    judged = verdicts[verdicts != NOT_COMPARABLE]
    same = None if not len(judged) else not (judged == DIVERGED).any()
    return Fed(same, _joined(parts, same=same), frame.iloc[rows])


def _said(word: str, verdicts: np.ndarray, of: Compared, rows: np.ndarray) -> str:
    if not len(verdicts):
        return f"{word}: none recorded"
    bad = int((verdicts == DIVERGED).sum())
    if bad:
        return f"{word}: {bad:,} of {plural(len(verdicts), 'row')} differ"
    near, unclear = int((verdicts == CLOSE).sum()), int((verdicts == NOT_COMPARABLE).sum())
    if unclear == len(verdicts):
        return f"{word}: not comparable"
    if near:
        return f"{word}: the same within rounding ({near:,} of {len(verdicts):,} not to the bit)"
    by = "checksum" if (of.checksums[rows[verdicts == SAME]] == 1).all() else "statistics"
    if np.isfinite(of.distance[rows]).any() and by == "statistics":
        by = "statistics and histograms"
    return f"{word}: the same (by {by})"


def _joined(parts: list[str], *, same: bool | None) -> str:
    head = {
        True: "Both were fed the same",
        False: "They were not fed the same",
        None: "Whether both were fed the same is not known",
    }[same]
    return f"{head}. {'; '.join(parts)}."
