"""A run as the inspector's front end reads it: two JSON texts and a block of bytes.

`FrameBuilder` reads each record once, so that an update costs the same after an hour as after a
minute. `wire` says how the numbers are laid out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.alarms import LIMITS
from probe_nb.analysis.finding import Finding
from probe_nb.analysis.missed import missed, missed_of
from probe_nb.analysis.tally import Tally, cut
from probe_nb.analysis.verdict import Judge, Verdict
from probe_nb.grammar import spelled
from probe_nb.store.columns import Columns
from probe_nb.terms import RunInfo, Site
from probe_nb.view import found, picture, wire
from probe_nb.view.stacks import Stacks
from probe_nb.view.wire import COLUMNS, VERSION, compact

if TYPE_CHECKING:
    from probe_nb.records import Records

_LISTED: Final = 100
"""Unobserved modules and notices that are sent; the rest is counted."""

_FIXED: Final = compact(
    {
        "stat_names": list(COLUMNS),
        "spark": "absmax",
        "dtype_limits": {name: list(limits) for name, limits in LIMITS.items()},
    }
)[1:-1]
"""What is the same in every status."""


@contextlib.contextmanager
def reading(run: Records) -> Iterator[FrameBuilder]:
    """Give a builder that has read `run`: the one that it keeps, where nobody else has it.

    It is handed back when all went well: one that was interrupted may have read by halves. Where
    somebody removed files of the run, what is left is read, and a notice says what is not.
    """
    run.flush()
    columns, gone = run.columns.there()
    if gone:
        info = replace(run.info, notices=[gone, *run.info.notices])
        builder = FrameBuilder(columns, info, beside=run)
    else:
        builder = _kept(run) or FrameBuilder(columns, run.info, beside=run)
    builder.update()
    yield builder
    if not gone:
        run.readers[:] = [builder]


def _kept(run: Records) -> FrameBuilder | None:
    """Take the builder that a run keeps, so that no other thread has it."""
    try:
        kept: FrameBuilder = run.readers.pop()
    except IndexError:
        return None
    return kept


class FrameBuilder:
    """Keeps the state that a front end needs and writes it down.

    Cost: under 2 ms per update at 2,000 sites, apart from the first.
    """

    def __init__(
        self,
        columns: Columns,
        info: RunInfo,
        *,
        live: bool = False,
        beside: Records | None = None,
    ) -> None:
        """Build frames of these records; a `live` one is asked several times a second.

        The updates of a live one leave the trend out, which is sent less often.
        Calls and kept tensors are those of the run `beside`, which itself is not held.
        """
        self.tensors = None if beside is None else beside.tensors
        self.stacks = Stacks(None if beside is None else beside.call_table)
        self.tally = Tally(columns)
        self.judge = Judge(self.tally, unhurried=live)
        self._live = live
        self.info = info
        self._lines: list[str] = []
        self._begins: list[str] = []
        self._ends: dict[tuple[int, ...], str] = {}
        self._keys: NDArray[np.int64] = np.empty((4, 0), np.int64)
        self._told: tuple[list[Finding] | None, str] = None, ""
        self._unseen: tuple[Any, str] = None, ""

    def update(self) -> tuple[str | None, str, bytes]:
        """Read what is new; return the sites if they changed, the status and the frame."""
        self.tally.read()
        changed = self._describe()
        return self.sites() if changed else None, self.status(), self.frame(trend=not self._live)

    def verdict(self) -> Verdict:
        """Return the headline of what was read."""
        return self.judge.verdict(self.info)

    def findings(self) -> list[Finding]:
        """Return all that was found, worst first."""
        return self.judge.findings(self.info)

    # -- sites -----------------------------------------------------------------------------------

    def sites(self, rows: NDArray[np.intp] | None = None) -> str:
        """Return what each row is, as JSON; of the chosen rows only, in their order."""
        lines = self._lines if rows is None else [self._lines[row] for row in rows]
        told = self._keys[3] if rows is None else self._keys[3][rows]
        more = f",{compact(stacks)[1:-1]}" if (stacks := self.stacks.told(told.tolist())) else ""
        return f'{{"version":{VERSION},"rows":[{",".join(lines)}]{more}}}'

    def _describe(self) -> bool:
        """Write the lines of new sites, and of those of which dtype, shape and such changed."""
        latest, tables = self.tally.latest, self.tally.columns.tables
        stacks = self._stacks(len(latest["dtype"]))
        keys = np.stack([latest["dtype"], latest["shape"], latest["device"], stacks])
        old = self._keys.shape[1]
        if old and np.array_equal(keys, self._keys):
            return False
        changed = np.append(
            (keys[:, :old] != self._keys).any(axis=0), np.ones(len(keys[0]) - old, bool)
        )
        self._begins += [_begin(site) for site in tables.sites.values[old : len(keys[0])]]
        self._lines += [""] * (len(keys[0]) - old)
        rows = np.flatnonzero(changed)
        for row, key in zip(rows.tolist(), map(tuple, keys[:, rows].T.tolist()), strict=True):
            self._lines[row] = f"{self._begins[row]},{self._end(key)}"
        self._keys = keys
        return True

    def _stacks(self, number: int) -> NDArray[np.int64]:
        """Return which stack each site has, -1 for none."""
        old = self._keys[3]
        begin = 0 if self.stacks.read() else len(old)
        sites = self.tally.columns.tables.sites.values[begin:number]
        return np.append(old[:begin], np.array([self.stacks.of(s) for s in sites], np.int64))

    def _end(self, key: tuple[int, ...]) -> str:
        """Return the end of a line: dtype, shape, device and stack, which many sites share."""
        if key not in self._ends:
            (dtype, shape, device, stack), tables = key, self.tally.columns.tables
            about = {
                "dtype": tables.dtypes.values[dtype] if dtype >= 0 else "",
                "shape": list(tables.shapes.values[shape]) if shape >= 0 else [],
                "device": tables.devices.values[device] if device >= 0 else "",
                **({"stack": stack} if stack >= 0 else {}),
            }
            self._ends[key] = compact(about)[1:]
        return self._ends[key]

    # -- status ----------------------------------------------------------------------------------

    def status(self, rows: NDArray[np.intp] | None = None, truncated: str | None = None) -> str:
        """Return headline, findings and what goes with them, as JSON; rows count in the chosen."""
        info, tally, verdict = self.info, self.tally, self.verdict()
        row = verdict.site
        if row is not None and rows is not None:
            places = np.flatnonzero(rows == row)
            row = int(places[0]) if len(places) else None
        status = {
            "version": VERSION,
            "title": title(info),
            "open": info.ended == "open",
            "ended": info.ended,
            "headline": {
                "kind": verdict.kind,
                "text": verdict.sentence,
                "detail": verdict.detail,
                "row": row,
            },
            "step": int(tally.latest["step"].max(initial=-1)),
            "steps": len(tally.steps),
            "records": tally.records,
            "modules": len(tally.listed),
            "facts": self._facts(),
            "notices": [str(each) for each in info.notices[:_LISTED]],
            "truncated": truncated,
            "spark_steps": tally.window.steps.tolist(),
            "keeps": self.tensors is not None and self.tensors.any,
            "unkept": self._unkept(rows),
        }
        parts = (compact(status)[:-1], _FIXED, self._missed(), self._findings(rows))
        return f"{','.join(parts)}}}"

    def _missed(self) -> str:
        """Return what was not seen, as JSON: written anew only when there is more or less of it."""
        info, tally = self.info, self.tally
        # before the first forward nothing has been missed yet
        known = bool(tally.rows) or info.ended != "open"
        key = [*info.unobserved], len(tally.listed), known
        if self._unseen[0] != key:
            unobserved = _unobserved(info) if known else []
            told = {"missed_text": missed_of(tally, info), "unobserved": unobserved}
            self._unseen = key, compact(told)[1:-1]
        return self._unseen[1]

    def _findings(self, rows: NDArray[np.intp] | None) -> str:
        """Return the findings, as JSON: written anew only when the rules were asked again."""
        findings = self.findings()
        if rows is not None:
            places = {int(row): place for place, row in enumerate(rows)}
            return compact(found.told(findings, places))[1:-1]
        if self._told[0] is not findings:
            self._told = findings, compact(found.told(findings))[1:-1]
        return self._told[1]

    def _facts(self) -> dict[str, Any]:
        """Return where the tensors were, what they were made of, and what the records take."""
        columns = self.tally.columns
        return {
            "rows": self.tally.sites,
            "devices": list(self.info.devices),
            "dtypes": list(columns.tables.dtypes.values),
            "memory": spelled(columns.memory),
            "spilled": columns.spilled,
        }

    # -- frame -----------------------------------------------------------------------------------

    def frame(self, rows: NDArray[np.intp] | None = None, *, trend: bool = True) -> bytes:
        """Return the numbers; of the chosen rows only, in their order."""
        columns, *histograms = self.numbers(rows)
        peaks = self.tally.window.peaks[:, slice(None if trend else 0)]
        return wire.frame(columns, peaks if rows is None else peaks[rows], *histograms)

    def trend(self) -> bytes:
        """Return the absmax of the last steps."""
        return wire.trend(self.tally.window.steps, self.tally.window.peaks)

    def numbers(self, rows: NDArray[np.intp] | None = None) -> wire.Numbers:
        """Return the latest numbers; of the chosen rows only, in their order."""
        tally = self.tally
        chosen: Any = slice(None) if rows is None else rows
        first_bad = tally.firsts["bad"].step
        latest = {**tally.latest, "badges": self.judge.badges(), "first_bad_step": first_bad}
        sizes, index = tally.hist_size[chosen], chosen
        if rows is not None:
            index, _ = cut(tally.hist_start[rows], sizes)
        columns = [latest[name][chosen] for name in COLUMNS]
        return wire.Numbers(columns, sizes, tally.hist_bins[index], tally.hist_counts[index])

    # -- kept tensors ----------------------------------------------------------------------------

    def picture(self, row: int, step: int | None = None, shown: int | None = None) -> bytes:
        """Return what is drawn of a row's kept tensor, of this step if it is there.

        `shown` is the number of the row in the front end.
        """
        columns, known = self.tally.columns, [] if self.tensors is None else self.tensors.known()
        site = columns.tables.sites.values[row]
        at = self.tally.latest["row"][[row]]
        latest = columns.take(at, ("step", "micro_step", "call"))
        own, micro_step, call = (int(column[0]) for column in latest.values())
        there = (micro_step, call) if step in {None, own} else (-1, -1)
        return picture.packed(
            row if shown is None else shown,
            step,
            lambda: picture.of_site(known, site, own if step is None else step, there),
        )

    def _unkept(self, rows: NDArray[np.intp] | None) -> list[str]:
        """Return of the chosen rows why nothing of them is kept; of all nobody needs to know."""
        if rows is None or self.tensors is None or not self.tensors.any:
            return []
        sites = self.tally.columns.tables.sites.values
        return picture.unkept(self.tensors.known(), [sites[row] for row in rows])


def _begin(site: Site) -> str:
    """Return the part of a site's line that never changes."""
    return compact(wire.site_of(site))[:-1]


def title(info: RunInfo) -> str:
    """Return what was watched: `model · ConvNet`."""
    return ", ".join(f"{name} · {kind}" for name, kind in info.models.items()) or info.name


def _unobserved(info: RunInfo) -> list[dict[str, str]]:
    unseen = missed(info)
    listed = [
        {"module": str(each.get("module", "")), "reason": str(each.get("reason", ""))}
        for each in unseen[:_LISTED]
    ]
    left = len(unseen) - len(listed)
    if left > 0:
        listed.append({"module": "…", "reason": f"{left:,} more modules; see run.coverage()"})
    return listed
