"""Checksums of a pair: where they decide, and what they say that statistics cannot."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.compare.judge import Flags, Reasons
from probe_nb.analysis.compare.measures import Measured
from probe_nb.store.table import ABSENT, Arrays
from probe_nb.terms import STATUSES

_NOT_ASKED: Final = STATUSES.index("not_asked")
_ORDER: Final = 2.0**-50
"""What another order of the elements changes in a sum of float64, times the root of their number.
"""
_COUNTED: Final = 10**5
"""Up to so many elements one that is rounded otherwise shows in the mean, beyond that noise."""


def checksums(data: tuple[Arrays, Arrays], tables: tuple[Any, Any]) -> NDArray[np.int8]:
    """Tell where checksums of one kind agree (1), where not (0), and where there are none (-1)."""
    known: dict[str, int] = {}
    codes, kinds = [], []
    for table in tables:
        texts = table.checksums.values
        codes.append(np.array([*(known.setdefault(t, len(known)) for t in texts), ABSENT]))
        kinds.append(np.array([*(t.startswith("0x") for t in texts), False]))
    left, right = (code[each["checksum"]] for code, each in zip(codes, data, strict=True))
    kind = [each[side["checksum"]] for each, side in zip(kinds, data, strict=True)]
    there = (left >= 0) & (right >= 0) & (kind[0] == kind[1])
    return np.where(there, left == right, -1).astype(np.int8)


def alone(data: tuple[Arrays, Arrays], sums: NDArray[np.int8]) -> Flags:
    """Tell which pairs have checksums and no numbers on either side: a dump may have no more."""
    one, other = data
    found: Flags = (sums >= 0) & (one["status"] == _NOT_ASKED) & (other["status"] == _NOT_ASKED)
    return found


def decide(
    data: tuple[Arrays, Arrays],
    tables: tuple[Any, Any],
    sums: NDArray[np.int8],
    distance: NDArray[np.float64],
    *,
    found: Measured,
    reasons: Reasons,
) -> None:
    """Note what checksums alone tell: values that changed places, and all where nothing else is."""
    moved = (sums == 0) & (distance == 0) & _same_numbers(*data, tables)
    reasons.give(moved, "the same numbers in another order: checksums differ")
    bare = alone(data, sums)
    reasons.drop(bare)
    bare &= sums == 0
    reasons.give(bare, "checksums differ")
    differs = moved | bare
    found.put("exact", differs, np.full(int(differs.sum()), np.inf))


def _same_numbers(one: Arrays, other: Arrays, tables: tuple[Any, Any]) -> Flags:
    """Tell which pairs hold the same numbers, as far as an order of their sums lets tell.

    A zero has two signs and NaN many bits: of tensors with such a one nothing is said.
    """
    types = [np.array([*table.dtypes.values, ""]) for table in tables]
    found: Flags = types[0][one["dtype"]] == types[1][other["dtype"]]
    for name in ("min", "max", "absmax", "numel"):
        found &= one[name] == other[name]
    for name in ("zero_count", "nan_count"):
        found &= (one[name] == 0) & (other[name] == 0)
    found &= (one["numel"] > 1) & (one["numel"] <= _COUNTED)
    noise = _ORDER * np.sqrt(np.maximum(one["numel"], 1)) * np.nan_to_num(one["absmax"])
    whole = noise * np.sqrt(np.maximum(one["numel"], 1))
    with np.errstate(invalid="ignore"):  # a dump may say Inf
        for name, apart in (("mean", noise), ("std", noise), ("l2", whole)):
            found &= np.abs(one[name] - other[name]) <= apart
    return found
