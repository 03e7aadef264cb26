"""Whether each rank was fed data of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from probe_nb.analysis.advice import advice_for
from probe_nb.analysis.ranks.rows import Rows
from probe_nb.analysis.ranks.statement import Statement
from probe_nb.analysis.words import plural
from probe_nb.store.about_many import of_ranks

_FEW: Final = 3
_EVIDENCE: Final = 16
_Sign = tuple[tuple[int, int], ...]


class Inputs:
    """What the models of all ranks were fed."""

    def __init__(self, rows: Rows, *, split: bool) -> None:
        """Compare these; `split` says that ranks share a model, and may share their data too."""
        self._rows, self._split = rows, split
        self._fed = self._signs()

    def said(self) -> Iterator[Statement]:
        """Say which ranks were fed the same."""
        ranks = sorted({rank for each in self._fed.values() for rank in each})
        if len(ranks) < 2:  # noqa: PLR2004 - two to compare
            yield Statement(
                "note",
                "inputs",
                (),
                "No inputs were compared",
                detail="what the model is fed was constant, or not recorded on two ranks: `roles=` "
                "has to have `input`, and `select=` the model itself",
            )
            return
        groups = self._groups(ranks)
        for group, equal, common in groups:
            yield self._same(group, equal, common)
        if not groups:
            yield Statement(
                "note",
                "inputs",
                tuple(ranks),
                f"{of_ranks(ranks, begin=True)} were fed different data",
                detail=f"compared in {plural(len(self._fed), 'forward')}",
            )

    def _signs(self) -> dict[tuple[int, int, int], dict[int, _Sign]]:
        """Return of each forward what each rank was fed, as numbers that are equal where it was."""
        rows, data = self._rows, self._rows.data
        found: dict[tuple[int, int, int], dict[int, list[tuple[int, int]]]] = {}
        tells: set[tuple[tuple[int, int, int], int]] = set()
        names = ("step", "micro_step", "call", "rank", "site", "numel", "std")
        for place, (step, micro, call, rank, site, numel, std) in enumerate(
            zip(*(data[name].tolist() for name in names), strict=True)
        ):
            at = step, micro, call
            sign = site, int(rows.print[place])
            found.setdefault(at, {}).setdefault(rank, []).append(sign)
            if numel > 1 and std > 0:  # a constant says nothing
                tells.add((at, rank))
        return {
            at: {rank: tuple(sorted(sign)) for rank, sign in fed.items() if (at, rank) in tells}
            for at, fed in found.items()
        }

    def _groups(self, ranks: list[int]) -> list[tuple[list[int], int, int]]:
        """Return ranks that were fed the same, in how many forwards, and of how many."""
        equal, common = np.zeros((2, len(ranks), len(ranks)), np.int64)
        for fed in self._fed.values():
            for one, first in enumerate(ranks):
                for other, second in enumerate(ranks):
                    if one < other and first in fed and second in fed:
                        common[one, other] += 1
                        equal[one, other] += fed[first] == fed[second]
        same = (equal >= np.minimum(_FEW, common)) & (2 * equal >= common) & (common > 0)
        groups: list[tuple[list[int], int, int]] = []
        taken: set[int] = set()
        for one in range(len(ranks)):
            others = [other for other in range(one + 1, len(ranks)) if same[one, other]]
            if one in taken or not others:
                continue
            taken.update([one, *others])
            counts = [(int(equal[one, other]), int(common[one, other])) for other in others]
            groups.append(([ranks[n] for n in (one, *others)], *min(counts)))
        return groups

    def _same(self, group: list[int], equal: int, common: int) -> Statement:
        rows = self._rows
        evidence: list[int] = []
        step = 0
        for (first, micro, call), fed in sorted(self._fed.items()):
            if all(fed.get(rank) == fed.get(group[0]) is not None for rank in group):
                here = (rows.data["step"] == first) & (rows.data["micro_step"] == micro)
                here &= (rows.data["call"] == call) & np.isin(rows.data["rank"], group)
                step = step if evidence else first
                evidence += rows.rows[here].tolist()
        place = int(np.flatnonzero(rows.rows == evidence[0])[0]) if evidence else 0
        return Statement(
            "note" if self._split else "warning",
            "same_input",
            tuple(group),
            f"{of_ranks(group, begin=True)} were fed the same data in {equal} of "
            f"{plural(common, 'forward')}",
            step=step,
            at=rows.site(place),
            detail="every statistic of every input is the same",
            advice=advice_for("same_input", ""),
            rows=tuple(evidence[:_EVIDENCE]),
            value=equal / common,
        )
