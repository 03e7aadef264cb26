"""The parameters of a run as the plots draw them: gradients of a step, updates over steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from probe_nb.errors import SelectionError
from probe_nb.store.columns import Columns
from probe_nb.store.filters import check_stat, chosen, joined, of_sites
from probe_nb.view.plots.data import (
    NONFINITE,
    SITE,
    Booleans,
    Floats,
    Grid,
    Key,
    Modules,
    in_order,
    is_bad,
    laid_out,
    recorded,
    why_none,
)

if TYPE_CHECKING:
    from probe_nb.run import Run


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

    keys: list[Key]
    values: Floats
    bad: Booleans
    missing: Booleans
    frozen: Booleans
    step: int


def flow(run: Run, module: Modules, stat: str, step: int | None, model: str | None) -> Flow:
    """Return the gradients of a step, None for the last one that has any to draw."""
    columns = recorded(run)
    if stat != "rms":
        check_stat(stat)
    wanted = "l2" if stat == "rms" else stat
    names = dict.fromkeys((wanted, "numel", *NONFINITE))
    rows = of_sites(columns, module, "param_grad", [*names], model=model)
    rows = rows.assign(leaf=rows["leaf"].map(lambda leaf: str(leaf).split(".grad")[0]))
    known = {tuple(map(str, key)) for key in rows[[*SITE, "leaf"]].drop_duplicates().to_numpy()}
    steps = sorted({int(each) for each in rows["step"]})
    step = _last(rows, wanted) if step is None else step
    now = rows[rows["step"] == step]
    if now.empty:
        raise SelectionError(
            f"No gradient of a parameter arrived in step {step}. Steps {steps[0]} to {steps[-1]} "
            "have some."
        )
    frozen = _trainable(columns, module, model)
    keys = in_order(known | frozen.keys(), columns)
    groups = (*SITE, "leaf", "step")
    value = joined(now, wanted, groups).astype("float64")
    if stat == "rms":
        numel = now.groupby([*groups], observed=True)["numel"].max()
        value /= numel.astype("float64").pow(0.5)
    index = pd.MultiIndex.from_tuples([(*key, step) for key in keys])
    found = value.reindex(index).to_numpy(np.float64, na_value=np.nan)
    bad = is_bad(now).groupby([now[part] for part in groups], observed=True).any().reindex(index)
    if not np.isfinite(found).any() and not is_bad(now).any():
        raise SelectionError(f"No gradient of step {step} has a number for `{stat}`{why_none(run)}")
    return Flow(
        keys,
        found,
        bad.fillna(value=False).to_numpy(np.bool_),
        bad.isna().to_numpy(),
        np.array([frozen.get(key, False) for key in keys]),
        step,
    )


def _last(rows: pd.DataFrame, stat: str) -> int:
    """Return the last step of which more is left than NaN, Inf and zeros, or if none the last."""
    bad = is_bad(rows).groupby(rows["step"]).any()
    there = rows[stat].astype("float64").abs().gt(0).groupby(rows["step"]).any()
    drawn = there.index[there | ~bad]
    return int(max(drawn, default=there.index.max()))


def _trainable(columns: Columns, module: Modules, model: str | None) -> dict[Key, bool]:
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


def _why(run: Run) -> str:
    """Say why there are no updates."""
    if "dump" in run.info.config:
        return ": msProbe's dumps have none."
    if "update" not in run.info.config.get("roles", ("update",)):
        return ": `roles=` left them out."
    if run.info.moved:
        return ": the optimizer that was named made no step, or a scaler skipped every one."
    return (
        ". They are recorded where the optimizer is named: "
        "`probe.watch(model, optimizer=optimizer)`."
    )


def ratios(run: Run, module: Modules, leaf: str | None, model: str | None) -> Grid:
    """Return the size of each update, as a share of the parameter's, over all steps."""
    columns = recorded(run)
    sites = columns.tables.sites.values
    if not any(site.role == "update" for site in sites):
        raise SelectionError(f"This run has no `update` rows{_why(run)}")
    keys = (*SITE, "leaf")
    rows = of_sites(columns, module, "update", ("l2", *NONFINITE, "order"), leaf=leaf, model=model)
    update = joined(rows, "l2", (*keys, "step")).astype("float64")
    before = _parameters(columns, update.index)
    share = update / before.where(before > 0)  # what grew from nothing has no ratio
    return laid_out(rows, share, keys, columns)


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
        part = rows[(rows["direction"] == "optimizer") == after]
        by: Any = part.groupby([*SITE, "leaf", "step"], observed=True)["l2"].max()
        sizes.append(by.astype("float64").reindex(index))
    return sizes[0].fillna(sizes[1])
