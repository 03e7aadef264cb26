"""Checksums of a pair: where they decide, and what they say that statistics cannot."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.compare.judge import Flags, Reasons
from probe_nb.analysis.compare.measures import MEASURES, Measured, equal_numbers
from probe_nb.store.table import ABSENT, Arrays
from probe_nb.terms import COUNTS, STATUSES

_NOT_ASKED: Final = STATUSES.index("not_asked")
_WHOLE: Final = ("int", "uint", "bool")
UNSURE: Final = "checksums alone differ: another order, last bits, or signs of zeros"
"""The statistics of both may differ by as much: the kernels sum in float32, where another order
shows in the last digits and one last bit does not show at all."""


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
    *,
    found: Measured,
    reasons: Reasons,
) -> None:
    """Note what checksums alone tell: whole numbers that differ, and all where nothing else is."""
    whole = (sums == 0) & _whole(data, tables)
    reasons.give(whole, "whole numbers differ, by checksums alone: another order, or a few of many")
    bare = alone(data, sums)
    reasons.drop(bare)
    bare &= sums == 0
    reasons.give(bare, "checksums differ")
    differs = (whole | bare) & ~(found.apart[MEASURES.index("exact")] > 0)
    found.put("exact", differs, np.full(int(differs.sum()), np.inf))


def _whole(data: tuple[Arrays, Arrays], tables: tuple[Any, Any]) -> Flags:
    """Tell which pairs are whole numbers in one format: no rounding parts them."""
    types = np.array([*tables[0].dtypes.values, ""])[data[0]["dtype"]]
    exact = [t for t in np.unique(types).tolist() if t.removeprefix("torch.").startswith(_WHOLE)]
    found: Flags = _one_format(data, tables) & np.isin(types, exact)
    return found


def _one_format(data: tuple[Arrays, Arrays], tables: tuple[Any, Any]) -> Flags:
    """Tell which pairs have one format: the same numbers in two have other bits."""
    types = [np.array([*table.dtypes.values, ""]) for table in tables]
    left, right = (each[side["dtype"]] for each, side in zip(types, data, strict=True))
    found: Flags = left == right
    return found


def unsure(
    data: tuple[Arrays, Arrays],
    tables: tuple[Any, Any],
    sums: NDArray[np.int8],
    distance: NDArray[np.float64],
    *,
    found: Measured,
    known: NDArray[np.float64],
) -> Flags:
    """Tell of which pairs the checksum alone differs, as far as their statistics are known.

    Args:
        data: The columns of both.
        tables: What their codes stand for.
        sums: What `checksums` found.
        distance: Distance of the histograms, NaN where there are none.
        found: The differences, with all that is beyond rounding.
        known: What mean, std and l2 of each pair are known to, relative.
    """
    one, other = data
    alike: Flags = (sums == 0) & ~(distance > 0) & _one_format(data, tables)
    alike &= equal_numbers(*data, ("numel", *COUNTS))
    for name in ("min", "max"):
        alike &= one[name] == other[name]
    with np.errstate(divide="ignore", invalid="ignore"):
        tall = np.nan_to_num(found.peak / found.scale, nan=1.0, posinf=1.0)
    for name, factor in (("mean", np.maximum(tall, 1.0)), ("std", 1.0), ("l2", 1.0)):
        alike &= np.nan_to_num(found.apart[MEASURES.index(name)]) <= known * factor
    for name in ("tensor", "element", "exact"):  # who saw the elements knows
        alike &= ~(found.apart[MEASURES.index(name)] >= 0)
    return alike & (one["numel"] > 1)
