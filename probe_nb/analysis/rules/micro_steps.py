"""What the micro steps of a step add up to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.finding import Finding
from probe_nb.analysis.rules.scene import BACKWARD, Scene, Sites
from probe_nb.analysis.words import number, plural
from probe_nb.store.table import ABSENT

Numbers = NDArray[np.float64]


def not_zeroed(scene: Scene) -> list[Finding]:
    """Say that `.grad` holds more than all that the step added, so something was there before."""
    added, held = _pairs(scene)
    if not len(added):
        return []
    one, whole, count = _micro(scene, added, held)
    excess = np.divide(whole, one * np.sqrt(count), out=np.zeros_like(whole), where=one > 0)
    limit = scene.limits.not_zeroed
    found = held[scene.lasts(held, excess > limit)]
    if not len(found):
        return []
    site = int(scene.by_execution(found)[0])
    row = int(np.flatnonzero(held == site)[0])
    now = float(excess[row][scene.seen[site]][-1])
    return [
        scene.finding(
            "warning",
            "not_zeroed",
            site,
            f"Gradients add up over steps: {scene.place(site)} holds {number(now)} times what the "
            "step can have added",
            detail=[scene.same_in(len(found) - 1, "other parameter")],
            step=scene.since(site, excess[row] > limit),
            value=now,
            threshold=limit,
            others=found[found != site],
        )
    ]


def gradient_noise(scene: Scene) -> list[Finding]:
    """Note that the gradients of the micro steps of a step have little in common."""
    added, held = _pairs(scene)
    if not len(added):
        return []
    one, whole, count = _micro(scene, added, held)
    several = (count > 1) & np.isfinite(one) & np.isfinite(whole)
    steps = np.flatnonzero(several.any(axis=0))
    if len(steps) < scene.limits.lasting:
        return []
    noise = signal = 0.0
    for step in steps:
        here = several[:, step]
        m = float(count[here, step].max())
        mean_square = float((one[here, step] ** 2).sum()) / m
        square_mean = float((whole[here, step] ** 2).sum()) / m**2
        variance = (mean_square - square_mean) * m / (m - 1)
        noise, signal = noise + variance, signal + mean_square - variance
    scale = noise / signal if signal > 0 else np.inf
    if scale < scene.limits.noise_scale:
        return []
    site = int(scene.by_execution(held)[0])
    times = "beyond measure" if np.isinf(scale) else f"{number(scale)} times the signal"
    return [
        scene.finding(
            "note",
            "gradient_noise",
            site,
            f"The gradients of the micro steps have little in common: noise is {times}",
            detail=[
                (
                    f"simple noise scale in micro batches, over {plural(len(steps), 'step')} and "
                    f"{plural(len(held), 'parameter')}"
                )
            ],
            step=int(scene.tally.window.steps[steps[0]]),
            value=scale,
            threshold=scene.limits.noise_scale,
        )
    ]


def _pairs(scene: Scene) -> tuple[Sites, Sites]:
    """Return the gradients that were added, and for each what `.grad` held then.

    None in distributed runs: there `.grad` is the mean over ranks of what each of them added.
    """
    tally = scene.tally
    if max(tally.ranks, default=ABSENT) >= 0 or (scene.info and scene.info.rank is not None):
        return np.empty(0, np.intp), np.empty(0, np.intp)
    sites = scene.of_role("param_grad", direction=BACKWARD)
    holds = sites[tally.held[sites]]
    place = np.full(len(tally.parameters), -1)
    place[tally.parameter[sites[~tally.held[sites]]]] = sites[~tally.held[sites]]
    added = place[tally.parameter[holds]]
    return added[added >= 0], holds[added >= 0]


def _micro(scene: Scene, added: Sites, held: Sites) -> tuple[Numbers, Numbers, Numbers]:
    """Return per parameter and step: root of the sum of |added|^2, |held| at the end, how many."""
    window, numel = scene.tally.window, scene.tally.latest["numel"][added][:, None]
    return scene.sizes[added], window["last"][held], window["counted"][added] / numel
