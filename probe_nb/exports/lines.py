"""The rows of a run as plain values, and what a training monitor says of each of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import pandas as pd

from probe_nb.exponents import HIGHEST, LOWEST, Histogram
from probe_nb.store.columns import Columns
from probe_nb.store.filters import chosen

STATISTICS: Final = ("min", "max", "mean", "norm")
OPS: Final = ("norm", "min", "max", "zeros", "nans", "id", "mean", "shape", "dtype")
"""The quantities that msProbe's monitors know."""

_OF: Final = (
    *("step", "micro_step", "call", "backward", "model", "module", "api", "direction", "role"),
    *("leaf", "order", "recompute", "training", "status", "dtype", "shape", "numel"),
    *("min", "max", "mean", "l2", "nan_count", "posinf_count", "neginf_count", "zero_count"),
)
_MEASURED: Final = ("ok", "no_finite", "has_nan", "has_inf")
"""The statuses of rows that have numbers."""


class Line(NamedTuple):
    """One row of a run. What is not there is None."""

    label: int
    step: int
    micro_step: int
    call: int
    backward: int | None
    model: str
    module: str
    api: str
    direction: str
    role: str
    leaf: str
    order: int
    recompute: bool
    training: bool | None
    status: str
    dtype: str
    shape: tuple[int, ...]
    numel: int | None
    min: float | None
    max: float | None
    mean: float | None
    l2: float | None
    nan_count: int | None
    posinf_count: int | None
    neginf_count: int | None
    zero_count: int | None

    @property
    def measured(self) -> bool:
        """Tell whether the row has numbers."""
        return self.status in _MEASURED

    @property
    def spelled(self) -> str:
        """The name that quantities beside the row have for it: see `measuring`."""
        way = "optimizer." if self.direction == "optimizer" and self.role in _TWO_WAYS else ""
        return f"{way}{self.role}.{self.leaf}"

    @property
    def place(self) -> tuple[Any, ...]:
        """What tells it from all rows of other tensors, but for its role and leaf."""
        return (self.step, self.micro_step, self.call, self.backward, self.model, self.module)


_TWO_WAYS: Final = ("param", "param_grad")
"""Roles that have rows of the optimizer's step beside others."""


def lines(columns: Columns, steps: Iterable[int] | None = None) -> list[Line]:
    """Return the rows of some steps, all by default, in the order in which they came."""
    filters = {} if steps is None else {"step": list(steps)}
    frame = chosen(columns, filters, _OF)
    plain = [_plain(frame[name]) for name in _OF]
    return [Line(*each) for each in zip(frame.index.tolist(), *plain, strict=True)]


def _plain(column: pd.Series) -> list[Any]:
    values = column.astype(object)
    return values.where(values.notna(), None).tolist()


def value(line: Line, op: str) -> Any:
    """Return a quantity as the monitor has it: NaN and infinities spread as in torch.

    The statistics of a run are those of the finite elements; here one NaN makes all four NaN.
    `zeros` is not among them: see `Shares`.
    """
    if op == "nans":
        return line.nan_count
    if op == "shape":
        return list(line.shape)
    if op == "dtype":
        return f"torch.{line.dtype}"
    if op == "id":
        return line.mean if line.shape == () and line.numel == 1 else None
    if line.status == "has_nan" or line.nan_count:
        return math.nan
    return _with_infinities(line, op)


def _with_infinities(line: Line, op: str) -> float | None:
    above, below = bool(line.posinf_count), bool(line.neginf_count)
    if op == "norm":
        return math.inf if above or below else line.l2
    if op == "mean" and (above or below):
        return math.nan if above and below else math.inf if above else -math.inf
    if op == "max" and above:
        return math.inf
    if op == "min" and below:
        return -math.inf
    found: float | None = getattr(line, op)
    if found is None and (above or below):  # nothing but infinities
        return -math.inf if op == "max" else math.inf
    return found


class Shares:
    """The share of elements with |x| < eps, from what tells it exactly."""

    def __init__(self, columns: Columns, rows: Iterable[Line], eps: float) -> None:
        """Look for what was counted of these rows when they were recorded."""
        self._columns, self._eps = columns, eps
        name = f"below:{eps!r}("
        self._counted = {
            (each.place, each.leaf.removeprefix(name)[:-1]): each.mean
            for each in rows
            if each.role == "state" and each.leaf.startswith(name)
        }

    def of(self, line: Line) -> float | None:
        """Return the share of one row; None if nothing tells it."""
        counted = self._counted.get((line.place, line.spelled))
        if counted is not None:
            return counted
        if line.numel == 1 and line.status in ("ok", "no_finite"):
            return float(line.mean is not None and abs(line.mean) < self._eps)
        histogram = self._columns.histogram(line.label) if line.numel else None
        return None if histogram is None else _share(histogram, self._eps)


def _share(histogram: Histogram, eps: float) -> float | None:
    """Return the share below a limit, if no bin lies on both sides of it."""
    exponents, counts = histogram.exponents()
    below = histogram.zero
    for exponent, count in zip(exponents.tolist(), counts.tolist(), strict=True):
        low = 0.0 if exponent == LOWEST else 2.0**exponent
        high = math.inf if exponent == HIGHEST else 2.0 ** (exponent + 1)
        if high <= eps:
            below += count
        elif low < eps:
            return None
    return below / histogram.total


def top_level(leaf: str) -> bool:
    """Tell whether a leaf is an argument or a result itself, and no part of one."""
    return "." not in leaf.removeprefix("kwargs.")
