"""The worst finding of a run, in words, and the badges of its sites.

The order of gravity: NaN, +Inf, -Inf; then values clipped at the largest number of their dtype,
values close to it, exploding, vanishing and dead gradients or outputs. Of one kind the first in
execution order is named, for what follows from it is no news.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis import evidence, trends
from probe_nb.analysis.alarms import HEADROOM, LIMITS
from probe_nb.analysis.firsts import First
from probe_nb.analysis.missed import missed
from probe_nb.analysis.tally import Tally
from probe_nb.analysis.words import number, place, plural, steps_of
from probe_nb.reasons import REMEDIES
from probe_nb.store.columns import Columns
from probe_nb.terms import STATUS_CODE, RunInfo

Kind = Literal["bad", "warn", "ok", "empty"]

NAN: Final = 1
INF: Final = 2
SATURATED: Final = 4
RISK: Final = 8
DEAD: Final = 16
VANISHING: Final = 32
EXPLODING: Final = 64
ABSENT: Final = 128
DOWNSTREAM: Final = 256

_PATIENCE: Final = 5
"""Overflowing steps in a row that a `GradScaler` may take to find its scale."""

_NON_FINITE: Final = (("nan", "NaN"), ("posinf", "+Inf"), ("neginf", "-Inf"))


@dataclass(frozen=True)
class Verdict:
    """The headline of a run.

    Attributes:
        kind: `bad`, `warn`, `ok`, or `empty` when there is nothing to judge.
        sentence: What is the matter and where.
        detail: How many elements, whether it was born there, what it reached; may be empty.
        site: Number of the site that the sentence is about.
        row: Number of its record.
    """

    kind: Kind
    sentence: str
    detail: str = ""
    site: int | None = None
    row: int | None = None


def verdict(columns: Columns, info: RunInfo | None = None) -> Verdict:
    """Judge all records; `info` lets an empty run say why it is empty.

    >>> verdict(Columns()).kind
    'empty'
    """
    tally = Tally(columns)
    tally.read()
    return Judge(tally).verdict(info)


def badges(columns: Columns) -> NDArray[np.int64]:
    """Return the badge bits of each site."""
    tally = Tally(columns)
    tally.read()
    return Judge(tally).badges()


class Judge:
    """Turns a tally into a verdict and badges; keeps the wording of what cannot change."""

    def __init__(self, tally: Tally) -> None:
        """Judge this tally, now and whenever it has read more."""
        self.tally = tally
        self._worded: dict[First, str] = {}
        self._records: dict[First, Any] = {}
        self._at = -1
        self._trends: dict[int, NDArray[np.bool_]] = {}

    def verdict(self, info: RunInfo | None = None) -> Verdict:
        """Return the worst finding so far."""
        tally = self.tally
        if not tally.rows:
            return _empty(info)
        culprit = self.culprit()
        if culprit is not None:
            return self._non_finite(*culprit)
        return self._scaler() or self._range() or self._trend() or self._fine()

    def badges(self) -> NDArray[np.int64]:
        """Return the badge bits of each site."""
        tally, latest = self.tally, self.tally.latest
        loud = ~latest["quiet"]
        nan = (tally.firsts["nan"].step >= 0) | (latest["nan_count"] > 0)
        inf = (tally.firsts["posinf"].step >= 0) | (tally.firsts["neginf"].step >= 0)
        inf |= loud & ((latest["posinf_count"] > 0) | (latest["neginf_count"] > 0))
        which = {
            NAN: nan,
            INF: inf,
            SATURATED: tally.firsts["saturated"].step >= 0,
            RISK: tally.firsts["risk"].step >= 0,
            **self._found_trends(),
            ABSENT: (latest["status"] != STATUS_CODE["ok"]) & (latest["row"] >= 0),
            DOWNSTREAM: self._downstream(),
        }
        bits = np.zeros(tally.sites, np.int64)
        for bit, sites in which.items():
            bits[sites] |= bit
        return bits

    def culprit(self) -> tuple[str, First] | None:
        """Return the first record of the gravest non-finite kind, with the name of the kind.

        An infinity that came before the first NaN in the same step stands for it: overflows turn
        into NaN a few modules on.
        """
        firsts = self.tally.firsts
        found = [(name, f) for kind, name in _NON_FINITE if (f := firsts[kind].overall) is not None]
        if not found:
            return None
        name, first = found[0]
        earlier = [(n, f) for n, f in found[1:] if f.step == first.step and f.before(first)]
        earlier = [pair for pair in earlier if pair[0] == "+Inf"]
        return earlier[0] if earlier else (name, first)

    # -- non-finite ------------------------------------------------------------------------------

    def _downstream(self) -> NDArray[np.bool_]:
        """Tell which sites turned non-finite after the culprit did."""
        tally, culprit = self.tally, self.culprit()
        if culprit is None:
            return np.zeros(tally.sites, np.bool_)
        _, first = culprit
        step, order = tally.firsts["bad"].step, tally.firsts["bad"].order
        after: NDArray[np.bool_] = (step > first.step) | (
            (step == first.step) & (order > first.order)
        )
        after[first.site] = False
        after &= step >= 0
        return after

    def _non_finite(self, name: str, first: First) -> Verdict:
        tally = self.tally
        if first not in self._worded:
            self._worded[first] = evidence.birth(tally, first, name)
        detail = self._worded[first]
        after = int(self._downstream().sum())
        if after:
            detail += f"; {plural(after, 'site')} of {tally.sites} turned NaN or Inf after it"
        sentence = f"{name} first appeared at step {first.step} in {place(tally, first.site)}"
        return Verdict("bad", sentence, detail, first.site, first.row)

    def _scaler(self) -> Verdict | None:
        """Return a finding if the gradients overflow under the loss scale, and go on doing so."""
        scaler = self.tally.scaler
        if not scaler.streak or scaler.row < 0:
            return None
        where = place(self.tally, scaler.site)
        bad = scaler.streak >= _PATIENCE
        sentence = (
            f"gradients overflowed under the loss scale in the last {plural(scaler.streak, 'step')}"
            f", first in {where}"
        )
        detail = f"the loss scale was {number(scaler.scale)}; GradScaler skips such steps"
        if bad:
            detail += ", but a scale that does not settle means that the gradients are not finite"
        return Verdict(
            "bad" if bad else "warn", _capital(sentence), detail, scaler.site, scaler.row
        )

    # -- range and trends ------------------------------------------------------------------------

    def _range(self) -> Verdict | None:
        tally = self.tally
        for kind in ("saturated", "risk"):
            first = tally.firsts[kind].overall
            if first is None:
                continue
            record = self._record(first)
            limit = LIMITS.get(record.dtype, (0, 0, record.absmax))[2]
            where = f"at step {first.step} in {place(tally, first.site)}"
            others = int((tally.firsts[kind].step >= 0).sum()) - 1
            detail = f"; the same in {plural(others, 'other site')}" if others else ""
            if kind == "saturated":
                sentence = f"Values stuck at the largest {record.dtype} number {where}"
                detail = (
                    f"{record.at_max_count:,} of {record.numel:,} elements are {number(limit)} in "
                    f"magnitude: what was larger has been clipped{detail}"
                )
            else:
                sentence = f"Values close to the end of the {record.dtype} range {where}"
                detail = (
                    f"largest |value| {number(record.absmax)}, {record.absmax / limit:.0%} of "
                    f"{number(limit)} (alarm from {HEADROOM:.0%}){detail}"
                )
            return Verdict("warn", sentence, detail, first.site, first.row)
        return None

    def _record(self, first: First) -> Any:
        """Return the numbers of a first record, looked up once: they may be on disk."""
        if first not in self._records:
            self._records[first] = evidence.record(self.tally, first.row)
        return self._records[first]

    def _found_trends(self) -> dict[int, NDArray[np.bool_]]:
        """Return which sites are exploding, vanishing, dead; computed once per reading."""
        if self._at != self.tally.rows:
            rules = (
                (EXPLODING, trends.exploding),
                (VANISHING, trends.vanishing),
                (DEAD, trends.dead),
            )
            self._trends = {bit: rule(self.tally) for bit, rule in rules}
            self._at = self.tally.rows
        return self._trends

    def _trend(self) -> Verdict | None:
        tally, latest = self.tally, self.tally.latest
        for bit, which in self._found_trends().items():
            sites = np.flatnonzero(which)
            if not len(sites):
                continue
            if bit == EXPLODING:
                site = int(sites[np.argmax(latest["absmax"][sites])])
            else:
                site = int(sites[np.argmin(latest["order"][sites])])
            detail = self._trend_detail(bit, site)
            if len(sites) > 1:
                detail += f"; the same in {plural(len(sites) - 1, 'other site')}"
            word = {EXPLODING: "Exploding", VANISHING: "Vanishing", DEAD: "Nothing but zeros"}[bit]
            sentence = f"{word} in {place(tally, site)}"
            return Verdict("warn", sentence, detail, site, int(latest["row"][site]))
        return None

    def _trend_detail(self, bit: int, site: int) -> str:
        tally = self.tally
        absmax, step = number(tally.latest["absmax"][site]), int(tally.latest["step"][site])
        if bit == DEAD:
            return f"in each of the last {trends.LASTING} steps it was seen in, up to step {step}"
        if bit == VANISHING:
            return (
                f"largest |value| {absmax} at step {step}, and under {trends.VANISHED:g} for the "
                f"last {trends.LASTING} steps while gradients elsewhere are a million times larger"
            )
        return (
            f"largest |value| {absmax} at step {step}; if a GradScaler is in use, pass it as "
            "`scaler=`"
        )

    # -- nothing to complain about ---------------------------------------------------------------

    def _fine(self) -> Verdict:
        tally, latest = self.tally, self.tally.latest
        what = f"{steps_of(len(tally.steps))}, {plural(len(tally.modules), 'module')}"
        absmax = np.where(self._floats(), latest["absmax"], np.nan)
        if np.isnan(absmax).all():
            return Verdict("ok", f"{what}, no NaN or Inf", "; ".join(self._notes()))
        largest = int(np.nanargmax(absmax))
        sentence = (
            f"{what}, no NaN or Inf; largest |value| {number(absmax[largest])} in "
            f"{place(tally, largest)}"
        )
        return Verdict(
            "ok", sentence, "; ".join(self._notes()), largest, int(latest["row"][largest])
        )

    def _floats(self) -> NDArray[np.bool_]:
        """Tell which sites hold floating-point numbers: token ids are large and mean nothing."""
        names = self.tally.columns.tables.dtypes.values
        floats = np.array([*(trends.is_float(name) for name in names), False])
        return floats[self.tally.latest["dtype"]]

    def _notes(self) -> list[str]:
        notes = []
        quiet = int(self.tally.latest["quiet"].sum())
        if quiet:
            notes.append(f"-Inf in {plural(quiet, 'input')} whose output is finite (a mask)")
        overflowed = len(self.tally.scaler.overflowed)
        if overflowed:
            steps = steps_of(overflowed)
            notes.append(f"gradients overflowed under the loss scale in {steps}, and recovered")
        return notes


def _empty(info: RunInfo | None) -> Verdict:
    """Say why nothing was recorded."""
    if info is None:
        return Verdict("empty", "Nothing was recorded")
    if info.ended == "open":
        names = ", ".join(info.models) or "the model"
        return Verdict("empty", f"Nothing recorded yet: waiting for a forward of {names}")
    reasons: dict[str, int] = {}
    for each in missed(info):
        reason = each.get("reason", "")
        reasons[reason] = reasons.get(reason, 0) + 1
    listed = sorted(reasons.items(), key=lambda item: -item[1])[:3]
    parts = [f"{plural(count, 'module')}: {reason}" for reason, count in listed if reason]
    for option, noun in (("steps", "steps"), ("token_range", "tokens")):
        if asked := info.config.get(option):
            words = asked if isinstance(asked, str) else " to ".join(map(str, asked))
            parts.insert(0, f"only {noun} {words} were asked for")
    why = "; ".join(parts) or "no forward of the model ran inside the watch"
    remedy = next((REMEDIES[reason] for reason, _ in listed if reason in REMEDIES), "")
    return Verdict("empty", "Nothing was recorded", f"{why}. {remedy}" if remedy else why)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
