"""Optimizers that were named and hold nothing of what is watched."""

from __future__ import annotations

from typing import Final

from probe_nb.analysis.finding import Finding
from probe_nb.analysis.rules.owned import Owned
from probe_nb.analysis.rules.scene import Scene
from probe_nb.analysis.words import plural

_TOLD: Final = "was named as an optimizer and holds no parameter of what is watched"
"""What the session says of each of them when a watch opens."""

_ADVICE = (
    "Make the optimizer again whenever the model is made again, from the parameters of the model "
    "that is trained; in a notebook, run both cells. Or name the optimizer that holds them."
)


def foreign(scene: Scene) -> list[Finding]:
    """Say that no optimizer that was named holds a parameter of what is watched.

    Where one of several does, the others train something else, and a notice is enough. So it is
    where parameters move all the same: somebody else holds them.
    """
    info = scene.info
    if info is None or info.moved:
        return []
    told = next((text for text in info.notices if _TOLD in text), "")
    owned = Owned.of(scene) if told else None
    if owned is None or not (owned.trained & owned.gradient.any(axis=1)).any():
        return []
    if owned.changed.any():
        return []
    sites = scene.by_execution(owned.site[owned.trained])
    return [
        scene.finding(
            "warning",
            "stuck",
            int(sites[0]),
            told.partition(":")[0],
            detail=[
                f"{plural(len(sites), 'parameter')} of the model require a gradient, and none moved"
            ],
            step=int(scene.tally.window.steps[0]),
            value=0,
            threshold=0,
            others=sites[1:],
            advice=_ADVICE,
        )
    ]
