"""Parameters and their gradients, side by side: what the rules about parameters look at."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.rules.scene import BACKWARD, FORWARD, OPTIMIZER, Scene, Sites, Table

Numbers = NDArray[np.float64]


@dataclass
class Owned:
    """The parameters of a scene, one row each.

    Attributes:
        scene: Where they are.
        site: The site of each parameter's value.
    """

    scene: Scene
    site: Sites

    @classmethod
    def of(cls, scene: Scene) -> Owned:
        """Return the parameters whose values were recorded; the part here of one that is split."""
        return scene.once_here("owned", lambda: cls._of(scene))

    @classmethod
    def _of(cls, scene: Scene) -> Owned:
        sites = scene.of_role("param", direction=FORWARD)
        _, first = np.unique(scene.tally.parameter[sites], return_index=True)
        return cls(scene, sites[np.sort(first)])

    @cached_property
    def matrix(self) -> Table:
        """Tell which have two dimensions or more."""
        found: Table = self.scene.ndim[self.site] > 1
        return found

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.site)

    @cached_property
    def trained(self) -> Table:
        """Tell which require a gradient."""
        found: Table = self.scene.tally.latest["requires_grad"][self.site] == 1
        return found

    @cached_property
    def gradient(self) -> Table:
        """Tell in which steps of the window each had a gradient."""
        return self._any(self.scene.seen)

    @cached_property
    def moving_gradient(self) -> Table:
        """Tell in which steps each had a gradient that has not vanished."""
        peaks = self.scene.tally.window.peaks
        return self._any(peaks > self.scene.limits.vanished, self.summed)

    @cached_property
    def asked(self) -> Numbers:
        """Return how far each gradient asks its parameter to go: |gradient| / |parameter|.

        The largest of the window. One that begins at zero counts as of size 0.01.
        """
        tally, sizes, sites = self.scene.tally, self.scene.sizes, self.summed
        largest = np.zeros(len(tally.parameters))
        most = np.fmax.reduce(sizes[sites], axis=1, initial=0)
        np.maximum.at(largest, tally.parameter[sites], most)
        size = np.fmax.reduce(sizes[self.site], axis=1, initial=0)
        least = np.sqrt(np.maximum(tally.latest["numel"][self.site], 1)) / 100
        found: Numbers = largest[tally.parameter[self.site]] / np.maximum(size, least)
        return found

    @cached_property
    def summed(self) -> Sites:
        """Return where the gradient that a step ended with is seen best.

        As the optimizer sees it; else as `.grad` holds it; else as each backward adds it. What is
        added may cancel.
        """
        tally = self.scene.tally
        sites = self.scene.of_role("param_grad")
        rank = np.where(tally.direction[sites] == OPTIMIZER, 2, tally.held[sites].astype(int))
        best = np.zeros(len(tally.parameters), np.int64)
        np.maximum.at(best, tally.parameter[sites], rank)
        found: Sites = sites[rank == best[tally.parameter[sites]]]
        return found

    def _any(self, table: Table, sites: Sites | None = None) -> Table:
        """Return, per parameter and step, whether a table is true at any of its gradients."""
        tally = self.scene.tally
        found = np.zeros((len(tally.parameters), table.shape[1]), np.bool_)
        sites = self.scene.of_role("param_grad") if sites is None else sites
        np.logical_or.at(found, tally.parameter[sites], table[sites])
        rows: Table = found[tally.parameter[self.site]]
        return rows

    @cached_property
    def backward(self) -> Table:
        """Tell per parameter in which steps a backward ran in its model."""
        model, direction = self.scene.model, self.scene.tally.direction
        found = np.zeros((len(self), self.scene.seen.shape[1]), np.bool_)
        for each in np.unique(model):
            rows = (model == each) & (direction == BACKWARD)
            found[model[self.site] == each] = self.scene.seen[rows].any(axis=0)
        return found

    @cached_property
    def group(self) -> list[tuple[str, str]]:
        """Return for each the optimizer that holds it and its group, as the run says; or nothing.

        `("optimizer.0", "group1")`.
        """
        moved = {} if self.scene.info is None else self.scene.info.moved
        found = []
        for site in map(self.scene.about, self.site.tolist()):
            name = site.leaf.split(".")[0]
            path = f"{site.module}.{name}" if site.module else name
            optimizer, _, group = moved.get(site.model, {}).get(path, "").rpartition(".")
            found.append((optimizer, group))
        return found

    @cached_property
    def stepped(self) -> Table:
        """Tell per parameter in which steps an optimizer that holds it took a step."""
        found = np.zeros((len(self), self.scene.seen.shape[1]), np.bool_)
        settings = self.scene.of_role("state", direction=OPTIMIZER)
        about = [self.scene.about(site) for site in settings.tolist()]
        for name in {optimizer for optimizer, _ in self.group if optimizer}:
            mine = [s for s, a in zip(settings.tolist(), about, strict=True) if a.api == name]
            rows = [optimizer == name for optimizer, _ in self.group]
            if mine:
                found[rows] = self.scene.seen[mine].any(axis=0)
        return found

    @cached_property
    def unchanged(self) -> Table:
        """Tell of each step whether the value is the same, in every statistic, as a step later.

        The last column is never true: what the last optimizer step did was not read.
        """
        window, sites = self.scene.tally.window, self.site
        found = np.zeros((len(self), self.scene.seen.shape[1]), np.bool_)
        same = np.ones((len(self), max(found.shape[1] - 1, 0)), np.bool_)
        for name in ("last", "peaks", "total", "zero"):
            values = window[name][sites]
            same &= values[:, 1:] == values[:, :-1]
        found[:, :-1] = same
        return found

    @cached_property
    def changed(self) -> Table:
        """Tell of each step whether the value is another one a step later."""
        seen = self.scene.seen[self.site]
        found = np.zeros_like(seen)
        found[:, :-1] = seen[:, 1:] & seen[:, :-1] & ~self.unchanged[:, :-1]
        return found
