"""Rules of the user's own: a query that pandas asks of each new record."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe_nb.errors import ConfigError, closest
from probe_nb.store.blocks import empty_block
from probe_nb.store.columns import Columns
from probe_nb.store.table import COLUMNS, Arrays, Tables, stored, to_frame

_ASKED: Final = tuple(name for name in COLUMNS if name not in {"shape", "checksum"})
_EVIDENCE: Final = 16
"""Records of each rule that are kept as evidence."""

_ALLOWED: Final = (
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.Invert, ast.USub),
    *(ast.UAdd, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Mod, ast.BitAnd, ast.BitOr),
    *(ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn),
    *(ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple),
)
"""What a query may be made of: comparisons of columns with values. No calls, no variables."""


def checked(rules: Mapping[str, str]) -> None:
    """Try every query on an empty frame.

    Raises:
        ConfigError: One is no comparison of columns; the message says which and why.
    """
    for name, query in rules.items():
        names = _columns_of(name, query)
        try:
            passed = _passed(_frame(empty_block(), Tables(), names), query)
        except Exception as error:
            text = " ".join(str(error).split())
            raise ConfigError(f"The alert `{name}` cannot be asked: `{query}`: {text}") from error
        if passed is None:
            raise ConfigError(
                f"The alert `{name}` is no question: `{query}` gives numbers; compare them with "
                "something, such as `absmax > 1e4`."
            )


def _columns_of(name: str, query: str) -> list[str]:
    """Return the columns that a query names.

    Raises:
        ConfigError: It holds anything but comparisons of columns with values.
    """
    begin = f"The alert `{name}` cannot be asked: `{query}`"
    try:
        tree = ast.parse(query.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f"{begin} is no expression; write one such as `role == 'output' and absmax > 1e4`. "
            "Variables (`@x`) are not known to it: write their values."
        ) from error
    names = []
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise ConfigError(
                f"{begin}: `{ast.unparse(node)}` is not allowed. A query compares columns with "
                "values, joined by `and`, `or`, `not`: no calls, attributes or variables."
                if isinstance(node, ast.expr)
                else f"{begin}: it holds an operation that is not allowed."
            )
        if isinstance(node, ast.Name):
            names.append(node.id)
            if node.id not in _ASKED:
                near = closest(node.id, _ASKED)
                raise ConfigError(
                    f"{begin}: `{node.id}` is not a column.{near} Text stands in quotes; columns "
                    f"are {', '.join(_ASKED)}."
                )
    return list(dict.fromkeys(names))


def _frame(block: Arrays, tables: Tables, names: list[str]) -> pd.DataFrame:
    return to_frame(block, tables, names=names)


def _passed(frame: pd.DataFrame, query: str) -> NDArray[np.bool_] | None:
    """Return which rows pass, an absent number never; None if the query is no question."""
    found: Any = frame.eval(query, engine="python", local_dict={}, global_dict={})
    if not pd.api.types.is_bool_dtype(found):
        return None
    series = pd.Series(found) if np.ndim(found) else pd.Series([found] * len(frame), dtype="bool")
    passed: NDArray[np.bool_] = series.astype("boolean").fillna(value=False).to_numpy(np.bool_)
    return passed


@dataclass
class Passed:
    """The records that a rule let through.

    Attributes:
        rows: The numbers of the first of them.
        first: Step, order, number and site of the first in execution order.
        count: How many there are.
        sites: The sites in which they are.
    """

    rows: list[int] = field(default_factory=list)
    first: tuple[int, int, int, int] | None = None
    count: int = 0
    sites: set[int] = field(default_factory=set)

    def add(self, block: Arrays, rows: NDArray[np.intp], offset: int) -> None:
        """Take in the rows of a block that passed."""
        if not len(rows):
            return
        head = int(rows[np.lexsort((block["order"][rows], block["step"][rows]))[0]])
        step, order, site = (int(block[name][head]) for name in ("step", "order", "site"))
        first = (step, order, offset + head, site)
        self.first = first if self.first is None else min(self.first, first)
        self.rows += (rows[: max(_EVIDENCE - len(self.rows), 0)] + offset).tolist()
        self.count += len(rows)
        self.sites.update(np.unique(block["site"][rows]).tolist())


class Alerts:
    """Asks the rules of every record once."""

    def __init__(self, rules: Mapping[str, str]) -> None:
        """Ask these, which were checked."""
        self.rules = dict(rules)
        self.passed = {name: Passed() for name in rules}
        self._names = [
            *dict.fromkeys(n for name, query in rules.items() for n in _columns_of(name, query))
        ]
        self._rows = 0

    def read(self, columns: Columns) -> dict[str, Passed]:
        """Take in what was added since the last time; return what passed each rule so far."""
        needed = list(dict.fromkeys([*stored(self._names), "step", "order", "site"]))
        for first, block in columns.chunks(self._rows, needed):
            frame = _frame(block, columns.tables, self._names)
            for name, query in self.rules.items():
                passed = _passed(frame, query)
                if passed is not None:
                    self.passed[name].add(block, np.flatnonzero(passed), first)
            self._rows = first + len(block["step"])
        return self.passed
