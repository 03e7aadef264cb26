"""A comparison as the inspector's front end reads it: the same three parts as a run has.

The frame holds both runs, row by row the same sites (`wire`); the status says what was found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.alarms import LIMITS
from probe_nb.analysis.compare.judge import VERDICTS
from probe_nb.analysis.compare.measures import MEASURES
from probe_nb.analysis.verdict import ABSENT, DOWNSTREAM, INF, NAN
from probe_nb.analysis.words import plural
from probe_nb.terms import COUNTS, STATISTICS, STATUS_CODE, Site
from probe_nb.view import compare, wire
from probe_nb.view.frame import title
from probe_nb.view.pairs import Half, SitePairs
from probe_nb.view.stacks import Stacks

if TYPE_CHECKING:
    from probe_nb.comparison import Comparison
    from probe_nb.run import Run

_KINDS: Final = {"✕": "bad", "!": "warn", "✓": "ok"}
_OF_PAIR: Final = {
    "difference": "difference",
    "explained": "tolerance",
    **{name: name for name in ("came_in", *wire.PAIRS[wire.PAIRS.index("histogram_distance") :])},
}
"""Columns of the wire that are columns of `Comparison.df`."""


class Comparing:
    """Writes down what a front end needs to show a comparison."""

    def __init__(self, comparison: Comparison) -> None:
        """Write about this comparison."""
        self.comparison = comparison
        self.pairs = SitePairs(comparison)
        runs = (comparison.candidate, comparison.baseline)
        called = [run.call_table for run in runs if run.call_table.stacks.values]
        self.stacks = Stacks(called[0] if called else None)
        self.stacks.read()

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.pairs)

    def update(self) -> tuple[str, str, bytes]:
        """Return sites, status and frame."""
        return self.sites(), self.status(), self.frame()

    def worst_first(self) -> NDArray[np.intp]:
        """Return the rows: divergences first, then what diverged, one-sided rows, the rest."""
        pairs = self.pairs
        shown = pairs.shown
        grave = np.select(
            [pairs.origin[shown] > 0, pairs.diverged[shown], pairs.one_sided[shown]], [0, 1, 2], 3
        )
        return np.argsort(grave, kind="stable")

    # -- sites -----------------------------------------------------------------------------------

    def sites(self, rows: NDArray[np.intp] | None = None) -> str:
        """Return what each row is, as JSON: as the candidate has it, and what differs before."""
        chosen = np.arange(len(self)) if rows is None else rows
        lines = [self._site(r) for r in chosen]
        found = {"version": wire.COMPARED, "rows": lines}
        return wire.compact(found | self.stacks.told([line.get("stack", -1) for line in lines]))

    def _site(self, row: int) -> dict[str, Any]:
        entry = int(self.pairs.shown[row])
        before, now = (_about(half, entry) for half in self.pairs.halves)
        about = dict(now or before or {})
        if before and now:
            other = {name: value for name, value in before.items() if value != now[name]}
            if other:
                about["baseline"] = other
        reason = self.pairs.frame["reason"].iloc[entry]
        if isinstance(reason, str) and reason:
            about["why"] = reason
        stack = self.stacks.of(_site_of(self.pairs.halves, entry))
        return about | ({"stack": stack} if stack >= 0 else {})

    # -- status ----------------------------------------------------------------------------------

    def status(self, rows: NDArray[np.intp] | None = None, truncated: str | None = None) -> str:
        """Return everything that is not one number per row, as JSON."""
        of = self.comparison
        sign, _, sentence = compare.sentence(of).partition(" ")
        first = of.first_divergence()
        found = self._divergences(rows)
        running = of.candidate.info.ended == "open"
        if running and not len(self.pairs.found):
            sign, sentence = "", "Nothing to compare yet"
        status = {
            "version": wire.COMPARED,
            "title": f"{title(of.candidate.info)} against {title(of.baseline.info)}",
            "open": running,
            "ended": of.candidate.info.ended,
            "headline": {
                "kind": _KINDS.get(sign, "empty"),
                "text": sentence,
                "detail": first.detail if first else "",
                "row": found[0]["row"] if found else None,
            },
            "step": None,
            "steps": len(np.unique(self.pairs.step)),
            "records": len(of),
            "modules": len({s.module for h in self.pairs.halves for s in h.side.sites if s.module}),
            "missed_text": "",
            "unobserved": [],
            "notices": [str(each) for each in of.notices],
            "truncated": truncated,
            "stat_names": list(wire.COLUMNS),
            "spark": "absmax",
            "spark_steps": self.pairs.trend_steps.tolist(),
            "dtype_limits": {name: list(limits) for name, limits in LIMITS.items()},
            "comparison": self._comparison(found),
        }
        return wire.compact(status)

    def _comparison(self, found: list[dict[str, Any]]) -> dict[str, Any]:
        of = self.comparison
        return {
            "verdicts": list(VERDICTS),
            "measures": list(MEASURES),
            "fed": of.fed_same.same,
            "fed_text": of.fed_same.sentence,
            "baseline": _side(of.baseline),
            "candidate": _side(of.candidate),
            "divergences": found,
        }

    def _divergences(self, rows: NDArray[np.intp] | None) -> list[dict[str, Any]]:
        """Say where the runs part, each with its row, None where that is left out."""
        places = {int(row): at for at, row in enumerate(range(len(self)) if rows is None else rows)}
        origins = self.comparison._origins  # noqa: SLF001
        return [
            {
                "text": each.sentence,
                "detail": each.detail,
                "row": places.get(int(self.pairs.site[origin.first])),
            }
            for each, origin in zip(self.comparison.divergences, origins, strict=True)
        ]

    # -- frame -----------------------------------------------------------------------------------

    def frame(self, rows: NDArray[np.intp] | None = None) -> bytes:
        """Return the numbers of both runs and of their pairs."""
        chosen = np.arange(len(self)) if rows is None else rows
        baseline, candidate = (self._half(half, chosen) for half in self.pairs.halves)
        return wire.comparison(self._pairs(chosen), candidate, baseline)

    def _pairs(self, chosen: NDArray[np.intp]) -> list[Any]:
        pairs = self.pairs
        entry = pairs.shown[chosen]
        found: dict[str, Any] = {
            "verdict": pairs.verdict[entry],
            "measure": pairs.frame["measure"].cat.codes.to_numpy()[entry],
            "beyond": pairs.beyond[entry],
            "origin": pairs.origin[entry],
            "follows": pairs.follows[entry],
            "pairs": pairs.counted(~pairs.one_sided)[chosen],
            "diverged": pairs.counted(pairs.diverged)[chosen],
            "one_sided": pairs.counted(pairs.one_sided)[chosen],
        }
        found |= {name: pairs.numbers(column)[entry] for name, column in _OF_PAIR.items()}
        return [found[name] for name in wire.PAIRS]

    def _half(self, half: Half, chosen: NDArray[np.intp]) -> bytes:
        pairs = self.pairs
        entry = pairs.shown[chosen]
        there = half.at[entry] >= 0
        names = ("step", "numel", *STATISTICS, *COUNTS, "status")
        found: dict[str, Any] = {name: half.pick(name, entry) for name in names}
        found["order"] = chosen
        found["calls"] = np.where(there, self._calls(half)[entry], np.nan)
        found["first_bad_step"] = pairs.first_bad(half)[chosen]
        found["badges"] = np.where(there, _badges(found, pairs.follows[entry] > 0), np.nan)
        columns = [found[name] for name in wire.COLUMNS]
        return wire.frame(columns, pairs.trend(half)[chosen], *half.histograms(entry))

    def _calls(self, half: Half) -> NDArray[np.intp]:
        """Return how many records of its site in its step there are, entry by entry."""
        pairs = self.pairs
        key = pairs.site * (int(pairs.step.max(initial=0)) + 1) + pairs.step
        _, which = np.unique(key, return_inverse=True)
        found: NDArray[np.intp] = np.bincount(which, half.at >= 0)[which]
        return found


def _site_of(halves: tuple[Half, Half], entry: int) -> Site:
    """Return what an entry is of, as the candidate calls it, else the baseline."""
    half = max(halves, key=lambda each: (each.at[entry] >= 0, each is halves[1]))
    site: Site = half.side.sites[half.side.data["site"][half.at[entry]]]
    return site


def _about(half: Half, entry: int) -> dict[str, Any] | None:
    at = int(half.at[entry])
    if at < 0:
        return None
    data, tables = half.side.data, half.side.columns.tables
    site = half.side.sites[data["site"][at]]
    dtype, shape, device = (int(data[name][at]) for name in ("dtype", "shape", "device"))
    return wire.site_of(site) | {
        "dtype": tables.dtypes.values[dtype] if dtype >= 0 else "",
        "shape": list(tables.shapes.values[shape]) if shape >= 0 else [],
        "device": tables.devices.values[device] if device >= 0 else "",
    }


def _badges(found: dict[str, Any], follows: NDArray[np.bool_]) -> NDArray[np.int64]:
    status = found["status"]
    nan = (found["nan_count"] > 0) | (status == STATUS_CODE["has_nan"])
    infinite = (found["posinf_count"] > 0) | (found["neginf_count"] > 0)
    infinite |= status == STATUS_CODE["has_inf"]
    absent = ~((status == STATUS_CODE["ok"]) | nan | infinite)
    badges: NDArray[np.int64] = NAN * nan + INF * infinite + ABSENT * absent + DOWNSTREAM * follows
    return badges


def _side(run: Run) -> str:
    records = plural(len(run), "record")
    return f"{title(run.info)} on {', '.join(run.info.devices)}, {records}"
