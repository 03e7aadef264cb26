"""What the plots draw, as plain arrays; nothing here knows matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe_nb.errors import SelectionError
from probe_nb.exponents import Histogram
from probe_nb.store.columns import Columns
from probe_nb.store.filters import check_stat, chosen, joined, of_site, of_sites
from probe_nb.terms import DIRECTIONS, shown

if TYPE_CHECKING:
    from probe_nb.run import Run

Floats = NDArray[np.floating[Any]]
Booleans = NDArray[np.bool_]
Modules = str | Sequence[str] | None

NONFINITE: Final = ("nan_count", "posinf_count", "neginf_count")
SITE: Final = ("model", "module")
_BACKWARD: Final = 2**40
_REGISTERED: Final = 2**50
"""Added to a place so that what says less about the order of execution comes later."""


@dataclass(frozen=True)
class Grid:
    """One number per site and step.

    Attributes:
        keys: Model and module of each site, and further parts that tell sites apart.
        steps: The steps, rising.
        values: One row per site, one column per step; NaN where there is no number.
        bad: Where something was not finite, in the same shape.
    """

    keys: list[tuple[str, ...]]
    steps: NDArray[np.int64]
    values: Floats
    bad: Booleans

    @property
    def names(self) -> list[str]:
        """The sites as a person reads them."""
        return names_of(self.keys)

    def first_bad(self) -> tuple[int, int] | None:
        """Return the site and the step that were not finite first, None if all were finite."""
        found = np.flatnonzero(self.bad.any(axis=0))
        if not len(found):
            return None
        return int(np.flatnonzero(self.bad[:, found[0]])[0]), int(self.steps[found[0]])


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
) -> Grid:
    """Return one statistic of the modules that match over all steps of a run.

    What several calls and leaves of a step are joined to is said at `Run.history`.
    """
    columns = recorded(run)
    check_stat(stat)
    names = dict.fromkeys((stat, "numel", *NONFINITE))
    rows = of_sites(columns, module, role, [*names], leaf=leaf, model=model)
    return laid_out(joined(rows, stat, (*SITE, "step")), bad_of(rows, SITE), columns)


def bad_of(rows: pd.DataFrame, keys: Sequence[str]) -> pd.Series:
    """Tell for each group and step whether it holds anything that is not finite."""
    bad = pd.Series(False, rows.index)
    for name in NONFINITE:
        bad |= (rows[name] > 0).fillna(value=False).astype(bool)
    return bad.groupby([rows[key] for key in (*keys, "step")], observed=True).any()


def laid_out(values: pd.Series, bad: pd.Series, columns: Columns) -> Grid:
    """Lay what was joined per site and step out as a grid, sites in execution order."""
    steps = steps_of(columns)
    table = _by_step(values.astype("float64")).reindex(columns=steps)
    place = places(columns)
    keys = sorted(
        (tuple(map(str, key)) for key in table.index), key=lambda key: place[key[0], key[1]]
    )
    table = table.reindex(pd.MultiIndex.from_tuples(keys))
    wrong = _by_step(bad).reindex(index=table.index, columns=steps).fillna(value=False)
    return Grid(keys, steps, table.to_numpy(np.float64), wrong.to_numpy(np.bool_))


def _by_step(values: pd.Series) -> pd.DataFrame:
    """Return one row per site and one column per step."""
    return values.unstack("step")  # noqa: PD010 - there is nothing to aggregate


def names_of(keys: Sequence[tuple[str, ...]]) -> list[str]:
    """Write sites as a person reads them; the model is named where there are several."""
    several = len({key[0] for key in keys}) > 1
    return [
        " ".join([f"{model}: {shown(module)}" if several else shown(module), *rest])
        for model, module, *rest in keys
    ]


def places(columns: Columns) -> dict[tuple[str, str], int]:
    """Return numbers by which (model, module) pairs come in the order of their first calls.

    A forward call tells most; a module of which only gradients were recorded is placed by these,
    from the last to the first, for a backward runs the other way.
    """
    sites = columns.tables.sites.values
    found: dict[tuple[str, str], int] = {}
    for code, order in _first_orders(columns, len(sites)).items():
        site = sites[code]
        key, place = (site.model, site.module), order
        if site.role in ("param", "buffer") or site.direction == DIRECTIONS[2]:
            place = _REGISTERED + order
        elif site.direction == DIRECTIONS[1]:
            place = _BACKWARD - order
        found[key] = min(place, found.get(key, place))
    return found


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


# -- gradients and updates -----------------------------------------------------------------------


@dataclass(frozen=True)
class Flow:
    """The gradients of one step, one entry per parameter.

    Attributes:
        keys: Model, module and parameter, in execution order.
        values: Root mean square, or another statistic; NaN where there is no number.
        bad: Where something was not finite.
        missing: Where no gradient came.
        frozen: Where none was asked for.
        step: The step.
    """

    keys: list[tuple[str, ...]]
    values: Floats
    bad: Booleans
    missing: Booleans
    frozen: Booleans
    step: int


def flow(run: Run, module: Modules, stat: str, step: int | None, model: str | None) -> Flow:
    """Return the gradients of a step, None for the last one that has any."""
    columns = recorded(run)
    if stat != "rms":
        check_stat(stat)
    wanted = "l2" if stat == "rms" else stat
    names = dict.fromkeys((wanted, "numel", *NONFINITE))
    rows = of_sites(columns, module, "param_grad", [*names], model=model)
    rows = rows.assign(leaf=rows["leaf"].map(lambda leaf: str(leaf).split(".grad")[0]))
    known = {tuple(map(str, key)) for key in rows[[*SITE, "leaf"]].drop_duplicates().to_numpy()}
    steps = sorted({int(each) for each in rows["step"]})
    step = steps[-1] if step is None else step
    now = rows[rows["step"] == step]
    if now.empty:
        raise SelectionError(
            f"No gradient of a parameter arrived in step {step}. Steps {steps[0]} to {steps[-1]} "
            "have some."
        )
    frozen = _trainable(columns, module, model)
    place = places(columns)
    keys = sorted(known | frozen.keys(), key=lambda key: place[key[0], key[1]])
    groups = (*SITE, "leaf", "step")
    value = joined(now, wanted, groups).astype("float64")
    if stat == "rms":
        numel = now.groupby([*groups], observed=True)["numel"].max()
        value /= numel.astype("float64").pow(0.5)
    index = pd.MultiIndex.from_tuples([(*key, step) for key in keys])
    found = value.reindex(index).to_numpy(np.float64, na_value=np.nan)
    bad = bad_of(now, groups[:-1]).reindex(index)
    return Flow(
        keys,
        found,
        bad.fillna(value=False).to_numpy(np.bool_),
        bad.isna().to_numpy(),
        np.array([frozen.get(key, False) for key in keys]),
        step,
    )


def _trainable(columns: Columns, module: Modules, model: str | None) -> dict[tuple[str, ...], bool]:
    """Return the parameters that were recorded, and of each whether it is frozen at the end."""
    try:
        rows = of_sites(columns, module, "param", ("requires_grad",), model=model)
    except SelectionError:  # they need not have been asked for
        return {}
    last = rows.groupby([*SITE, "leaf"], observed=True)["requires_grad"].last()
    keys: Any = last.index
    return {tuple(map(str, key)): not asked for key, asked in zip(keys, last, strict=True)}


def of_step(grid: Grid, step: int) -> Flow:
    """Return what a grid of parameters holds of one step."""
    if step not in grid.steps:
        raise SelectionError(
            f"Nothing was recorded in step {step}. This run has steps {grid.steps[0]} to "
            f"{grid.steps[-1]}."
        )
    place = int(np.searchsorted(grid.steps, step))
    values, bad = grid.values[:, place], grid.bad[:, place]
    nothing = np.isnan(values) & ~bad
    return Flow(grid.keys, values, bad, nothing, np.zeros(len(values), np.bool_), step)


def newest(run: Run, module: str, role: str, *, leaf: str | None, model: str | None) -> int:
    """Return the last step in which a site was recorded."""
    rows = of_site(recorded(run), module, role, leaf=leaf, model=model)
    return int(rows["step"].max())


def counted(
    run: Run, module: str, role: str, *, leaf: str | None, model: str | None
) -> tuple[list[int], list[Histogram | None], str]:
    """Return the steps of one site, its histogram in each, and the dtype it had last."""
    columns = recorded(run)
    rows = of_site(columns, module, role, ("dtype",), leaf=leaf, model=model)
    found: dict[int, Histogram | None] = dict.fromkeys(steps_of(columns).tolist())
    each_row = columns.histograms(rows.index)
    for step, each in zip(rows["step"].tolist(), each_row, strict=True):
        before = found[step]
        found[step] = each if before is None else before if each is None else before + each
    if not any(found.values()):
        raise SelectionError(
            f"Nothing was counted at `{shown(module)}` {role}: `run.coverage()` says why rows "
            "have no numbers."
        )
    return [*found], [*found.values()], str(rows["dtype"].iloc[-1])


def ratios(run: Run, module: Modules, leaf: str | None, model: str | None) -> Grid:
    """Return the size of each update, as a share of the parameter's, over all steps."""
    columns = recorded(run)
    sites = columns.tables.sites.values
    if not any(site.role == "update" for site in sites):
        raise SelectionError(
            "This run has no `update` rows. They are recorded where the optimizer is named: "
            "`probe.watch(model, optimizer=optimizer)`."
        )
    keys = (*SITE, "leaf")
    rows = of_sites(columns, module, "update", ("l2", "numel", *NONFINITE), leaf=leaf, model=model)
    update = joined(rows, "l2", (*keys, "step")).astype("float64")
    before = _parameters(columns, update.index)
    share = update / before.where(before > 0)  # what grew from nothing has no ratio
    return laid_out(share, bad_of(rows, keys), columns)


def _parameters(columns: Columns, index: pd.Index) -> pd.Series:
    """Return the size of parameters before a step, or where that was not seen after it."""
    names = ("step", "direction", *SITE, "leaf", "l2")
    rows = chosen(columns, {"role": ["param"]}, names)
    if rows.empty:
        raise SelectionError(
            "This run has `update` rows, but no `param` rows to divide them by. Let `roles=` "
            "name `param`, too."
        )
    sizes: list[pd.Series] = []
    for after in (False, True):
        part = rows[(rows["direction"] == DIRECTIONS[2]) == after]
        by: Any = part.groupby([*SITE, "leaf", "step"], observed=True)["l2"].max()
        sizes.append(by.astype("float64").reindex(index))
    return sizes[0].fillna(sizes[1])
