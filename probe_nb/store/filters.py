"""How rows are chosen by words and numbers, and those of one site joined over a step."""

from __future__ import annotations

import fnmatch
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from probe_nb.errors import ConfigError, SelectionError, closest
from probe_nb.exponents import Histogram
from probe_nb.grammar import numbers_in
from probe_nb.store import lacking
from probe_nb.store.columns import Columns, Filter
from probe_nb.store.table import COLUMNS, FIXED, OF_SITE, stored, to_frame
from probe_nb.terms import COUNTS, ROLES, STATISTICS, STATUSES, shown

_NAMES: Final = (
    *("step", "micro_step", "rank", "call", "model", "module", "type", "api", "direction"),
    *("role", "leaf", "status"),
)
"""The columns that rows can be chosen by."""

_LISTED: Final = 6
"""So many values an error message lists; of more it gives the number."""


def chosen(columns: Columns, filters: Mapping[str, Any], names: Sequence[str]) -> pd.DataFrame:
    """Return some columns of the rows that pass; of what is on disk no more is read."""
    rows, found = columns.where(_parsed(filters, columns), stored(names))
    return to_frame(found, columns.tables, names=names, index=rows)


def of_site(
    columns: Columns,
    module: str,
    role: str,
    names: Sequence[str] = (),
    *,
    leaf: str | None,
    model: str | None,
    api: str | None = None,
    rank: Any = None,
) -> pd.DataFrame:
    """Return `step` and some other columns of the rows of one module in one role.

    With `api` they are those of one function that it calls.
    """
    rows = of_sites(columns, module, role, names, leaf=leaf, model=model, api=api, rank=rank)
    functions = sorted(set(rows["api"][rows["direction"] != "optimizer"].astype(str)))
    if len(functions) > 1:
        raise SelectionError(
            f"`{shown(module)}` calls {len(functions)} functions that have `{role}` rows, "
            f"`{functions[0]}` and `{functions[1]}` among them. Give one as `api=`."
        )
    found = rows[["model", "module"]].drop_duplicates()
    if len(found) > 1:
        paths = [f"`{shown(str(row.module))}` of `{row.model}`" for row in found.itertuples()]
        raise SelectionError(
            f"`{shown(module)}` matches {len(found)} modules, {paths[0]} and {paths[1]} among "
            "them. Give the path of one, and `model=` if several models have it."
        )
    return rows


def of_sites(
    columns: Columns,
    module: str | Sequence[str] | None,
    role: str,
    names: Sequence[str] = (),
    *,
    leaf: str | None = None,
    model: str | None = None,
    api: str | None = None,
    rank: Any = None,
) -> pd.DataFrame:
    """Return the same of the modules that match, None for all."""
    if role not in ROLES:
        near = closest(role, ROLES)
        raise SelectionError(f"`{role}` is not a role.{near} Known: {', '.join(ROLES)}.")
    filters = {"module": module, "model": model, "role": [role], "leaf": leaf, "api": api}
    filters["rank"] = rank
    wanted = ("step", "direction", "model", "module", "api", "leaf", *names)
    rows = chosen(columns, filters, wanted)
    if rows.empty:
        _check_rank(columns, rank)
        there = chosen(columns, {"module": module}, ("role",))
        roles = [str(r) for r in there["role"].unique()]
        raise SelectionError(
            f"{_named(module)} no `{role}` rows; it has {', '.join(roles) or 'none'}."
        )
    if role == "value":  # its gradient has the same role, and is another tensor
        rows = rows[rows["direction"] == "forward"]
    return counted_once(rows, leaf)


def _check_rank(columns: Columns, rank: Any) -> None:
    """Raise where what was asked for is not there because no row is of its rank."""
    if rank is None or len(chosen(columns, {"rank": rank}, ("rank",))):
        return
    known = sorted(set(chosen(columns, {}, ("rank",))["rank"].dropna().tolist()))
    there = f"Its ranks are {', '.join(map(str, known))}." if known else "Its rows have no rank."
    raise SelectionError(f"No row of this run is of rank {rank}. {there}")


def _named(module: str | Sequence[str] | None) -> str:
    """Begin a sentence about what was asked for."""
    if module is None:
        return "This run has"
    several = [module] if isinstance(module, str) else module
    return f"{', '.join(f'`{shown(each)}`' for each in several)} has"


def check_stat(stat: str) -> None:
    """Raise unless this is a statistic or a count."""
    known = (*STATISTICS, *COUNTS)
    if stat not in known:
        near = closest(stat, known)
        raise SelectionError(f"`{stat}` is not a statistic.{near} Known: {', '.join(known)}.")


def counted_once(rows: pd.DataFrame, leaf: str | None) -> pd.DataFrame:
    """Leave out what says the same again, unless a module has nothing else.

    That is what an optimizer saw of parameters and gradients, which were seen before. Where no
    leaf is asked for it is also what `.grad` held: it contains what was added. And it is what the
    functions inside the module were given and gave.
    """
    optimizer = rows["direction"] == "optimizer"
    rows = _first(rows, (rows["api"] != "") & ~optimizer)
    rows = _first(rows, rows["direction"] == "optimizer")
    if leaf is not None:
        return rows
    return _first(rows, rows["leaf"].map(lambda each: "grad" in each.split(".")[1:]).astype(bool))


def _first(rows: pd.DataFrame, again: pd.Series) -> pd.DataFrame:
    """Leave out the rows marked as `again` of every module that has others."""
    if not again.any():
        return rows
    others = (~again).groupby([rows["model"], rows["module"]], observed=True).transform("any")
    return rows[~(again & others)]


def line(
    columns: Columns,
    module: str,
    role: str,
    stat: str,
    *,
    leaf: str | None,
    model: str | None,
    api: str | None = None,
    rank: Any = None,
) -> pd.Series:
    """Return one statistic of one site over steps, as `Run.history` says."""
    check_stat(stat)
    rows = of_site(
        columns, module, role, (stat, "numel"), leaf=leaf, model=model, api=api, rank=rank
    )
    found = joined(rows, stat).astype("float64")  # NaN, a gap in a line, where there is no number
    of = " ".join(filter(None, (module, api))) or shown(module)
    found.name = f"{of} {role} {stat}" + ("" if rank is None else f" rank {rank}")
    if not found.notna().any():
        of_them = {"leaf": leaf, "model": model, "api": api, "rank": rank}
        lacking.refuse(of_site(columns, module, role, lacking.NAMES, **of_them), module, role, stat)
    return found


def summed(
    columns: Columns,
    module: str,
    role: str,
    step: int | None,
    *,
    leaf: str | None,
    model: str | None,
    api: str | None = None,
    rank: Any = None,
) -> Histogram:
    """Return the histogram of one site in a step, None for the last, as `Run.histogram` says."""
    rows = of_site(columns, module, role, leaf=leaf, model=model, api=api, rank=rank)
    step = from_the_end(-1 if step is None else step, rows["step"])
    wanted = rows.index[rows["step"] == step]
    found = [each for each in columns.histograms(wanted) if each is not None]
    if not found:
        name = f"`{shown(module)}` {role}"
        if all(each is None for each in columns.histograms(rows.index)):
            raise SelectionError(
                f"Nothing was counted at {name} in any step. Dumps of msProbe's hold no "
                "histograms, nor do rows without numbers."
            )
        steps = sorted({int(s) for s in rows["step"]})
        raise SelectionError(
            f"Nothing was counted at {name} in step {step}. It has steps {steps[0]} to {steps[-1]}."
        )
    return functools.reduce(operator.add, found)


def fed(
    columns: Columns,
    module: str,
    step: int | None,
    *,
    model: str | None,
    api: str | None = None,
    rank: Any = None,
) -> pd.DataFrame:
    """Return the rows of a module's forward inputs in a step, as `Run.inputs` says."""
    rows = of_site(columns, module, "input", leaf=None, model=model, api=api, rank=rank)
    step = at(-1 if step is None else step, rows["step"], f"`{shown(module)}` was fed nothing in")
    filters = {"module": module, "model": model, "role": ["input"], "step": step, "rank": rank}
    filters["api"] = [str(each) for each in rows["api"].unique()]
    return chosen(columns, filters, COLUMNS)


def at(step: int, seen: Iterable[int], nothing_in: str) -> int:
    """Return a step that is there; a negative one counts from the last, which is -1.

    Raises:
        SelectionError: It is not there; the message says which are.
    """
    known = sorted({int(each) for each in seen})
    found = from_the_end(step, known)
    if found in known:
        return found
    if not known:
        raise SelectionError(f"{nothing_in} step {step}, or in any other.")
    some = "" if len(known) == known[-1] - known[0] + 1 else f", {len(known)} of them"
    there = f"There are steps {known[0]} to {known[-1]}{some}."
    there = f"Step {known[0]} is the only one." if len(known) == 1 else there
    raise SelectionError(f"{nothing_in} step {step}. {there}")


def steps_in(columns: Columns) -> list[int]:
    """Return the steps of all records, rising."""
    found = [np.unique(block["step"]) for _, block in columns.chunks(names=("step",))]
    return np.unique(np.concatenate(found)).tolist() if found else []


def from_the_end(step: int, seen: Iterable[int]) -> int:
    """Return a step; of a negative one the step that it counts to from the end, if it is there."""
    known = sorted({int(each) for each in seen})
    return known[step] if 0 < -step <= len(known) else step


def _is_from_the_end(step: Any) -> bool:
    return isinstance(step, (int, np.integer)) and int(step) < 0


def _parsed(filters: Mapping[str, Any], columns: Columns) -> list[Filter]:
    """Return what the codes in the columns must pass, as `Run.frame` says."""
    found = []
    for name, wanted in filters.items():
        if name not in _NAMES:
            raise SelectionError(
                f"`{name}` is not a filter.{closest(name, _NAMES)} Known: {', '.join(_NAMES)}."
            )
        if wanted is None:
            continue
        if name == "status":
            hits = _matching(name, wanted, STATUSES, fixed=True)
            found.append(_among("status", [STATUSES.index(status) for status in hits]))
        elif name == "step" and _is_from_the_end(wanted):
            found.append(
                Filter(name, _number_test(name, from_the_end(wanted, steps_in(columns)), columns))
            )
        elif name in OF_SITE:
            words = [getattr(site, name) for site in columns.tables.sites.values]
            known = FIXED.get(name) or tuple(dict.fromkeys(words))
            hits = _matching(name, wanted, known, fixed=name in FIXED)
            found.append(_among("site", [code for code, word in enumerate(words) if word in hits]))
        else:
            found.append(Filter(name, _number_test(name, wanted, columns)))
    return found


def as_word(name: str, value: object) -> None:
    """Refuse what is no text, such as a module in place of its path.

    Raises:
        SelectionError: It is none.
    """
    if not isinstance(value, str):
        raise SelectionError(
            f"`{name}` is given as a {type(value).__name__}; give it as text, as in `run.df`."
        )


def _among(column: str, codes: Sequence[int]) -> Filter:
    """Return a filter that only these codes pass; a code that is younger than it does not."""
    return Filter(column, lambda values: np.isin(values, np.array(codes, values.dtype)))


def _matching(
    name: str, wanted: str | Sequence[str], known: Sequence[str], *, fixed: bool
) -> set[str]:
    """Return the known values that the patterns match; each pattern must match something."""
    single = isinstance(wanted, str) or not isinstance(wanted, Iterable)
    patterns: list[Any] = [wanted] if single else list(wanted)
    found: set[str] = set()
    for pattern in patterns:
        as_word(name, pattern)
        exact = "" if name == "module" and pattern == shown("") else pattern
        hits = [exact] if exact in known else fnmatch.filter(known, exact)
        if not hits:
            raise SelectionError(
                f"No {name} matches `{pattern}`.{closest(exact, known)}"
                f"{_hint(name, pattern)} {_there(known, fixed=fixed)}"
            )
        found.update(hits)
    return found


def _hint(name: str, pattern: str) -> str:
    """Say how a frame is asked what `select=` writes into the pattern."""
    if name == "module" and pattern.startswith("type:"):
        return f' By class `run.frame(type="{pattern.removeprefix("type:")}")` chooses.'
    if name == "module" and pattern.startswith("!"):
        return " A leading `!` takes out in `select=` alone."
    return ""


def _there(known: Sequence[str], *, fixed: bool) -> str:
    """Say which values could have been asked for: all words there are, or those of the run."""
    if fixed:
        return f"Known: {', '.join(known)}."
    if len(known) > _LISTED:
        return f"This run has {len(known)} different ones."
    return f"This run has {', '.join(f'`{shown(each)}`' for each in known) or 'none'}."


def _number_test(name: str, wanted: Any, columns: Columns) -> Callable[[Any], Any]:
    """Return a test for the wanted number, or one among several, in a range or in a slice."""
    if isinstance(wanted, str):
        return _written(name, wanted)
    if isinstance(wanted, slice):
        wanted = range(*wanted.indices(columns.highest(name) + 1))
    if isinstance(wanted, range):
        low, high = sorted((wanted[0], wanted[-1])) if wanted else (0, -1)
        stride = abs(wanted.step)
        return lambda values: (
            (values >= max(low, 0))
            & (values <= high)
            & ((values.astype(np.int64) - low) % stride == 0)
        )
    if isinstance(wanted, (int, np.integer)):
        return lambda values: (values >= 0) & (values == wanted)
    several = [] if wanted is pd.NA else [value for value in wanted if value is not pd.NA]
    return lambda values: (values >= 0) & np.isin(values, several)


def _written(name: str, text: str) -> Callable[[Any], Any]:
    """Return a test for the numbers that a text such as `"0-3"` names."""
    try:
        wants = numbers_in(text, name)
    except ConfigError as error:
        raise SelectionError(str(error)) from None
    return lambda values: np.isin(
        values, [number for number in np.unique(values).tolist() if number >= 0 and wants(number)]
    )


def _of_squares(values: pd.Series, keys: Sequence[pd.Series]) -> pd.Series:
    """Return the l2 of several tensors as of one; squares neither overflow nor vanish."""
    groups = values.groupby(list(keys), observed=True)
    largest = groups.max()
    of_rows = groups.transform("max")
    shares = values / of_rows.where((of_rows > 0) & (of_rows < np.inf))
    root: pd.Series = (shares**2).groupby(list(keys), observed=True).sum() ** 0.5
    return largest * root.where(root > 0, 1.0)


def joined(rows: pd.DataFrame, stat: str, by: Sequence[str] = ("step",)) -> pd.Series:
    """Join the rows of each step, or of each group, into one number, as `Run.history` says."""
    groups = rows.groupby([*by], observed=True)[stat]
    if stat == "min":
        return groups.min()
    if stat in ("max", "absmax"):
        return groups.max()
    if stat == "l2":
        return _of_squares(rows[stat], [rows[key] for key in by])
    if stat in COUNTS:
        return groups.sum(min_count=1)
    there = rows[rows[stat].notna()]
    keys, weight = [there[key] for key in by], there["numel"].astype("Float64")
    total = (there[stat] * weight).groupby(keys, observed=True).sum()
    mean = total / weight.groupby(keys, observed=True).sum()
    return mean.reindex(groups.size().index)  # a step without numbers is a gap
