"""What a dump says of the elements of a tensor."""

from __future__ import annotations

import itertools
import math
from typing import Any, Final, NamedTuple

from probe_nb.exponents import BINS
from probe_nb.store.table import ABSENT
from probe_nb.terms import COUNTS, STATISTICS, STATUS_CODE, Status

OURS: Final = "probe_nb"
"""Where a dump that probe_nb wrote says what msProbe has no word for."""

_KEYS: Final = ("Max", "Min", "Mean", "Norm")
_FAKE: Final = ("FakeTensor", "torch.FakeTensor")
_LARGEST: Final = 2**53

Bins = tuple[list[int], list[int]]


class Numbers(NamedTuple):
    """What a row says of its tensor; a statistic that is not there is NaN, a count -1."""

    status: Status
    statistics: tuple[float, ...] = (math.nan,) * len(STATISTICS)
    counts: tuple[int, ...] = (ABSENT,) * len(COUNTS)
    loss_scale: float = math.nan
    bins: Bins | None = None
    has_more: bool = False
    """It says more than msProbe's four statistics do."""


def numbers_of(node: dict[str, Any], numel: int) -> Numbers:
    """Return what the entry of a tensor says."""
    found = _of_msprobe(node, numel)
    ours = node.get(OURS)
    return _completed(found, ours, numel) if isinstance(ours, dict) else found


def _of_msprobe(node: dict[str, Any], numel: int) -> Numbers:
    """Return what the four statistics tell.

    Of NaN and Inf they tell that there are some, or none, and never how many.
    """
    if not numel:
        return Numbers("empty", counts=(0,) * len(COUNTS), has_more=True)
    if not any(name in node for name in _KEYS):
        return Numbers("not_asked")
    high, low, mean, norm = (_number(node.get(name)) for name in _KEYS)
    if all(node.get(name) is None for name in _KEYS):
        return Numbers("meta" if node["type"] in _FAKE else "unsupported")
    if any(_is_nan(node.get(name)) for name in ("Max", "Min", "Norm")):
        return Numbers("has_nan")
    infinite = math.isinf(high) or math.isinf(low)
    counted = not (math.isnan(high) or math.isnan(low))
    absmax = max(abs(low), abs(high)) if counted and not infinite else math.nan
    norm = abs(norm)  # of a single number msProbe writes the number itself
    known = (0, ABSENT if high == math.inf else 0, ABSENT if low == -math.inf else 0)
    return Numbers(
        "has_inf" if infinite else "ok",
        (low, high, mean, math.nan, norm, absmax),  # as in `STATISTICS`
        (*(known if counted else (ABSENT,) * 3), *(ABSENT,) * (len(COUNTS) - 3)),
    )


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _number(value: Any) -> float:
    """Return a number of any size as a float, NaN for what is none."""
    if not isinstance(value, (int, float)):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


# -- what probe_nb adds ---------------------------------------------------------------------------


def _completed(found: Numbers, ours: dict[str, Any], numel: int) -> Numbers:
    """Put what probe_nb measured in the place of what msProbe's four numbers tell of it."""
    counts = tuple(
        _count(ours.get(name), known, numel)
        for name, known in zip(COUNTS, found.counts, strict=True)
    )
    said = ours.get("status")
    status: Status = said if isinstance(said, str) and said in STATUS_CODE else found.status
    statistics, losses = list(found.statistics), sum(max(count, 0) for count in counts[:3])
    if status in ("has_nan", "has_inf") and losses:  # they were counted: nothing is hidden any more
        status, statistics = "ok", [n if math.isfinite(n) else math.nan for n in statistics]
    if status == "ok" and losses == numel > 0:
        status = "no_finite"
    scale = _finite(ours.get("loss_scale"))
    statistics = [
        _statistic(ours.get(name), known, scale)
        for name, known in zip(STATISTICS, statistics, strict=True)
    ]
    return Numbers(status, tuple(statistics), counts, scale, _bins(ours), has_more=True)


def _statistic(ours: Any, known: float, scale: float) -> float:
    if isinstance(ours, (int, float)) and not isinstance(ours, bool):
        return _number(ours)
    return known if math.isnan(scale) or not scale else known / scale


def _finite(value: Any) -> float:
    number = _number(value)
    return number if math.isfinite(number) else math.nan


def _count(value: Any, known: int, numel: int) -> int:
    fits = type(value) is int and 0 <= value <= numel
    return value if fits else known


def _bins(ours: dict[str, Any]) -> Bins | None:
    """Return the histogram, None where there is none that makes sense."""
    bins, counts = ours.get("hist_bins"), ours.get("hist_counts")
    if not isinstance(bins, list) or not isinstance(counts, list) or len(bins) != len(counts):
        return None
    fits = all(type(n) is int and 0 <= n < BINS for n in bins) and len(bins) <= BINS
    fits = fits and all(type(n) is int and 0 < n < _LARGEST for n in counts)
    rises = fits and all(one < other for one, other in itertools.pairwise(bins))
    return (bins, counts) if rises and bins else None
