"""Columns of text in an Arrow table as codes: each combination that occurs is looked at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from probe_nb.store.table import ABSENT

Words = tuple[NDArray[np.int64], list[str]]
"""A code for each row, and what the codes stand for."""


def words(table: pa.Table, name: str, *, absent: bool = False) -> Words:
    """Return a column of text as codes and labels; where allowed, -1 for no text.

    Raises:
        TypeError: It is not text.
        ValueError: A row has none.
    """
    column = table.column(name).combine_chunks()
    if pa.types.is_null(column.type):  # so pandas 2 writes words where there is none at all
        column = column.cast(pa.string())
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    labels = column.dictionary.to_pylist()
    if not all(isinstance(label, str) for label in labels):
        raise TypeError(f"`{name}` is not text")
    if column.null_count and not absent:
        raise ValueError(f"`{name}` has rows without text")
    codes = column.indices.fill_null(ABSENT).to_numpy(zero_copy_only=False)
    return codes.astype(np.int64), labels


def coded(parts: Sequence[Words], code: Callable[..., int]) -> NDArray[np.int64]:
    """Return for each row what `code` gives for its texts; it is asked in the order of the rows."""
    key = np.zeros(len(parts[0][0]), np.int64)
    for codes, labels in parts:  # one mixed number per row
        key = np.unique(key * max(len(labels), 1) + codes, return_inverse=True)[1]
    _, rows, place = np.unique(key, return_index=True, return_inverse=True)
    found = np.empty(len(rows), np.int64)
    for number in np.argsort(rows):  # in the order in which they occur, as they were recorded
        found[number] = code(*(labels[codes[rows[number]]] for codes, labels in parts))
    return found[place]


def numbers(table: pa.Table, name: str, dtype: Any) -> NDArray[Any]:
    """Return a column of whole numbers.

    Raises:
        ValueError: A row has none, or it does not fit; so does pyarrow's own error tell.
    """
    column = table.column(name).cast(pa.from_numpy_dtype(dtype))
    if column.null_count:
        raise ValueError(f"`{name}` has rows without a number")
    found: NDArray[Any] = column.to_numpy()
    return found
