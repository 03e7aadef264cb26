"""One row per parameter and step: what its module was fed, its gradient, and how far it moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from probe_nb.store.columns import Columns
from probe_nb.store.filters import at, chosen, steps_in
from probe_nb.terms import RunInfo

COLUMNS: Final = {
    **dict.fromkeys(("module", "parameter"), "str"),
    "step": "int64",
    **dict.fromkeys(("ratio", "update_l2", "param_l2"), "Float64"),
    **dict.fromkeys(("model", "type"), "str"),
    **dict.fromkeys(("input_absmax", "input_l2", "input_mean", "input_std"), "Float64"),
    **dict.fromkeys(("grad_absmax", "grad_l2", "lr"), "Float64"),
    "skipped": "boolean",
    "status": "str",
}
"""The columns of `run.updates()` and their types; a terminal shows the first and the last ones."""

_READ: Final = (
    *("step", "order", "model", "module", "type", "api", "direction", "role", "leaf", "dtype"),
    *("numel", "nan_count", "posinf_count", "neginf_count", "max"),
    *("mean", "std", "l2", "absmax", "recompute", "status"),
)
_ROLES: Final = ("input", "param", "param_grad", "update", "state")
_MODULE: Final = ["model", "module", "step"]
_KEY: Final = ["model", "module", "parameter", "step"]
_OPTIMIZER: Final = ["api", "step"]
_FLOATS: Final = ("float", "bfloat", "complex")

NOT_ASKED: Final = "not_asked"  # `roles=` leaves updates out
NOT_HELD: Final = "not_held"  # no named optimizer holds it, others do step
NO_STEP: Final = "no_step"  # no named optimizer stepped
SKIPPED: Final = "skipped"
NO_GRADIENT: Final = "no_gradient"  # the optimizer that holds it stepped, and found none
"""What stands as `status` where a parameter has no row of its update."""


def updates(columns: Columns, info: RunInfo, step: Any = None, module: Any = None) -> pd.DataFrame:
    """Return the rows of `run.updates(step)`; `info.moved` has the group of each parameter."""
    if isinstance(step, (int, np.integer)):
        step = at(int(step), steps_in(columns), "Nothing was recorded in")
    settings = chosen(columns, {"step": step, "role": ["state"], "direction": "optimizer"}, _READ)
    settings = _plain(settings[settings["api"].astype(str) != ""])
    rows = _plain(
        chosen(columns, {"step": step, "module": module, "role": list(_ROLES[:-1])}, _READ)
    )
    rows["parameter"] = rows["leaf"].str.split(".").str[0]
    of_parameters = rows[rows["role"] != "input"]
    found = _parameters(of_parameters)
    found = _with(found, _gradients(of_parameters), _KEY)
    found = _with(found, _moves(of_parameters), _KEY)
    inputs = rows[(rows["role"] == "input") & (rows["api"] == "")]  # not those of functions inside
    found = _with(found, _inputs(inputs), _MODULE)
    found["ratio"] = found["update_l2"] / found["param_l2"].where(found["param_l2"] > 0)
    found = _with_settings(found, settings, info.moved)
    found["status"] = _reasons(found, settings, rows, info)
    return found[[*COLUMNS]].astype(COLUMNS)


def _plain(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows in execution order, with words instead of categories: they are joined."""
    words = {name: "str" for name in rows if isinstance(rows[name].dtype, pd.CategoricalDtype)}
    return rows.astype(words).sort_values("order", kind="stable")


def _with(found: pd.DataFrame, more: pd.DataFrame, key: Sequence[str]) -> pd.DataFrame:
    return found.merge(more, how="left", on=[*key])


def _last(rows: pd.DataFrame, key: Sequence[str], names: Mapping[str, str]) -> pd.DataFrame:
    """Return some columns of the last row of each group, under other names."""
    last = rows.drop_duplicates([*key], keep="last")
    return last[[*key, *names]].rename(columns=dict(names))


def _parameters(rows: pd.DataFrame) -> pd.DataFrame:
    """Return every parameter and step in which it had a gradient or was moved."""
    moved = rows[(rows["role"] != "param") | (rows["direction"] == "optimizer")]
    return moved.drop_duplicates(_KEY)[[*_KEY, "type"]].sort_values("step", kind="stable")


def _gradients(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the gradient that an optimizer saw; else what `.grad` held; else what was added."""
    rows = rows[rows["role"] == "param_grad"]
    held = rows["leaf"].str.split(".").str[1].eq("grad")
    rank = np.where(rows["direction"] == "optimizer", 2, held.to_numpy(bool).astype(int))
    best = rows.assign(rank=rank).sort_values("rank", kind="stable")
    return _last(best, _KEY, {"l2": "grad_l2", "absmax": "grad_absmax"})


def _moves(rows: pd.DataFrame) -> pd.DataFrame:
    """Return updates, and the size of the parameters before them."""
    update = _last(rows[rows["role"] == "update"], _KEY, {"l2": "update_l2", "status": "status"})
    params = rows[rows["role"] == "param"]
    after = params["direction"] == "optimizer"
    first = params[~after].drop_duplicates(_KEY)[[*_KEY, "l2"]]
    earlier = params.groupby(_KEY)["l2"].shift()  # the row before that of the last step taken
    before = params.assign(before=earlier)[after].drop_duplicates(_KEY, keep="last")
    found = first.merge(before[[*_KEY, "before"]], how="outer", on=_KEY)
    found["param_l2"] = found.pop("before").fillna(found.pop("l2"))
    return update.merge(found, how="outer", on=_KEY)


def _inputs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the statistics of everything that a module was fed in a step, as of one tensor.

    Where a module is fed numbers and masks or ids, the numbers count.
    """
    rows = rows[~rows["recompute"] & rows["absmax"].notna()]
    floats = rows["dtype"].str.startswith(_FLOATS)
    rows = rows[floats | ~floats.groupby([rows[name] for name in _MODULE]).transform("any")]
    bad = rows[["nan_count", "posinf_count", "neginf_count"]].sum(axis=1)
    values = rows[["mean", "std", "l2", "absmax"]].astype("float64")
    values = values.assign(n=(rows["numel"] - bad).astype("float64"))
    keys = [rows[name] for name in _MODULE]

    def total(each: pd.Series) -> pd.Series:
        return each.groupby(keys).transform("sum")

    largest = values["l2"].groupby(keys).transform("max")
    share = (values["l2"] / largest.where(largest > 0)).fillna(0.0)
    n = total(values["n"])
    mean = total(values["mean"] * values["n"]) / n
    spread = values["std"] ** 2 + (values["mean"] - mean) ** 2
    found = rows[_MODULE].assign(
        input_absmax=values["absmax"].groupby(keys).transform("max"),
        input_l2=largest * np.sqrt(total(share**2)),
        input_mean=mean,
        input_std=np.sqrt(total(spread * values["n"]) / n),
    )
    return found.drop_duplicates(_MODULE)


def _with_settings(
    found: pd.DataFrame, settings: pd.DataFrame, moved: Mapping[str, Mapping[str, str]]
) -> pd.DataFrame:
    """Add the rate of each parameter's group, and whether its optimizer skipped the step."""
    group = [
        moved.get(model, {}).get(f"{module}.{name}" if module else name, "")
        for model, module, name in zip(
            found["model"], found["module"], found["parameter"], strict=True
        )
    ]
    place = pd.Series(group, found.index, "str").str.rsplit(".", n=1)
    found = found.assign(api=place.str[0], group=place.str[-1])
    skipped = settings[settings["leaf"] == "skipped"]
    rates = settings[settings["leaf"].str.fullmatch(r"group\d+\.lr")]
    rates = rates.assign(group=rates["leaf"].str.split(".").str[0])
    found = _with(
        found, _last(rates, [*_OPTIMIZER, "group"], {"max": "lr"}), [*_OPTIMIZER, "group"]
    )
    return _with(found, _last(skipped, _OPTIMIZER, {"max": "skipped"}), _OPTIMIZER)


def _reasons(
    found: pd.DataFrame, settings: pd.DataFrame, rows: pd.DataFrame, info: RunInfo
) -> pd.Series:
    """Return the status of each update; of one that has no row, why it has none."""
    roles = info.config.get("roles")
    skipped = found["skipped"].astype("boolean").fillna(value=False)
    taken = rows.loc[rows["direction"] == "optimizer", _KEY].drop_duplicates()
    both = found[[*_KEY, "api"]].merge(taken, how="left", on=_KEY, indicator="seen")
    looked = both["seen"].eq("both")
    made = settings[settings["leaf"] != "skipped"]
    steps = {*zip(made["api"], made["step"], strict=True)}
    steps |= {*zip(found.loc[looked, "api"], found.loc[looked, "step"], strict=True)}
    cases = {
        NOT_ASKED: np.full(len(found), roles is not None and "update" not in roles),
        NOT_HELD: (found["api"] == "") & bool(info.moved),
        SKIPPED: skipped,
        NO_STEP: looked,  # it was looked at before the step, in which somebody asks
        NO_GRADIENT: [pair in steps for pair in zip(found["api"], found["step"], strict=True)],
    }
    holds = [np.asarray(each, np.bool_) for each in cases.values()]
    why = pd.Series(np.select(holds, [*cases], NO_STEP), found.index, "str")
    return found["status"].where(found["status"].notna(), why)
