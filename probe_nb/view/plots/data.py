"""What the plots draw, as plain arrays; nothing here knows matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe_nb.errors import SelectionError
from probe_nb.exponents import Histogram
from probe_nb.store.columns import Columns
from probe_nb.store.filters import check_stat, joined, of_site, of_sites
from probe_nb.terms import shown

if TYPE_CHECKING:
    from probe_nb.run import Run

Floats = NDArray[np.floating[Any]]
Booleans = NDArray[np.bool_]
Key = tuple[str, ...]
Modules = str | Sequence[str] | None

NONFINITE: Final = ("nan_count", "posinf_count", "neginf_count")
SITE: Final[tuple[str, ...]] = ("model", "module")
EACH: Final = "*"
"""Asks for all ranks, each by itself."""

_OF_CALLS: Final = ("input", "output", "grad_output", "grad_input")
_BACKWARD: Final = 2**40
_LAST: Final = 2**50
"""Places: what says less about the order of execution comes later."""


@dataclass(frozen=True)
class Grid:
    """One number per site and step.

    Attributes:
        keys: Model and module of each site, and further parts that tell sites apart.
        steps: The steps, rising.
        values: One row per site, one column per step; NaN where there is no number.
        bad: Where something was not finite, in the same shape.
        first: The site and the step that were not finite first, None if all were finite.
    """

    keys: list[Key]
    steps: NDArray[np.int64]
    values: Floats
    bad: Booleans
    first: tuple[int, int] | None

    @property
    def names(self) -> list[str]:
        """The sites as a person reads them."""
        return names_of(self.keys)


def recorded(run: Run) -> Columns:
    """Return the records of a run, of which there is at least one."""
    run.flush()
    if not len(run.columns):
        raise SelectionError(
            "This run has no records, so there is nothing to draw. Call the model while it is "
            "watched; `run.coverage()` says what was not seen."
        )
    return run.columns


def steps_of(columns: Columns) -> NDArray[np.int64]:
    """Return every step of which something was recorded, rising."""
    found = [np.unique(chunk["step"]) for _, chunk in columns.chunks(names=("step",))]
    return np.unique(np.concatenate(found)).astype(np.int64)


def grid(
    run: Run,
    module: Modules,
    role: str,
    stat: str,
    *,
    leaf: str | None = None,
    model: str | None = None,
    rank: Any = None,
) -> Grid:
    """Return one statistic of the modules that match over all steps of a run.

    What several calls and leaves of a step are joined to is said at `Run.history`. Where several
    ranks are asked for, each has a row of its own.
    """
    columns = recorded(run)
    check_stat(stat)
    names = dict.fromkeys((stat, "numel", *NONFINITE, "order", "rank"))
    wanted = None if rank == EACH else rank
    rows = of_sites(columns, module, role, [*names], leaf=leaf, model=model, rank=wanted)
    parts = SITE
    if rank is not None and not isinstance(rank, (int, np.integer)):
        rows, parts = rows.assign(rank=_ranks(rows["rank"])), (*SITE, "rank")
    found = laid_out(rows, joined(rows, stat, (*parts, "step")), parts, columns)
    if stat in NONFINITE:  # the count itself says it
        found = replace(found, bad=np.zeros_like(found.bad), first=None)
    if not np.isfinite(found.values).any() and not found.bad.any():
        raise SelectionError(
            f"No `{role}` row that was asked for has a number for `{stat}`{why_none(run)}"
        )
    return found


def why_none(run: Run) -> str:
    """Say why there is no number; what was not seen of a dump nobody knows."""
    if "dump" in run.info.config:
        return ": msProbe writes the smallest, the largest, the mean and the norm, no histogram."
    return "; `run.coverage()` says what was not seen."


def _ranks(ranks: pd.Series) -> pd.Series:
    """Return ranks as a person reads them, in their order."""
    known = sorted(ranks.dropna().unique().tolist())
    words = {number: f"rank {number}" for number in known}
    return ranks.map(words).astype(pd.CategoricalDtype([*words.values()]))


def laid_out(rows: pd.DataFrame, values: pd.Series, parts: Sequence[str], columns: Columns) -> Grid:
    """Lay what was joined per site and step out as a grid, sites in execution order.

    Args:
        rows: What was joined.
        values: The numbers, one per site and step.
        parts: The columns that tell sites apart.
        columns: The records that the rows are of.
    """
    steps = steps_of(columns)
    table = _by_step(values.astype("float64"))
    keys = in_order((tuple(map(str, key)) for key in table.index), columns)
    bad = rows[is_bad(rows)]
    found = bad.groupby([*parts, "step"], observed=True)["order"].min()
    wrong = np.zeros((len(keys), len(steps)), np.bool_)
    place = {key: row for row, key in enumerate(keys)}
    cells = [(place[tuple(map(str, key[:-1]))], key[-1]) for key in found.index]
    for row, step in cells:
        wrong[row, np.searchsorted(steps, step)] = True
    first = None
    if cells:
        first = min(zip(cells, found, strict=True), key=lambda each: (each[0][1], each[1]))[0]
    table = table.reindex(index=pd.MultiIndex.from_tuples(keys), columns=steps)
    return Grid(keys, steps, table.to_numpy(np.float64), wrong, first)


def is_bad(rows: pd.DataFrame) -> pd.Series:
    """Tell which rows hold anything that is not finite."""
    bad = pd.Series(data=False, index=rows.index)
    for name in NONFINITE:
        bad |= (rows[name] > 0).fillna(value=False).astype(bool)
    return bad


def _by_step(values: pd.Series) -> pd.DataFrame:
    """Return one row per site and one column per step."""
    return values.unstack("step")  # noqa: PD010 - there is nothing to aggregate


def names_of(keys: Sequence[Key]) -> list[str]:
    """Write sites as a person reads them; the model is named where there are several."""
    several = len({key[0] for key in keys}) > 1
    return [
        " ".join([f"{model}: {shown(module)}" if several else shown(module), *rest])
        for model, module, *rest in keys
    ]


def in_order(keys: Iterable[Key], columns: Columns) -> list[Key]:
    """Return keys, which begin with model and module, in the order of the modules' first calls.

    A forward call tells most; a module of which only gradients were recorded is placed by these,
    from the last to the first, for a backward runs the other way. One that was never called comes
    after the nearest module that it is a part of, or at the end.
    """
    called, registered = _places(columns)

    def place(key: Key) -> tuple[int, int]:
        model, path = key[:2]
        own = called.get((model, path))
        if own is not None:
            return own, -1
        while "." in path:
            path = path.rpartition(".")[0]
            if (model, path) in called:
                return called[model, path], registered.get(key[:2], 0)
        return _LAST, registered.get(key[:2], 0)

    return sorted(keys, key=place)


def _places(columns: Columns) -> tuple[dict[Key, int], dict[Key, int]]:
    """Return numbers by which modules come in order: of calls, and of parameters and buffers."""
    sites = columns.tables.sites.values
    called: dict[Key, int] = {}
    registered: dict[Key, int] = {}
    for code, order in _first_orders(columns, len(sites)).items():
        site = sites[code]
        found = called if site.role in _OF_CALLS else registered
        key = (site.model, site.module)
        place = _BACKWARD - order if site.direction == "backward" else order
        found[key] = min(place, found.get(key, place))
    return called, registered


def _first_orders(columns: Columns, sites: int) -> dict[int, int]:
    """Return when each site was seen first, counted from the first record of that step."""
    starts: dict[int, int] = {}
    found: dict[int, int] = {}
    for _, chunk in columns.chunks(names=("step", "order", "site")):
        steps, place = np.unique(chunk["step"], return_inverse=True)
        lowest = np.full(len(steps), np.iinfo(np.int64).max)
        np.minimum.at(lowest, place, chunk["order"])
        for step, low in zip(steps.tolist(), lowest.tolist(), strict=True):
            starts[step] = min(low, starts.get(step, low))
        for code, row in zip(*np.unique(chunk["site"], return_index=True), strict=True):
            order = int(chunk["order"][row]) - starts[int(chunk["step"][row])]
            found.setdefault(int(code), order)
        if len(found) == sites:
            break
    return found


def one_step(
    run: Run,
    module: str,
    role: str,
    step: int | None,
    *,
    leaf: str | None,
    model: str | None,
    rank: Any = None,
) -> tuple[int, float]:
    """Return a step of a site, the last one unless another is asked for, and its absmax."""
    rows = of_site(recorded(run), module, role, ("absmax",), leaf=leaf, model=model, rank=rank)
    step = int(rows["step"].max()) if step is None else step
    found = rows.loc[rows["step"] == step, "absmax"].astype("float64").max()
    return step, float(found)


def counted(
    run: Run, module: str, role: str, *, leaf: str | None, model: str | None, rank: Any = None
) -> tuple[list[int], list[Histogram | None], str]:
    """Return the steps of one site, its histogram in each, and the dtype it had last."""
    columns = recorded(run)
    rows = of_site(columns, module, role, ("dtype",), leaf=leaf, model=model, rank=rank)
    found: dict[int, Histogram | None] = dict.fromkeys(steps_of(columns).tolist())
    each_row = columns.histograms(rows.index)
    for step, each in zip(rows["step"].tolist(), each_row, strict=True):
        before = found[step]
        found[step] = each if before is None else before if each is None else before + each
    if not any(found.values()):
        raise SelectionError(f"Nothing was counted at `{shown(module)}` {role}{why_none(run)}")
    return [*found], [*found.values()], str(rows["dtype"].iloc[-1])
