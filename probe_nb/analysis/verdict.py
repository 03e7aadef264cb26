"""The headline of a run, which is its first finding in words, and the badges of its sites."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis import findings, nothing
from probe_nb.analysis.alarms import LIMITS
from probe_nb.analysis.finding import Finding
from probe_nb.analysis.firsts import First
from probe_nb.analysis.missed import missed
from probe_nb.analysis.rules import activations, gradients, nonfinite
from probe_nb.analysis.rules.scene import Scene
from probe_nb.analysis.tally import Tally
from probe_nb.analysis.words import is_optimizer, number, place, plural, steps_of
from probe_nb.reasons import NEVER
from probe_nb.store.columns import Columns
from probe_nb.store.stream import ALONE
from probe_nb.terms import DIRECTIONS, ROLES, STATUS_CODE, RunInfo

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


_UNHURRIED: Final = 200
"""Who is in no hurry waits for this multiple of the time that the rules took."""


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
    """Turns a tally into findings, a verdict and badges; asks the rules once per reading."""

    def __init__(self, tally: Tally, *, unhurried: bool = False) -> None:
        """Judge this tally, now and whenever it has read more.

        One that is `unhurried` takes no more than half a per cent of the time of an open run for
        its rules: between two looks it repeats what it said, unless something became NaN or Inf.
        """
        self.tally = tally
        self._unhurried = unhurried
        self._again = 0.0
        self._at: tuple[int, Any] | None = None
        self._found: list[Finding] = []
        self._seen: Scene | None = None
        self._worded: dict[Any, Any] = {}

    def findings(self, info: RunInfo | None = None) -> list[Finding]:
        """Return what was found so far, worst first."""
        now, born = time.monotonic(), self.tally.origins.birth
        same = self._at is not None and self._at[1] == born
        if same and self._unhurried and info and info.ended == "open" and now < self._again:
            return self._found
        if self._at != (self.tally.rows, born):
            self._found = findings.found(self._scene(info))
            self._at = (self.tally.rows, born)
            done = time.monotonic()
            self._again = done + _UNHURRIED * (done - now)
        return self._found

    def _scene(self, info: RunInfo | None = None) -> Scene:
        seen = self._seen
        if seen is None or seen.rows != self.tally.rows or (info is not None and not seen.info):
            seen = self._seen = Scene(self.tally, info, self._worded)
        return seen

    def verdict(self, info: RunInfo | None = None) -> Verdict:
        """Return the worst finding so far."""
        lost = nothing.lost(info)
        if not self.tally.rows:
            return _empty(info)
        if not lost and (beside := self._beside_the_point(info)):
            return beside
        worst = next(iter(self.findings(info)), None)
        if worst is None or worst.severity == "note":
            if lost:
                return Verdict("warn", "Not all could be recorded", lost)
            if why := nothing.unmeasured(self.tally.statuses):
                return Verdict("empty", "Nothing was measured", why)
            return self._fine(nothing.absent(info))
        kind: Kind = "bad" if worst.severity == "error" else "warn"
        return Verdict(kind, worst.sentence, worst.detail, worst.site, worst.row)

    def _beside_the_point(self, info: RunInfo | None) -> Verdict | None:
        """Say why there is nothing to judge though there are records, None if there is."""
        if alone := self._alone():
            return Verdict("empty", alone)
        return _without_model(info) if info and self._of_optimizers_alone(info) else None

    def _alone(self) -> str:
        """Say what was recorded where no number was asked for, "" if one was."""
        if (self.tally.latest["status"] != STATUS_CODE["not_asked"]).any():
            return ""
        if self.tally.columns.tables.checksums.values:
            return "Checksums alone were recorded: compare with another run"
        return "Shapes and dtypes alone were recorded: see run.structure()"

    def _of_optimizers_alone(self, info: RunInfo) -> bool:
        """Tell whether optimizers are all that was seen, and the model never ran."""
        if not all(map(is_optimizer, self.tally.columns.tables.sites.values)):
            return False
        if info.ended == "open":
            return "output" in info.config.get("roles", ()) and not info.config.get("select")
        reasons = {each.get("reason") for each in missed(info)}
        return reasons == {NEVER}

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
            DOWNSTREAM: nonfinite.downstream(tally),
        }
        bits = np.zeros(tally.sites, np.int64)
        for bit, sites in which.items():
            bits += bit * sites
        if (culprit := self.culprit()) is not None:  # -Inf may be there on purpose elsewhere
            bits[culprit[1].site] |= NAN if culprit[0] == "NaN" else INF
        return bits

    def culprit(self) -> tuple[str, First] | None:
        """Return the record in which the first NaN or Inf shows, with the name of its kind."""
        return nonfinite.culprit(self.tally)

    def _found_trends(self) -> dict[int, NDArray[np.bool_]]:
        """Return which sites are exploding, vanishing, dead."""
        scene = self._scene()
        with np.errstate(all="ignore"):
            return {
                EXPLODING: gradients.huge(scene),
                VANISHING: gradients.tiny(scene),
                DEAD: activations.all_zero(scene),
            }

    # -- nothing to complain about ---------------------------------------------------------------

    def _fine(self, absent: str) -> Verdict:
        """Say that all is well; of a job of which ranks are missing that is not known."""
        kind: Kind = "warn" if absent else "ok"
        tally, latest = self.tally, self.tally.latest
        what = f"{steps_of(len(tally.steps))}, {plural(len(tally.listed), 'module')}"
        flows = self._scene().floats & (tally.direction != DIRECTIONS.index("optimizer"))
        flows &= ~self._masks() & (tally.role != ROLES.index("state"))  # extras are no values
        flows &= latest["absmax"] >= 0  # it is there
        absmax = np.where(flows, latest["absmax"], -1)  # counts of steps are no values
        none = self.tally.firsts["bad"].overall is None
        what += ", no NaN or Inf" if none else ", no NaN or Inf was born"
        what = f"{absent}: {what}" if absent else what
        if not flows.any():
            return Verdict(kind, what, "; ".join(self._notes()))
        largest = int(absmax.argmax())
        sentence = f"{what}; largest |value| {number(absmax[largest])} in {place(tally, largest)}"
        return Verdict(
            kind, sentence, "; ".join(self._notes()), largest, int(latest["row"][largest])
        )

    def _masks(self) -> NDArray[np.bool_]:
        """Tell which inputs and buffers hold the lowest number of their dtype, as masks do."""
        latest, role = self.tally.latest, self.tally.role
        reached: NDArray[np.bool_] = latest["at_max_count"] > 0
        if not reached.any():
            return reached
        names = self.tally.columns.tables.dtypes.values
        limits = np.array([*(LIMITS[n][2] if n in LIMITS else np.inf for n in names), np.inf])
        taken: NDArray[np.bool_] = (role == ROLES.index("input")) | (role == ROLES.index("buffer"))
        lowest: NDArray[np.bool_] = latest["min"] <= -limits[latest["dtype"]]
        return taken & lowest & reached

    def _notes(self) -> list[str]:
        notes = []
        quiet = self.tally.latest["quiet"]
        if taken := int((quiet & (self.tally.role == ROLES.index("input"))).sum()):
            notes.append(f"-Inf in {plural(taken, 'input')} whose output is finite (a mask)")
        if given := int((quiet & (self.tally.role == ROLES.index("output"))).sum()):
            notes.append(f"-Inf in {plural(given, 'output')} that did no harm")
        overflowed = len(self.tally.scaler.overflowed)
        if overflowed:
            steps = steps_of(overflowed)
            went = "and recovered" if not self.tally.scaler.streak else "the last one included"
            notes.append(f"gradients overflowed under the loss scale in {steps}, {went}")
        return notes


def _without_model(info: RunInfo) -> Verdict:
    """Say that an optimizer stepped, and nothing of the model ran: it may be another one by now."""
    if info.ended == "open":
        text = f"Nothing of the model was recorded yet: waiting for {nothing.awaited(info)}"
        return Verdict("empty", text)
    why = "an optimizer stepped and no forward of the model was seen: was it replaced?"
    return Verdict("empty", "Nothing of the model was recorded", why)


def _empty(info: RunInfo | None) -> Verdict:
    """Say why nothing was recorded."""
    if info is None:
        return Verdict("empty", "Nothing was recorded")
    if lost := nothing.lost(info):
        return Verdict("warn", "Nothing could be recorded", lost)
    if info.ended == "open":
        return Verdict("empty", f"Nothing recorded yet: waiting for {nothing.awaited(info)}")
    if ALONE in info.notices:
        return Verdict("empty", "No records were saved here", ALONE)
    return Verdict("empty", "Nothing was recorded", nothing.unrecorded(info))
