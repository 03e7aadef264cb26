"""What speaks for a birth: the counts of the culprit, and the other side of its call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.firsts import First
from probe_nb.analysis.tally import Tally
from probe_nb.analysis.words import module, place, plural
from probe_nb.store.columns import Filter
from probe_nb.terms import COUNTS, ROLES, STATISTICS

_SOURCES: Final = {
    "output": ("input", "the inputs of this call"),
    "grad_input": ("grad_output", "the gradient that arrived"),
    "param_grad": ("grad_output", "the gradient that arrived"),
}
_FROM_OUTSIDE: Final = {
    "param": "the parameter held it before the forward: look at the last optimizer step",
    "input": "no watched module gave it out: it arose in the code between modules",
    "root input": "the model was fed with it",
}
_COUNTED: Final = (("nan_count", "NaN"), ("posinf_count", "+Inf"), ("neginf_count", "-Inf"))


def record(tally: Tally, row: int) -> Any:
    """Return one record with its dtype and shape spelled out."""
    tables, names = tally.columns.tables, ("step", "numel", *STATISTICS, *COUNTS)
    found = tally.columns.take([row], (*names, "dtype", "shape"))
    values = {name: found[name][0].item() for name in names}
    values["dtype"] = tables.dtypes.values[found["dtype"][0]]
    values["shape"] = tables.shapes.values[found["shape"][0]]
    return SimpleNamespace(**values)


def counted(numbers: Any) -> str:
    """Write the non-finite elements of a record: `3 NaN and 1 +Inf of 4,096 elements`."""
    found = [(getattr(numbers, name), word) for name, word in _COUNTED]
    parts = [f"{count:,} {word}" for count, word in found if count > 0]
    return f"{' and '.join(parts)} of {plural(numbers.numel, 'element')}"


def birth(tally: Tally, first: First, name: str) -> str:
    """Say how much of the culprit is non-finite and whether what it was made from was finite."""
    parts = [counted(record(tally, first.row))]
    parts.append(_origin(tally, first))
    inf = tally.firsts["posinf"].overall or tally.firsts["neginf"].overall
    if inf is not None and _may_be_a_mask(tally, inf):
        inf = None
    if name == "NaN" and inf is not None and inf.before(first):
        parts.append(f"Inf came before it, at step {inf.step} in {place(tally, inf.site)}")
    parts.append(_what(tally, first))
    return "; ".join(part for part in parts if part)


def _what(tally: Tally, first: First) -> str:
    """Say of which class the culprit's module is: its name may be a mere number."""
    site = tally.columns.tables.sites.values[first.site]
    name = module(site, several=tally.several_models)
    return f"module {name} is of class {site.type}" if site.type else ""


def _may_be_a_mask(tally: Tally, first: First) -> bool:
    """Tell whether a record is an input that holds -Inf and no other non-finite element."""
    role = tally.columns.tables.sites.values[first.site].role
    return role == "input" and not record(tally, first.row).posinf_count


def _origin(tally: Tally, first: First) -> str:
    site = tally.columns.tables.sites.values[first.site]
    if site.role == "grad_output":
        return _backward(tally, first)
    if site.role not in _SOURCES:
        return _FROM_OUTSIDE.get("root input" if not site.module else site.role, "")
    return _other_side(tally, first)


def _other_side(tally: Tally, first: First) -> str:
    """Say whether what the culprit was made from, in the same call, was finite."""
    role, words = _SOURCES[tally.columns.tables.sites.values[first.site].role]
    rows = same_call(tally, first, role)
    if not len(rows):
        return f"{words} were not recorded" if role == "input" else ""
    counts = tally.columns.take(rows, [name for name, _ in _COUNTED])
    bad = sum(np.maximum(each, 0).sum() for each in counts.values())
    be = "were" if role == "input" else "was"
    if not bad and (counts["nan_count"] < 0).any():
        return f"not all of {words} could be measured"
    if bad:
        return f"{words} {be} not finite either ({plural(int(bad), 'element')})"
    return f"{words} {be} finite, so it was born here"


def _backward(tally: Tally, first: First) -> str:
    """Say whether the forward of that step was finite."""
    bad = tally.firsts["bad"].step
    forward = tally.direction == 0
    if (forward & (bad >= 0) & (bad <= first.step)).any():
        return "the forward was not finite either"
    sites = Filter("site", lambda values: np.isin(values, np.flatnonzero(forward)))
    if not len(tally.columns.where([_equal("step", first.step), sites], ())[0]):
        return "the forward was not recorded"
    born = "it was born in the backward of what uses this output"
    return f"every recorded forward value was finite: {born}"


def same_call(tally: Tally, first: First, role: str) -> NDArray[np.intp]:
    """Return the rows of the other side of the culprit's call."""
    sites = (tally.module == tally.module[first.site]) & (tally.role == ROLES.index(role))
    names = ("rank", "micro_step", "call")
    culprit = tally.columns.take([first.row], names)
    filters = [_equal("step", first.step), *(_equal(name, culprit[name][0]) for name in names)]
    filters.append(Filter("site", lambda values: np.isin(values, np.flatnonzero(sites))))
    return tally.columns.where(filters, ())[0]


def _equal(column: str, value: Any) -> Filter:
    return Filter(column, lambda values: values == value)
