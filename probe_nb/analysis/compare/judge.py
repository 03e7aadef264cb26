"""What is said of each pair: same, close, diverged, or not comparable, and why."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.compare.measures import Measured
from probe_nb.store.table import Arrays
from probe_nb.terms import STATUSES

Flags = NDArray[np.bool_]

VERDICTS: Final = (
    "same",
    "close",
    "diverged",
    "only_in_baseline",
    "only_in_candidate",
    "not_comparable",
)
SAME, CLOSE, DIVERGED, ONLY_BASELINE, ONLY_CANDIDATE, NOT_COMPARABLE = range(len(VERDICTS))

_OK: Final = STATUSES.index("ok")
_NO_FINITE: Final = STATUSES.index("no_finite")
_EMPTY: Final = STATUSES.index("empty")


class Reasons:
    """The reason of each pair: texts that repeat, and their codes."""

    def __init__(self, count: int) -> None:
        """Give no pair a reason."""
        self.texts = [""]
        self.codes = np.zeros(count, np.int32)

    def give(self, where: Flags | NDArray[np.intp], text: str) -> None:
        """Give a reason to those pairs that have none yet."""
        chosen = np.zeros(len(self.codes), np.bool_)
        chosen[where] = True
        chosen &= self.codes == 0
        if chosen.any():
            self.codes[chosen] = self._code(text)

    def drop(self, where: Flags) -> None:
        """Give those pairs none any more."""
        self.codes[where] = 0

    def _code(self, text: str) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text)

    def give_each(self, where: Flags, keys: NDArray[Any], spelled: Any) -> None:
        """Give pairs a reason that `spelled` writes for each distinct row of keys."""
        rows = np.flatnonzero(where & (self.codes == 0))
        if not len(rows):
            return
        known, place = np.unique(keys[rows], axis=0, return_inverse=True)
        codes = np.array([self._code(spelled(*each)) for each in known.tolist()], np.int32)
        self.codes[rows] = codes[place.reshape(-1)]


def count_of(side: Arrays, name: str) -> tuple[Flags, NDArray[np.int64]]:
    """Return which records know a count, and it; 0 where they do not."""
    known = side[name] >= 0
    return known, np.where(known, side[name], 0)


def exact(
    one: Arrays, other: Arrays, tables: tuple[Any, Any], found: Measured, reasons: Reasons
) -> Flags:
    """Note what rounding never explains; return the pairs that cannot be compared."""
    hard = _of_shape(one, other, tables, reasons)
    unclear = _of_status(one, other, reasons)
    hard |= _of_nonfinite(one, other, reasons) & ~unclear
    found.put("exact", hard, np.full(int(hard.sum()), np.inf))
    whole = (found.unit == 0) & ~hard & ~unclear
    # their sums are not whole: mean, std and l2 depend on the order of the elements
    differs = whole & (np.nan_to_num(found.apart) > found.allowed).any(axis=0)
    reasons.give(differs, "whole numbers differ")
    found.put("exact", differs, np.ones(int(differs.sum())))
    return unclear & ~hard


def _of_shape(one: Arrays, other: Arrays, tables: tuple[Any, Any], reasons: Reasons) -> Flags:
    """Tell which pairs have other shapes; dimensions of one element do not count."""
    known = [each.shapes.values for each in tables]
    codes: dict[tuple[int, ...], int] = {}
    bare = [
        np.array([*(codes.setdefault(_squeezed(s), len(codes)) for s in shapes), -1], np.int64)
        for shapes in known
    ]
    left, right = bare[0][one["shape"]], bare[1][other["shape"]]
    differs = (left != right) & (left >= 0) & (right >= 0)
    keys = np.stack([one["shape"], other["shape"]], axis=1)
    reasons.give_each(
        differs, keys, lambda a, b: f"shape {_shape(known[0][a])} against {_shape(known[1][b])}"
    )
    unknown = (left < 0) | (right < 0)
    more = unknown & (one["numel"] != other["numel"]) & (one["numel"] >= 0) & (other["numel"] >= 0)
    reasons.give(more, "the number of elements differs")
    found: Flags = differs | more
    return found


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _shape(shape: tuple[int, ...]) -> str:
    return "\N{MULTIPLICATION SIGN}".join(map(str, shape)) or "scalar"


def _of_status(one: Arrays, other: Arrays, reasons: Reasons) -> Flags:
    """Tell which pairs lack numbers on a side, so that nothing can be said of them."""
    a, b = one["status"], other["status"]
    fine = np.isin(STATUSES, ("ok", "no_finite", "empty", "has_inf", "has_nan"))
    keys = np.stack([a, b], axis=1)
    absent = ~fine[a] | ~fine[b]
    reasons.give_each(absent, keys, lambda p, q: _absent(STATUSES[p], STATUSES[q]))
    told = np.array([name == "has_nan" for name in STATUSES])
    nan = [told[s] | (side["nan_count"] > 0) for s, side in ((a, one), (b, other))]
    both = (told[a] | told[b]) & nan[0] & nan[1] & ~absent
    reasons.give(both, "NaN on both sides; a dump does not say how many")
    found: Flags = absent | both
    return found


def _absent(one: str, other: str) -> str:
    if one == other:
        return f"no numbers on either side: {one}"
    if one == "ok":
        return f"no numbers in the candidate: {other}"
    if other == "ok":
        return f"no numbers in the baseline: {one}"
    return f"no numbers: {one} in the baseline, {other} in the candidate"


def _of_nonfinite(one: Arrays, other: Arrays, reasons: Reasons) -> Flags:
    """Tell which pairs differ in what is not finite, or in being empty."""
    hard = (one["status"] == _EMPTY) != (other["status"] == _EMPTY)
    reasons.give(hard, "empty on one side")
    sides = []
    for side in (one, other):
        status = side["status"]
        told = {
            "nan_count": np.array([name == "has_nan" for name in STATUSES])[status],
            "posinf_count": (status == _code("has_inf")) & _says(side, np.inf),
            "neginf_count": (status == _code("has_inf")) & _says(side, -np.inf),
        }
        counts = {name: count_of(side, name) for name in told}
        has = {name: (counts[name][1] > 0) | told[name] for name in told}
        sides.append((counts, has))
    (counts, has), (counts_b, has_b) = sides
    inf, inf_b = (h["posinf_count"] | h["neginf_count"] for h in (has, has_b))
    swapped = inf & inf_b & (has["posinf_count"] != has_b["posinf_count"])
    reasons.give(swapped, "+Inf against -Inf")
    cut = inf & ~inf_b & (other["at_max_count"] > 0) | inf_b & ~inf & (one["at_max_count"] > 0)
    reasons.give(cut, "Inf against the largest number of the format: one side saturates")
    words = {"nan_count": "NaN", "posinf_count": "+Inf", "neginf_count": "-Inf"}
    for name, word in words.items():
        differs = has[name] != has_b[name]
        reasons.give(differs & has[name], f"{word} in the baseline alone")
        reasons.give(differs & has_b[name], f"{word} in the candidate alone")
        (known, left), (known_b, right) = counts[name], counts_b[name]
        more = known & known_b & (left != right)
        reasons.give_each(
            more, np.stack([left, right], axis=1), lambda a, b, w=word: f"{a:,} {w} against {b:,}"
        )
        hard = hard | differs | more
    found: Flags = hard
    return found


def _code(name: str) -> int:
    return STATUSES.index(name) if name in STATUSES else -2


def _says(side: Arrays, value: float) -> Flags:
    found = np.zeros(len(side["status"]), np.bool_)
    for name in ("min", "max", "mean"):
        found |= side[name] == value
    return found
