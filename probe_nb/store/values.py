"""What was seen and is no tensor: numbers, texts, None among arguments, results, saved values.

A row is a few numbers; sites and values are interned, as in the records. A value is held as JSON:
what is read again is what was seen, whatever its type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from probe_nb.errors import notify
from probe_nb.grammar import spelled
from probe_nb.store.table import ABSENT, FIXED, OF_SITE, Interned, category, integers
from probe_nb.store.words import coded, numbers, words
from probe_nb.terms import DIRECTIONS, ROLES, Site, printable

COLUMNS: Final = (
    *("module", "api", "leaf", "value", "kind", "role", "direction"),
    *("type", "model", "order", "micro_step", "rank", "call", "step"),
)
"""The columns of `run.values()`, in order."""

KINDS: Final = (
    *("int", "float", "bool", "str", "None", "slice", "ellipsis"),
    *("torch.Size", "torch.dtype", "torch.device", "torch.memory_format"),
    *("list", "tuple", "dict", "object"),
)
"""What a value can be, beside the scalars of NumPy, whose kind is their own name: `float32`.

A list, tuple or dict has a row of its own only where it is empty. An `object` is anything else;
its value is the name of its class.
"""

LONGEST: Final = 65_536
"""Characters of a text that are held; of a longer one the rest is cut off, and that is said."""

_BUDGET: Final = 2**28
_NUMBERS: Final = ("step", "micro_step", "rank", "order", "call")
_ROW: Final = Struct("=iiiqiii")
_DTYPE: Final = np.dtype(
    [
        *(("step", np.int32), ("micro_step", np.int32), ("rank", np.int32), ("order", np.int64)),
        *(("call", np.int32), ("site", np.int32), ("thing", np.int32)),
    ]
)
_THING: Final = 200
"""Bytes that an interned value takes beside its text, about."""


Orders = tuple[NDArray[np.int64], NDArray[np.int64]]


class Value(NamedTuple):
    """One row; `rank`, `order` are -1 where there is none."""

    step: int
    micro_step: int
    rank: int
    order: int
    call: int
    site: Site
    kind: str
    value: Any


class Values:
    """The values of one run, in the order in which they were added.

    Cost: 32 bytes a row, and each distinct value once. Beyond `budget` bytes values are refused;
    that is said in `notices`. Several threads may add.
    """

    def __init__(self, budget: int | None = _BUDGET, notices: list[str] | None = None) -> None:
        """Start empty; what the user has to know is written into `notices`."""
        self.budget = budget
        self.notices = [] if notices is None else notices
        self.full = False
        self._sites: Interned[Site] = Interned()
        self._things: Interned[tuple[str, str]] = Interned()
        self._texts = 0
        self._rows = bytearray()

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._rows) // _ROW.size

    # -- writing --------------------------------------------------------------------------------

    def add(
        self,
        site: Site,
        kind: str,
        value: Any,
        *,
        step: int,
        micro_step: int = 0,
        call: int = 0,
        rank: int | None = None,
        order: int | None = None,
    ) -> None:
        """Add one value: a kind, and what JSON can hold of it."""
        if self.full or self._is_full():
            return
        numbers = (step, micro_step, _number(rank), _number(order), call)
        where = self._sites.code(site)
        self._rows.extend(_ROW.pack(*numbers, where, self._thing(kind, value)))

    def take(self, other: Values, rank: int = ABSENT, orders: Orders | None = None) -> None:
        """Add all values of another table, in their order.

        `rank` is that of rows without one; `orders` are the numbers that `order` had, rising, and
        those that it has here.
        """
        rows = other._columns().copy()
        sites = [self._sites.code(each) for each in other._sites.values]
        things = [self._things.code(each) for each in other._known()]
        rows["site"] = np.array([*sites, ABSENT], np.int32)[rows["site"]]
        rows["thing"] = np.array([*things, ABSENT], np.int32)[rows["thing"]]
        rows["rank"] = np.where(rows["rank"] == ABSENT, rank, rows["rank"])
        if orders is not None:
            had, have = orders
            place = np.append(have, have[-1:] + 1)[np.searchsorted(had, rows["order"])]
            rows["order"] = np.where(rows["order"] == ABSENT, ABSENT, place)
        self._texts = sum(len(text) + _THING for _, text in self._things.values)
        self._rows.extend(rows.tobytes())

    def _thing(self, kind: str, value: Any) -> int:
        if type(value) is str:
            value = _text(value)
        text = json.dumps(value)
        known = len(self._things.values)
        code = self._things.code((kind, text))
        if code == known:
            self._texts += len(text) + _THING
        return code

    def _is_full(self) -> bool:
        if self.budget is None or len(self._rows) + self._texts < self.budget:
            return False
        self.full = True
        text = (
            f"{len(self):,} values that are no tensors took {spelled(self.budget)}: what came "
            "after them is not in `run.values()`."
        )
        self.notices.append(text)
        notify(f"probe_nb: {text}")
        return True

    # -- reading --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Value]:
        """Yield every row."""
        read = [(kind, json.loads(text)) for kind, text in self._known()]
        sites = self._sites.values
        for step, micro, rank, order, call, site, thing in _ROW.iter_unpack(bytes(self._rows)):
            yield Value(step, micro, rank, order, call, sites[site], *read[thing])

    def frame(self) -> pd.DataFrame:
        """Return one row per value; text columns are categoricals, `value` holds Python objects."""
        columns, things = self._columns(), self._known()
        values = np.empty(len(things), object)
        for place, (_, text) in enumerate(things):  # a list would be taken for a row of an array
            values[place] = json.loads(text)
        made: dict[str, Any] = {name: columns[name].copy() for name in _NUMBERS}
        made |= {name: integers(columns[name]) for name in ("rank", "order")}
        for name in OF_SITE:
            words = [getattr(site, name) for site in self._sites.values]
            made[name] = category(words, columns["site"], FIXED.get(name))
        made["kind"] = category([kind for kind, _ in things], columns["thing"])
        made["value"] = pd.Series(values[columns["thing"]], dtype=object)
        return pd.DataFrame({name: made[name] for name in COLUMNS})

    def _known(self) -> Sequence[tuple[str, str]]:
        return self._things.values

    def _columns(self) -> Any:
        return np.frombuffer(bytes(self._rows), _DTYPE)

    # -- files ----------------------------------------------------------------------------------

    def to_table(self) -> pa.Table:
        """Return the rows as a table for `from_table`; a value is JSON there."""
        columns = self._columns()
        made = {name: pa.array(columns[name]) for name in _NUMBERS}
        for name in OF_SITE:
            words = [getattr(site, name) for site in self._sites.values]
            made[name] = _dictionary(words, columns["site"])
        kinds, texts = ([thing[part] for thing in self._things.values] for part in (0, 1))
        made["kind"] = _dictionary(kinds, columns["thing"])
        made["value"] = _dictionary(texts, columns["thing"])
        return pa.table({name: made[name] for name in COLUMNS})

    @classmethod
    def from_table(cls, table: pa.Table) -> Values:
        """Read what `to_table` made.

        Raises:
            ValueError: It is something else; so do LookupError, TypeError and pyarrow's own tell.
        """
        found = cls()
        rows = np.empty(table.num_rows, _DTYPE)
        for name in _NUMBERS:
            rows[name] = numbers(table, name, _DTYPE[name])
        sites, things = ([words(table, n) for n in names] for names in (OF_SITE, ("kind", "value")))
        rows["site"] = coded(sites, lambda *each: found._sites.code(_known_site(Site(*each))))
        rows["thing"] = coded(things, lambda *each: found._things.code(_known_thing(*each)))
        found._rows.extend(rows.tobytes())
        found._texts = sum(len(text) + _THING for _, text in found._things.values)
        found.budget = max(_BUDGET, found._texts + len(found._rows) + 1)
        return found


def _text(value: str) -> str:
    if len(value) > LONGEST:
        value = f"{value[:LONGEST]}… ({len(value):,} characters)"
    return printable(value)


def _number(value: int | None) -> int:
    return ABSENT if value is None else value


def _known_site(site: Site) -> Site:
    if site.direction not in DIRECTIONS or site.role not in ROLES:
        raise ValueError(f"unknown direction or role in {site}")
    return site


def _known_thing(kind: str, text: str) -> tuple[str, str]:
    json.loads(text)
    return kind, text


def _dictionary(words: Sequence[str], codes: Any) -> Any:
    """Return a column of text whose words may repeat among the codes."""
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(words, pa.string()))
