"""Both runs aligned, measured and judged: what a `Comparison` reads its answers from."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.compare import histograms, judge, rounding, tensors
from probe_nb.analysis.compare.align import Alike, Pairs, Side, paired, sides
from probe_nb.analysis.compare.calls import CallTree, Places
from probe_nb.analysis.compare.checksums import UNSURE, alone, checksums, decide, unsure
from probe_nb.analysis.compare.flow import Flow, flow
from probe_nb.analysis.compare.ground import Owns, running
from probe_nb.analysis.compare.judge import CLOSE, DIVERGED, NOT_COMPARABLE, SAME, Reasons
from probe_nb.analysis.compare.measures import MEASURES, Measured, equal_numbers, measured
from probe_nb.analysis.compare.naming import Mapped, mapping_of
from probe_nb.analysis.compare.shapes import Sums
from probe_nb.analysis.words import is_setting
from probe_nb.progress import Told, silent
from probe_nb.store.columns import Columns
from probe_nb.store.keeping import Tensors
from probe_nb.store.table import Arrays
from probe_nb.terms import COUNTS, DIRECTIONS, STATISTICS

Rows = NDArray[np.intp]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_NUMBERS: Final = ("numel", *STATISTICS, *COUNTS, "status")
_MOVED: Final = 1e-3
"""A share of elements that changed by more than a power of two, from which on that is evidence."""

_ROUNDED: Final = 4.0
"""Gradients up to so many times their rounding have a sign by chance."""

_FEW: Final = 3.0
"""Elements, and standard errors of their number, that may do so by chance."""


WORK: Final = 100
"""What there is to do, as `compared` tells it."""

_ALIGNED, _COUNTED, _KEPT = 30, 20, 30
"""The shares of laying calls side by side, of histograms, and of tensors, where there are any."""


@dataclass(frozen=True)
class Options:
    """How two runs are compared; `comparison.compare` says what each means."""

    mapping: Mapped = None
    fuzzy: bool = False
    tolerance: float | str = 1.0
    ranks: tuple[int | None, int | None] = (None, None)


@dataclass(eq=False)
class Compared:
    """What was found of all pairs.

    Attributes:
        one, other: The baseline and the candidate.
        pairs: What belongs together, in the order of the baseline.
        data: The columns of both, pair by pair.
        found: The differences.
        verdicts: Places in `judge.VERDICTS`, pair by pair.
        beyond: How many times each difference is larger than rounding and what came in explain.
        distance: Distance of the histograms, NaN where there are none.
        kept: What kept tensors tell, by pair.
        checksums: 1 where checksums agree, 0 where they do not, -1 where there are none to compare.
        unsure: Where the checksums differ and nothing else does: another order, or last bits.
    """

    one: Side
    other: Side
    pairs: Pairs
    data: tuple[Arrays, Arrays]
    found: Measured
    reasons: Reasons
    verdicts: NDArray[np.int8]
    distance: Floats
    checksums: NDArray[np.int8]
    unsure: Flags
    kept: tensors.Metrics
    flow: Flow
    places: Places
    tree: CallTree
    beyond: Floats
    notices: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.verdicts)

    @cached_property
    def fed(self) -> Flags:
        """Tell which pairs are what both were fed: root inputs, first parameters and buffers.

        In later steps, these are root inputs that nothing before explains.
        """
        places = self.places
        roles = places.are("input") | places.are("param", "buffer", direction="forward")
        first = np.isnan(self.flow.came_in)
        outside = self.tree.enters() & places.are("input")
        found: Flags = (roles & first) | (outside & (self.beyond > 1.0))
        return found

    @cached_property
    def chosen(self) -> Flags:
        """Tell which pairs are settings of an optimizer: rounding plays no part in what differs."""
        settings = np.array([is_setting(site) for site in self.places.sites], np.bool_)
        found: Flags = settings[self.places.site]
        return found

    @cached_property
    def arose(self) -> Rows:
        """Where in its process each pair arose: its order; of settings, before what they move.

        They are recorded after it. What an optimizer is given comes before both.
        """
        places, settings = self.places, self.chosen
        order = places.order.astype(np.int64)
        if not settings.any():
            return order
        by = np.lexsort((order, places.process))
        process = places.process[by]
        others = places.direction != DIRECTIONS.index("optimizer")
        others |= places.are("param_grad", direction="optimizer")
        before = running(np.where(others, order, -1.0)[by], process).astype(np.int64)
        found = np.empty_like(order)
        found[by] = np.where(settings[by], before, order[by])
        return found

    @cached_property
    def set(self) -> Flags:
        """Tell which parameters of a forward were set by what trains, if anything does."""
        of_forward = self.places.are("param", direction="forward") & ~self.fed
        return of_forward & bool((self.places.direction > 0).any())

    def evidence(self, pair: int) -> str:
        """Say what a pair was judged by: tensors, checksums, histograms or statistics."""
        if pair in self.kept.of:
            return "kept tensors"
        if alone(self.data, self.checksums)[pair]:
            return "checksums"
        return "statistics and histograms" if np.isfinite(self.distance).any() else "statistics"


def compared(
    baseline: tuple[Columns, Tensors],
    candidate: tuple[Columns, Tensors],
    options: Options,
    known: float = rounding.MEASURED,
    *,
    told: Told = silent,
    owns: Owns = lambda _model, _module: True,
) -> Compared:
    """Compare two runs.

    Args:
        baseline: Records and kept tensors of the run to trust.
        candidate: The same of the run in question.
        options: What the user said.
        known: What mean, std and l2 are known to, relative.
        told: Hears how much more of `WORK` was done.
        owns: Whether a module of the baseline has parameters, or may have some.
    """
    mapping = mapping_of(options.mapping)
    factor, least = rounding.lowest(options.tolerance)
    one, other = sides(baseline[0], candidate[0], mapping, options.ranks)
    notices: list[str] = []
    alike = _alike(one, other, options, notices)
    pairs = paired(one, other, alike, mapping.tensors)
    data = _picked(one.data, pairs.baseline), _picked(other.data, pairs.candidate)
    unit = _units(one, other, data, least)
    terms = np.maximum(Sums(one).terms()[pairs.baseline], Sums(other).terms()[pairs.candidate])
    digits = rounding.known_to(unit, known)
    found = measured(*data, unit, terms, factor, digits)
    reasons = Reasons(len(unit))
    told(_ALIGNED)
    tables = one.columns.tables, other.columns.tables
    unclear = judge.exact(*data, tables, found, reasons)
    equal, distance = _of_histograms(one, other, pairs, data, found)
    told(_COUNTED)
    sums = checksums(data, tables)
    unclear &= ~alone(data, sums)
    decide(data, tables, sums, found=found, reasons=reasons)
    kept = tensors.compared(
        one, other, pairs, baseline[1], candidate[1], lambda share: told(share * _KEPT)
    )
    kept.put_into(found)
    bits = unsure(data, tables, sums, distance, found=found, known=digits) & ~unclear
    reasons.give(bits, UNSURE)
    found.equal = (equal | (sums == 1)) & (sums != 0) & kept.equal(len(unit))
    found.equal &= ~(found.apart[MEASURES.index("exact")] > 0)
    places = Places.of(one, pairs.baseline)
    tree = CallTree(one, pairs.baseline, places)
    small = _small(one, pairs, data[0], places, found)
    flowed = flow(places, tree, found, data, tables[0].shapes.values, small, owns)
    beyond = flowed.beyond(found)
    beyond = np.where(unclear, 0.0, beyond)
    verdicts = _verdicts(found, unclear, flowed.close(found, beyond), reasons)
    return Compared(
        one, other, pairs, data, found, reasons, verdicts, distance, sums, bits, kept, flowed,
        places, tree, beyond, notices,
    )  # fmt: skip


def _alike(one: Side, other: Side, options: Options, notices: list[str]) -> Alike:
    first, second = (np.unique(side.data["step"]).tolist() for side in (one, other))
    shifted = bool(first and second) and not set(first) & set(second)
    if shifted:
        notices.append(
            f"The runs have no step in common: step {first[0]} of the baseline was compared with "
            f"step {second[0]} of the candidate, and so on."
        )
    ranks = [np.unique(side.data["rank"]) for side in (one, other)]
    alone = all(len(each) <= 1 for each in ranks)
    return Alike(options.fuzzy, shifted, alone)


def _picked(data: Arrays, rows: Rows) -> Arrays:
    return {name: column[rows] for name, column in data.items()}


def _units(one: Side, other: Side, data: tuple[Arrays, Arrays], least: float) -> Floats:
    """Return the unit roundoff of the coarser dtype of each pair; 0 where both are exact."""
    found = []
    for side, each in zip((one, other), data, strict=True):
        known = np.append(rounding.units(side.columns.tables.dtypes.values), 0.0)
        found.append(known[each["dtype"]])
    coarser = np.maximum(*found)
    return np.where(coarser > 0, np.maximum(coarser, least), 0.0)


def _of_histograms(
    one: Side, other: Side, pairs: Pairs, data: tuple[Arrays, Arrays], found: Measured
) -> tuple[Flags, Floats]:
    """Tell which pairs are the same in every number and bin; return distances of histograms."""
    rows = one.rows[pairs.baseline], other.rows[pairs.candidate]
    equal = equal_numbers(*data, _NUMBERS)
    distance = np.full(len(equal), np.nan)
    there = np.flatnonzero((data[0]["zero_count"] >= 0) & (data[1]["zero_count"] >= 0))
    same = histograms.same(one.columns, rows[0][there], other.columns, rows[1][there])
    equal[there[~same]] = False
    distance[there[same]] = 0.0
    left = there[~same]
    noise = _noise(found)[left]
    both = rows[0][left], rows[1][left]
    distance[left], moved = histograms.apart(one.columns, both[0], other.columns, both[1], noise)
    numel = np.maximum(data[0]["numel"][left], 1).astype(np.float64)
    chance = (_FEW + _FEW * np.sqrt(np.nan_to_num(moved) * numel)) / numel
    beyond = np.maximum(moved - np.fmax(chance, _MOVED), 0.0)
    found.put("histogram", left, np.where(np.isnan(moved), np.nan, beyond))
    return equal, distance


def _small(one: Side, pairs: Pairs, data: Arrays, places: Places, found: Measured) -> Floats:
    """Return the share of each gradient of a parameter that is no larger than its rounding.

    NaN where no histogram tells.
    """
    share = np.zeros(len(found.scale))
    grads = places.are("param_grad", direction="backward")
    unknown = data["zero_count"] < 0
    share[grads & unknown] = np.nan
    rows = np.flatnonzero(grads & ~unknown & ~found.equal)
    differs = np.nan_to_num(found.difference[rows], nan=0.0, posinf=1.0)
    size = (_ROUNDED * found.tolerance.extreme[rows] + differs) * found.peak[rows]
    share[rows] = histograms.below(one.columns, one.rows[pairs.baseline][rows], size)
    return share


def _noise(found: Measured) -> Floats:
    """Return the size below which values mean nothing: differences, rounding, subnormals."""
    differs = np.nan_to_num(found.difference, nan=0.0, posinf=1.0)
    size = (found.tolerance.extreme + 4 * differs) * found.peak
    half = found.unit > 2.0**-24
    return np.where(half, np.maximum(size, 2.0**-14), size)


def _verdicts(found: Measured, unclear: Flags, near: Flags, reasons: Reasons) -> NDArray[np.int8]:
    verdicts = np.where(near, CLOSE, DIVERGED)
    nothing = np.isnan(found.difference) & ~found.equal
    verdicts = np.where(found.equal, SAME, verdicts)
    verdicts = np.where(unclear | nothing, NOT_COMPARABLE, verdicts)
    reasons.give(nothing & ~unclear, "no number on both sides")
    return verdicts.astype(np.int8)
