"""Whether the gradients, or the loss, of one rank stick out among those of the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.ranks.rows import Rows
from probe_nb.analysis.ranks.statement import Statement
from probe_nb.analysis.words import number, steps_of
from probe_nb.store.about_many import of_ranks

_FEW: Final = 3
_EVIDENCE: Final = 16
_BATCH: Final = (
    "Look at the batches of this rank: `run.inputs(..., rank={rank})`. After averaging, its "
    "gradient decides over all ranks."
)


class Sizes:
    """One number of each rank and step, compared with those of the others."""

    def __init__(self, rows: Rows, what: str, limit: float) -> None:
        """Compare what was measured; `what` begins a sentence, `limit` times is too much."""
        self._rows, self._what, self._limit = rows, what, limit
        self._steps = np.unique(rows.data["step"])
        self._ranks = np.unique(rows.data["rank"])

    def said(self, values: NDArray[np.float64], *, squares: bool) -> Iterator[Statement]:
        """Say which rank sticks out.

        Args:
            values: A number of each row.
            squares: Those of one step are joined as the root of the sum of their squares; else as
                their mean.
        """
        if len(self._ranks) < 2 or not len(self._steps):  # noqa: PLR2004 - two to compare
            return
        data = self._rows.data
        at = np.searchsorted(self._ranks, data["rank"]), np.searchsorted(self._steps, data["step"])
        total, count = np.zeros((2, len(self._ranks), len(self._steps)))
        np.add.at(total, at, np.square(values) if squares else values)
        np.add.at(count, at, 1)
        with np.errstate(all="ignore"):
            table = np.where(count > 0, np.sqrt(total) if squares else total / count, np.nan)
        for place, rank in enumerate(self._ranks.tolist()):
            above, below = _times(table, place)
            known = np.isfinite(above) & np.isfinite(below)
            few = min(_FEW, int(known.sum()))
            large, small = above >= self._limit, known & (below * self._limit <= 1)
            if few and large.sum() >= few:
                yield self._sticks_out(rank, above, large, "larger")
            elif few and small.sum() >= few and len(self._ranks) > 2:  # noqa: PLR2004
                yield self._sticks_out(rank, below, small, "smaller")  # of two one is said

    def _sticks_out(
        self, rank: int, times: NDArray[np.float64], out: NDArray[np.bool_], how: str
    ) -> Statement:
        typical = float(np.median(times[out]))
        factor = typical if how == "larger" else (1 / typical if typical > 0 else np.inf)
        steps = f"{int(out.sum())} of {steps_of(int(np.isfinite(times).sum()))}"
        is_ = f"is {number(factor)} times {how} than that of any other in {steps}"
        none = f"is 0 in {steps}, that of no other is"
        here = np.isin(self._rows.data["step"], self._steps[out])
        here &= self._rows.data["rank"] == rank
        return Statement(
            "warning",
            "outlier",
            (rank,),
            f"{self._what} of rank {rank} {is_ if np.isfinite(factor) else none}",
            step=int(self._steps[out][0]),
            at=self._rows.site(int(np.flatnonzero(here)[0])),
            detail=f"a warning from {number(self._limit)} times on",
            advice=_BATCH.format(rank=rank),
            rows=tuple(self._rows.rows[here][:_EVIDENCE].tolist()),
            value=factor,
            threshold=self._limit,
        )


def _times(table: NDArray[np.float64], place: int) -> Any:
    """Return how many times larger a rank is than the largest and the smallest other, by step."""
    own, others = table[place], np.delete(table, place, axis=0)
    full = np.isfinite(others).all(axis=0) & np.isfinite(own)
    with np.errstate(all="ignore"):
        found = own / np.array([others.max(axis=0), others.min(axis=0)])
    return np.where(full & np.isfinite(found), found, np.nan)


def stopped(last: dict[int, int]) -> Iterator[Statement]:
    """Say which ranks end earlier than others; `last` has the last step of each."""
    end = max(last.values(), default=0)
    short = sorted(rank for rank, step in last.items() if step < end)
    if short:
        at = min(last[rank] for rank in short)
        verb = "ends" if len(short) == 1 else "end"
        yield Statement(
            "warning",
            "stopped",
            tuple(short),
            f"{of_ranks(short, begin=True)} {verb} at step {at}, others go on to step {end}",
            step=at,
            detail="nothing that came later is compared with them",
            advice="Look at how their watch ended: `run.info.processes`.",
        )
