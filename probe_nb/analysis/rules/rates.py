"""Learning rate and weight decay of the group that holds a parameter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.rules.owned import Owned
from probe_nb.analysis.rules.scene import OPTIMIZER, Scene
from probe_nb.analysis.words import number

_SETTLE: Final = frozenset({"RMSprop", "Adagrad"})
"""They divide by a mean of squares that begins at 0, without Adam's correction for that."""


@dataclass(frozen=True)
class Rate:
    """The settings of a group, in the median of some steps.

    Attributes:
        rate: Its learning rate.
        decay: Its weight decay.
        momentum: Its momentum, 0 if it has none.
        decoupled: Whether the decay is taken from the weights, and not added to the gradient.
        plain: Whether an update is the rate times the gradient, which the decay is a part of.
        settles: Whether the first updates are far larger than later ones by construction.
    """

    rate: float
    decay: float
    momentum: float
    decoupled: bool
    plain: bool
    settles: bool

    def by_decay(self, ratio: float) -> bool:
        """Tell whether weight decay makes at least half of an update of this size."""
        if not (self.decoupled or self.plain):
            return False
        taken = self.rate * self.decay
        if self.plain and not self.decoupled:
            taken /= max(1 - self.momentum, 1e-3)
        return taken >= ratio / 2

    def words(self, *, decay: bool) -> str:
        """Write the settings that explain an update."""
        rate = f"at a learning rate of {number(self.rate)}"
        return f"by a weight decay of {number(self.decay)} {rate}" if decay else rate


def rates_of(scene: Scene, owned: Owned, sizes: NDArray[np.float64]) -> list[Rate | None]:
    """Return the rate of each parameter, None where it is not known.

    Args:
        scene: Where they are.
        owned: The parameters.
        sizes: The size of each site in each of the steps.
    """
    known: dict[tuple[str, str, str], float] = {}
    classes: dict[str, str] = {}
    for site in scene.of_role("state", direction=OPTIMIZER).tolist():
        about = scene.about(site)
        group, _, name = about.leaf.partition(".")
        if about.api and name:
            there = sizes[site][np.isfinite(sizes[site])]
            if len(there):
                known[about.api, group, name] = float(np.median(there))
            classes[about.api] = about.type
    groups = {key: _rate(known, key, classes.get(key[0], "")) for key in set(owned.group)}
    return [groups[key] for key in owned.group]


def _rate(known: dict[tuple[str, str, str], float], key: tuple[str, str], kind: str) -> Rate | None:
    rate = known.get((*key, "lr"))
    if rate is None:
        return None
    return Rate(
        rate=rate,
        decay=known.get((*key, "weight_decay"), 0.0),
        momentum=known.get((*key, "momentum"), 0.0),
        decoupled=kind == "AdamW" or known.get((*key, "decoupled_weight_decay"), 0.0) > 0,
        plain=kind == "SGD",
        settles=kind in _SETTLE,
    )
