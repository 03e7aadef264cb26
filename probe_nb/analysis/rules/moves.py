"""How far weights are moved, as shares of their size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.rules.owned import Owned
from probe_nb.analysis.rules.rates import Rate, rates_of
from probe_nb.analysis.rules.scene import OPTIMIZER, Scene, Sites, Table

Numbers = NDArray[np.float64]

_LARGE_STEPS: Final = frozenset({"LBFGS", "Rprop"})
"""Optimizers whose steps go as far as a line search, or their own history, lets them."""


@dataclass
class Moves:
    """How far weights were moved over some steps in a row.

    Attributes:
        scene: Where they are.
        rows: Which of the parameters.
        steps: The steps.
        ratios: |update| / |weight before it|, one row per weight, NaN where it is not known.
    """

    scene: Scene
    rows: Sites
    steps: NDArray[np.int64]
    ratios: Numbers
    rates: list[Rate | None]

    @classmethod
    def of(
        cls, scene: Scene, owned: Owned, rows: Sites, steps: NDArray[np.int64], sizes: Numbers
    ) -> Moves:
        """Look at those that were moved often enough."""
        ratios, rates = _ratios(scene, owned, sizes)[rows], rates_of(scene, owned, sizes)
        ratios[_spoilt(scene, owned, steps)[rows]] = np.nan
        early = np.isin(steps, scene.tally.opening.steps)
        settling = [bool((rate := rates[row]) and rate.settles) for row in rows.tolist()]
        ratios[np.ix_(np.array(settling, np.bool_), early)] = np.nan
        enough = (np.isfinite(ratios) & (ratios > 0)).sum(axis=1) >= scene.limits.update_steps
        rows = rows[enough]
        return cls(scene, rows, steps, ratios[enough], [rates[row] for row in rows.tolist()])

    @cached_property
    def there(self) -> Table:
        """Tell where ratios are known."""
        found: Table = np.isfinite(self.ratios) & (self.ratios > 0)
        return found

    @cached_property
    def middle(self) -> Numbers:
        """Return the median of each."""
        pairs = zip(self.ratios, self.there, strict=True)
        return np.array([np.median(values[there]) for values, there in pairs])

    @cached_property
    def most(self) -> Numbers:
        """Return the largest median of a few steps in a row; 0 where none can be too large."""
        most, limits = np.zeros(len(self.rows)), self.scene.limits
        if _LARGE_STEPS.intersection(self.scene.tally.types):
            return most
        peak = np.where(self.there, self.ratios, 0.0).max(axis=1, initial=0.0)
        for row in np.flatnonzero(peak > limits.update_ratio_rated):
            medians = _medians(self.ratios[row, self.there[row]], limits.update_steps)
            rate = self.rates[row]
            most[row] = medians[-1] if rate is not None and rate.settles else medians.max()
        return most

    @cached_property
    def high(self) -> Table:
        """Tell which are moved too far."""
        most, limits = self.most, self.scene.limits
        beside = np.median(self.middle) if len(self.rows) > 1 else np.inf
        past = not np.isin(self.steps, self.scene.tally.window.steps).all()
        found: Table = (most > limits.update_ratio) & (not past)  # by itself it is over, then
        found |= (most > limits.update_ratio_beside) & (most > limits.update_beside * beside)
        rated = (most > limits.update_ratio_rated) & (most > limits.rate_beside * beside)
        return found | (rated & self.far_faster)

    @cached_property
    def far_faster(self) -> Table:
        """Tell which have a learning rate far above the usual one."""
        rates = np.array([each.rate if each else np.nan for each in self.rates])
        if not np.isfinite(rates).any():
            return np.zeros(len(rates), np.bool_)
        found: Table = rates >= self.scene.limits.rate_beside * np.nanmedian(rates)
        return found

    @cached_property
    def low(self) -> Table:
        """Tell which are hardly moved."""
        found: Table = self.middle < self.scene.limits.update_ratio_low
        return found

    def first_too_far(self) -> tuple[int, int]:
        """Return which weight is moved too far first, and since when.

        What it does to the rest of the network follows from it, and may be far more. Of those that
        begin at once it is the farthest.
        """
        since = {int(row): self._since(int(row)) for row in np.flatnonzero(self.high)}
        row = min(since, key=lambda each: (since[each], -self.most[each]))
        return row, since[row]

    def limit(self, row: int) -> float:
        """Return the largest of the limits that a weight exceeds."""
        limits, most = self.scene.limits, self.most[row]
        found = limits.update_ratio_rated
        for each in (limits.update_ratio_beside, limits.update_ratio):
            found = each if most > each else found
        return found

    def _since(self, row: int) -> int:
        """Return since when a weight is moved too far."""
        limit = self.limit(row)
        places = np.flatnonzero(self.there[row])
        values = self.ratios[row, places]
        medians = _medians(values, self.scene.limits.update_steps)
        begin = int(np.argmax(medians >= limit))
        return int(self.steps[places[begin + int(np.argmax(values[begin:] >= limit))]])


def farthest(scene: Scene, before: int) -> tuple[int, int, float] | None:
    """Return which weight was moved farthest before a step, when, and how many times its size."""
    owned, tally = Owned.of(scene), scene.tally
    found = []
    for steps, sizes in (
        (tally.opening.steps, tally.opening.of(tally.sites)),
        (tally.window.steps, scene.sizes),
    ):
        ratios = np.where(owned.trained[:, None], _ratios(scene, owned, sizes), np.nan)
        ratios[_spoilt(scene, owned, steps) | (steps >= before)] = np.nan
        if np.isfinite(ratios).any():
            row, place = np.unravel_index(np.nanargmax(ratios), ratios.shape)
            found.append((float(ratios[row, place]), int(owned.site[row]), int(steps[place])))
    if not found:
        return None
    ratio, site, step = max(found)
    return site, step, ratio


def _spoilt(scene: Scene, owned: Owned, steps: NDArray[np.int64]) -> Table:
    """Tell from which step on the weights have NaN or Inf: what is left of one tells no size.

    The step before belongs to them, where the change of a size stands for the update.
    """
    first = scene.tally.firsts["bad"].step[owned.site]
    since = np.searchsorted(steps, first) - 1
    found: Table = (first >= 0)[:, None] & (np.arange(len(steps)) >= since[:, None])
    return found


def _medians(values: Numbers, steps: int) -> Numbers:
    """Return the median of each stretch of so many steps."""
    windows = np.lib.stride_tricks.sliding_window_view(values, steps)
    medians: Numbers = np.median(windows, axis=1)
    return medians


def _ratios(scene: Scene, owned: Owned, sizes: Numbers) -> Numbers:
    """Return |update| / |weight before it| per parameter and step, NaN where it is not known.

    Where no optimizer was named, the change of the weight's size is what an update was at least.
    A weight that begins at zero counts as a quarter of 1 / sqrt(fan-in), about half of what PyTorch
    begins with: its first updates are large beside nothing.
    """
    tally = scene.tally
    before = sizes[owned.site]
    moved = np.full(before.shape, np.nan)
    with np.errstate(invalid="ignore"):  # what is beyond all bounds has no change
        moved[:, :-1] = np.abs(before[:, 1:] - before[:, :-1])
    updates = scene.of_role("update", direction=OPTIMIZER)
    place = np.full(len(tally.parameters), -1)
    place[tally.parameter[owned.site]] = np.arange(len(owned))
    updates = updates[place[tally.parameter[updates]] >= 0]
    moved[place[tally.parameter[updates]]] = sizes[updates]
    shapes = tally.columns.tables.shapes.values
    rows = np.array([*((shape or (1,))[0] for shape in shapes), 1], np.float64)
    rows = rows[tally.latest["shape"][owned.site]]
    least = np.sqrt(rows)[:, None] / 4  # l2 of numel elements of 1 / (4 sqrt(numel / rows))
    with np.errstate(invalid="ignore"):
        ratios: Numbers = moved / np.maximum(before, np.maximum(least, 1e-30))
    return ratios
