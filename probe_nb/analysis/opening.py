"""The first steps of a run, which stay known when the window has moved on."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.window import Window, longer

OPENING: Final = 8
"""First steps of a run whose sizes are remembered."""


class Opening:
    """How large each site was in the first steps.

    Attributes:
        steps: The first steps, rising.
        sizes: The l2 of each site in each of them, NaN where absent.
    """

    def __init__(self) -> None:
        """Start without a step."""
        self.steps = np.empty(0, np.int64)
        self.sizes = np.empty((0, 0))

    def add(self, window: Window, fresh: NDArray[np.int64]) -> None:
        """Take in what a window has of steps that are among the first."""
        if len(self.steps) == OPENING and fresh[0] > self.steps[-1]:
            return
        steps = np.union1d(self.steps, fresh)[:OPENING]
        now = window.sizes
        old = longer(self.sizes, len(now) - len(self.sizes), np.nan)
        sizes = np.full((len(now), len(steps)), np.nan)
        kept, here = np.isin(self.steps, steps), np.isin(window.steps, steps)
        sizes[:, np.searchsorted(steps, self.steps[kept])] = old[:, kept]
        sizes[:, np.searchsorted(steps, window.steps[here])] = now[:, here]
        self.steps, self.sizes = steps, sizes

    def of(self, sites: int) -> NDArray[np.float64]:
        """Return the sizes of so many sites: some may have come later."""
        return longer(self.sizes, sites - len(self.sizes), np.nan)
