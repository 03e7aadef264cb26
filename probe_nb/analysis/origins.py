"""Where the first NaN or Inf of a run was born, and what followed from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.alarms import ScalerSteps
from probe_nb.analysis.births import Birth, Kind, Marks, Phase, Sorts, Step
from probe_nb.analysis.calls import NEEDED, Calls
from probe_nb.analysis.search import birth
from probe_nb.analysis.thresholds import DEFAULTS
from probe_nb.analysis.told import Words
from probe_nb.analysis.uncounted import NEEDED as UNCOUNTED
from probe_nb.analysis.uncounted import judged
from probe_nb.store.columns import Columns, Filter
from probe_nb.store.table import COLUMNS, Arrays, stored, to_frame
from probe_nb.terms import COUNTS, RunInfo, shown

if TYPE_CHECKING:
    import pandas as pd

_AFTER: Final = (
    *("step", "order", "rank", "model", "module", "type", "direction", "role", "leaf"),
    *("nan_count", "posinf_count", "neginf_count", "numel"),
)


@dataclass(frozen=True, eq=False)
class Origin:
    """Where the first NaN or Inf of a run was born.

    Attributes:
        phase: `forward`, `backward` or `optimizer`; `parameter` or `buffer` if one held it when
            the step began; `input` if the model was fed with it.
        step: The step in which it happened.
        model, module, type: The module in whose code it happened. The class is empty where nothing
            was recorded of that module.
        role, leaf: Those of the first record that was not finite; with `between`, a record of the
            second of its modules.
        kind: `NaN`, `+Inf` or `-Inf`: the gravest that this record held.
        sentence: What happened, when and where.
        detail: What speaks for it, and what could not be seen.
        advice: What to look at.
        between: Where it lies in a parent's own code: the last module that was finite and the
            first that was not, in the direction in which values or gradients flow. Else None.
        rows: The records that speak for it, the first that was not finite among them, under their
            labels in `run.df`.
        after: What was not finite after it: the first record of each site, in execution order.
        rank: The process in which it happened, None where the rows have no rank. Of several it is
            the one that came first: by step, then by how far each had come in that step.
    """

    phase: Phase
    step: int
    model: str
    module: str
    type: str
    role: str
    leaf: str
    kind: Kind
    sentence: str
    detail: str
    advice: str
    between: tuple[str, str] | None
    rows: pd.DataFrame = field(repr=False)
    after: pd.DataFrame = field(repr=False)
    values: tuple[str, ...] = field(repr=False, default=())
    rank: int | None = None

    def __repr__(self) -> str:
        """Say what happened, and what followed, in a few lines."""
        return "\n".join([*self.lines(), *self._then()])

    def lines(self) -> list[str]:
        """Say what happened, what led to it and what to look at."""
        lines = [self.sentence, *(f"  {value}" for value in self.values)]
        return lines + [f"  {text}" for text in (self.detail, self.advice) if text]

    def _then(self) -> list[str]:
        names = list(dict.fromkeys(shown(name) for name in self.after["module"]))
        if not names:
            return []
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        return [f"  then in {', '.join(names[:_NAMED])}{more}"]


_NAMED: Final = 4


class Origins:
    """Finds the birth while a run is read block by block.

    Cost: two passes over the counts of a block. The records of a step are read as calls only where
    something in it is not finite and may count: once more for each block that its step comes in.
    """

    def __init__(self, columns: Columns, *, waits: bool = False) -> None:
        """Look at what was added to `columns`.

        With `waits`, NaN that a model was fed with is no birth before the step is over: what comes
        may still make numbers of it.
        """
        self._columns = columns
        self._sites = columns.tables.sites.values
        self._sorts = Sorts(self._sites)
        self._outputs = np.empty(0, np.bool_)
        self._losses = np.empty(0, np.bool_)
        self._waits = waits
        self._newest = -1
        self._birth: Birth | None = None
        self._likely: Birth | None = None
        self._usual: dict[int, int] = {}
        self._unsettled: tuple[int, Birth | None] = (-1, None)
        self.scaler = ScalerSteps()

    @property
    def birth(self) -> Birth | None:
        """The birth, as far as was read. Gradients under a loss scale are none: see `unsettled`."""
        likely, found = self._likely, self._birth
        return likely if likely is not None and likely.before(found) else found

    def unsettled(self) -> Birth | None:
        """Return the birth of gradients that overflow under a loss scale, and go on doing so."""
        scaler = self.scaler
        if scaler.streak < DEFAULTS.scaler_patience:
            return None
        step = scaler.overflowed[-scaler.streak]
        if self._unsettled[0] != step:
            _, found = self._look(step, *self._whole(step), scaled_too=True)
            self._unsettled = (step, found)
        return self._unsettled[1]

    def add(self, block: Arrays, first: int) -> None:
        """Take in a block, which is in the columns already, from the row `first` on."""
        self._grow(int(block["site"].max()) + 1)
        marks = Marks.of(block, self._sorts)
        if marks.scaled.any():
            self.scaler.add(block, marks, first)
        before, self._newest = self._newest, max(self._newest, int(block["step"].max()))
        if self._likely is None and not marks.loud.any():
            return
        self._take_note(block, marks)
        counts = marks.hard | (marks.soft & self._losses[block["site"]])
        steps = set(np.unique(block["step"][self._early(block, counts)]).tolist())
        if (likely := self._likely) is not None:
            if (block["step"] == likely.step).any():
                steps.add(likely.step)
            elif self._newest > likely.step:
                self._found(likely)
        for step in sorted(steps):
            there = block["step"] == step
            rows = np.flatnonzero(there)
            part = first + rows, {name: block[name][rows] for name in NEEDED}
            self._judge(step, *(part if step > before else self._whole(step)))

    def _grow(self, number: int) -> None:
        new = self._sites[len(self._outputs) : number]
        if new:
            self._sorts.grow(number)
            outputs = np.array([site.role == "output" for site in new], np.bool_)
            losses = np.array([site.type.endswith("Loss") for site in new], np.bool_)
            self._outputs = np.append(self._outputs, outputs)
            self._losses = np.append(self._losses, outputs & losses)

    def _early(self, block: Arrays, marked: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return those of the marked records that came before the birth that is known."""
        if self._birth is None:
            return marked
        before: NDArray[np.bool_] = marked & (block["order"] < self._birth.order)
        return before

    def _take_note(self, block: Arrays, marks: Marks) -> None:
        """Remember where -Inf comes out, and since which step."""
        for place in np.flatnonzero(marks.soft & self._outputs[block["site"]]).tolist():
            site, step = int(block["site"][place]), int(block["step"][place])
            self._usual[site] = min(self._usual.get(site, step), step)

    def _whole(self, step: int) -> tuple[NDArray[np.intp], Arrays]:
        """Return all records of a step that are there."""
        rows, block = self._columns.where([Filter("step", lambda values: values == step)], NEEDED)
        return rows, judged(block)

    def _judge(self, step: int, rows: NDArray[np.intp], block: Arrays) -> None:
        sure, likely = self._look(step, rows, block)
        if sure is not None:
            self._found(sure)
        if self._likely is not None and self._likely.step == step:
            self._likely = None
        if sure is None and likely is not None and not self._waits:
            self._likely = likely

    def _found(self, born: Birth) -> None:
        if born.before(self._birth):
            self._birth = born

    def _look(
        self, step: int, rows: NDArray[np.intp], block: Arrays, *, scaled_too: bool = False
    ) -> tuple[Birth | None, Birth | None]:
        """Return the birth in a step, and what would be one if nothing more came in this step."""
        usual = {site for site, since in self._usual.items() if since < step}
        sure, likely = [], []
        for rank in np.unique(block["rank"]).tolist():
            mine = np.flatnonzero(block["rank"] == rank)
            calls = Calls({name: block[name][mine] for name in NEEDED}, rows[mine], self._sites)
            marks = Marks.of(calls.block, self._sorts, scaled_too=scaled_too)
            over = Step(calls, marks, complete=True, usual=usual)
            likely.append(birth(over))
            open_ = step >= self._newest
            sure.append(birth(replace(over, complete=False)) if open_ else likely[-1])
        return _first(sure), _first(likely)


def _first(found: list[Birth | None]) -> Birth | None:
    there = [each for each in found if each is not None]
    return min(there, key=lambda each: each.order, default=None)


def first_nonfinite(columns: Columns, info: RunInfo | None = None) -> Origin | None:
    """Return where the first NaN or Inf was born, None if there is none but on purpose."""
    found = Origins(columns)
    for row, block in columns.chunks(names=NEEDED):
        found.add(judged(block), row)
    first = found.birth or found.unsettled()
    return None if first is None else origin(columns, first, info)


def origin(columns: Columns, born: Birth, info: RunInfo | None = None) -> Origin:
    """Say in words where a birth is, with the records that speak for it."""
    words = Words(columns, born, info)
    return Origin(
        phase=born.phase,
        step=born.step,
        model=born.at.model,
        module=born.at.module,
        type=born.at.type,
        role=born.site.role,
        leaf=born.site.leaf,
        kind=born.kind,
        sentence=words.sentence(),
        detail=words.detail(),
        advice=words.advice(),
        between=born.between,
        rows=_frame(columns, sorted({born.row, *born.proof})),
        after=_after(columns, born),
        values=tuple(words.values()),
        rank=None if born.rank < 0 else born.rank,
    )


def _frame(columns: Columns, rows: Any, names: tuple[str, ...] = COLUMNS) -> pd.DataFrame:
    found = columns.take(rows, stored(names))
    return to_frame(found, columns.tables, names=names, index=np.asarray(rows))


def _after(columns: Columns, born: Birth) -> pd.DataFrame:
    """Return the first record that is not finite of each other site, in execution order."""
    worst = COUNTS[:3] if born.kind == "-Inf" else COUNTS[:2]
    found: list[Arrays] = []
    for first, read in columns.chunks(names=("order", "site", *UNCOUNTED, *COUNTS[:3])):
        block = judged(read)
        bad = np.zeros(len(block["order"]), np.bool_)
        for name in worst:
            bad |= block[name] > 0
        bad &= block["order"] > born.order
        rows = np.flatnonzero(bad)
        kept = {name: block[name][rows] for name in ("order", "site")}
        found.append({**kept, "row": rows + first})
    rows = _first_of_sites(columns, found, born)
    frame = _frame(columns, np.sort(rows), _AFTER)
    return frame.sort_values("order", kind="stable")


def _first_of_sites(columns: Columns, found: list[Arrays], born: Birth) -> NDArray[np.intp]:
    if not found:
        return np.empty(0, np.intp)
    order, site, row = (
        np.concatenate([each[name] for each in found]) for name in ("order", "site", "row")
    )
    by = np.argsort(order, kind="stable")
    sites, where = np.unique(site[by], return_index=True)
    values = columns.tables.sites.values
    other = [code != born.code and values[code] != born.site for code in sites.tolist()]
    chosen: NDArray[np.intp] = row[by][where[other]]
    return chosen
