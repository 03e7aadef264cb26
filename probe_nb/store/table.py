"""The schema of a record, and columns -> DataFrame.

A record is one row over typed columns. Text never repeats: sites, dtypes, shapes and devices are
interned in `Tables` and a row holds their codes. A statistic that was not computed is NaN inside
(no statistic over finite elements can be NaN) and `pd.NA` outside, with the reason in `status`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe_nb.terms import COUNTS, DIRECTIONS, ROLES, STATISTICS, STATUSES, Site

ABSENT: Final = -1
"""In an integer column: no value."""

DTYPES: Final[dict[str, Any]] = {
    "step": np.int32,
    "micro_step": np.int32,
    "rank": np.int16,
    "order": np.int64,
    "call": np.int32,
    "backward": np.int32,
    "site": np.int32,
    "dtype": np.int16,
    "shape": np.int32,
    "device": np.int16,
    "numel": np.int64,
    **dict.fromkeys(STATISTICS, np.float64),
    **dict.fromkeys(COUNTS, np.int64),
    "training": np.int8,
    "recompute": np.bool_,
    "reused": np.bool_,
    "requires_grad": np.bool_,
    "loss_scale": np.float64,
    "checksum": np.int32,
    "status": np.int8,
}

OF_SITE: Final = ("model", "module", "type", "api", "direction", "role", "leaf")
"""The columns of `run.df` that say where a record was taken."""

FIXED: Final = {"direction": DIRECTIONS, "role": ROLES}

COLUMNS: Final = (
    *("step", "micro_step", "rank", "order", "call", "backward"),
    *OF_SITE,
    *("dtype", "shape", "device", "numel", *STATISTICS, *COUNTS),
    *("training", "recompute", "reused", "requires_grad", "loss_scale", "checksum", "status"),
)
"""The columns of `run.df`, in order."""

Arrays = dict[str, NDArray[Any]]
T = TypeVar("T", bound=Hashable)


class Interned(Generic[T]):
    """A list of distinct values, each found again by its code."""

    def __init__(self, values: Iterable[T] = ()) -> None:
        """Start with these, all different, in their order."""
        self.values = list(values)
        self._codes = {value: code for code, value in enumerate(self.values)}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Be copied and pickled as a list: codes follow from it, and a lock is no value."""
        return type(self), (tuple(self.values),)

    def code(self, value: T) -> int:
        """Return the code of `value`, adding it if it is new."""
        found = self._codes.get(value)
        return self._add(value) if found is None else found

    def _add(self, value: T) -> int:
        with self._lock:
            found = self._codes.get(value)
            if found is None:
                found = len(self.values)
                self.values.append(value)
                self._codes[value] = found
            return found


class Tables:
    """What the codes in the columns stand for."""

    def __init__(self) -> None:
        """Start empty."""
        self.sites: Interned[Site] = Interned()
        self.dtypes: Interned[str] = Interned()
        self.shapes: Interned[tuple[int, ...]] = Interned()
        self.devices: Interned[str] = Interned()
        self.checksums: Interned[str] = Interned()

    def copy(self) -> Tables:
        """Return the tables as they are now; what is added later is not in them."""
        made = Tables()
        for name, table in vars(self).items():
            setattr(made, name, Interned(tuple(table.values)))
        return made


def stored(names: Iterable[str]) -> list[str]:
    """Return the stored columns that columns of the frame are made of."""
    return [*dict.fromkeys("site" if name in OF_SITE else name for name in names)]


def to_frame(
    columns: Arrays,
    tables: Tables,
    *,
    names: Sequence[str] = COLUMNS,
    index: NDArray[Any] | None = None,
) -> pd.DataFrame:
    """Build the DataFrame of `run.df`, or some of its columns, from columns and their tables.

    Text columns are categoricals, numbers are nullable: `pd.NA` is "not there", never NaN.
    """
    data = {name: _series(name, columns, tables) for name in names}
    return pd.DataFrame(data, copy=False, index=index)


def _series(name: str, columns: Arrays, tables: Tables) -> Any:
    """Return one column of the frame."""
    if name in OF_SITE:
        words = [getattr(site, name) for site in tables.sites.values]
        return category(words, columns["site"], FIXED.get(name))
    if name in ("dtype", "device", "checksum"):
        return category(getattr(tables, f"{name}s").values, columns[name])
    if name == "status":
        return category(STATUSES, columns[name], STATUSES)
    if name == "shape":
        return _shapes(tables.shapes.values, columns[name])
    return _NULLABLE.get(name, np.array)(columns[name])  # a copy, whoever holds the columns


def category(
    labels: Sequence[str], codes: NDArray[Any], order: tuple[str, ...] | None = None
) -> pd.Categorical:
    """Map codes through labels that may repeat to a categorical whose categories do not."""
    categories = list(order) if order else list(dict.fromkeys(labels))
    place = {label: number for number, label in enumerate(categories)}
    lookup = np.array([*(place[label] for label in labels), ABSENT], dtype=np.int32)
    dtype = pd.CategoricalDtype(pd.Index(categories, dtype="str"), ordered=False)
    return pd.Categorical.from_codes(lookup[codes], dtype=dtype)


def _shapes(shapes: list[tuple[int, ...]], codes: NDArray[Any]) -> NDArray[np.object_]:
    lookup = np.empty(len(shapes) + 1, dtype=object)
    for number, shape in enumerate(shapes):
        lookup[number] = shape
    found: NDArray[np.object_] = lookup[codes]
    return found


def integers(values: NDArray[Any]) -> pd.arrays.IntegerArray:
    """Return whole numbers with NA where there is no value."""
    return pd.arrays.IntegerArray(values.astype(np.int64), values == ABSENT)


def _floats(values: NDArray[np.float64]) -> pd.arrays.FloatingArray:
    absent = np.isnan(values)
    return pd.arrays.FloatingArray(np.where(absent, 1.0, values), absent)


def _booleans(values: NDArray[Any]) -> pd.arrays.BooleanArray:
    return pd.arrays.BooleanArray(values == 1, values < 0)


_NULLABLE: Final[dict[str, Callable[[NDArray[Any]], Any]]] = {
    **dict.fromkeys(("rank", "backward", "numel", *COUNTS), integers),
    **dict.fromkeys((*STATISTICS, "loss_scale"), _floats),
    "training": _booleans,
}
