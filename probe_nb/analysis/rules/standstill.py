"""Optimizers that step and move nothing: without a gradient, or with a learning rate of 0."""

from __future__ import annotations

import numpy as np

from probe_nb.analysis.finding import Finding
from probe_nb.analysis.rules.owned import Owned
from probe_nb.analysis.rules.scene import BACKWARD, OPTIMIZER, Scene, Sites, Table
from probe_nb.analysis.words import optimizer, plural


def standstill(scene: Scene) -> list[Finding]:
    """Say which optimizers moved nothing in many steps in a row, and why."""
    found = []
    for name, sites in _rates(scene).items():
        owned = Owned.of(scene)
        mine = np.array([of == name for of, _ in owned.group], np.bool_)
        if not mine.any() or _moved(owned, mine):
            continue
        steps = np.logical_or.reduce(scene.seen[sites], axis=0)
        if steps.sum() < scene.limits.still_steps:
            continue
        if finding := _without_rate(scene, sites) or _without_gradient(scene, sites, mine, steps):
            found.append(finding)
    return found


def _rates(scene: Scene) -> dict[str, list[int]]:
    """Return the learning rates of each optimizer, in the order of its groups."""
    found: dict[str, list[int]] = {}
    for site in scene.of_role("state", direction=OPTIMIZER).tolist():
        about = scene.about(site)
        if about.api and about.leaf.endswith(".lr"):
            found.setdefault(about.api, []).append(site)
    return found


def _moved(owned: Owned, mine: Table) -> bool:
    """Tell whether anything moved that an optimizer holds, in steps that it took.

    Once is nothing: another kernel gives the same numbers with other last bits, and takes over
    once in a run.
    """
    changed = (owned.changed & owned.stepped)[mine].sum(axis=1)
    return bool(changed.max() > 1)


def _without_rate(scene: Scene, sites: list[int]) -> Finding | None:
    """Judge whether the learning rate of every group was 0 in each of the last steps.

    A warm-up may begin at 0, but not stay there.
    """
    limit, rates = scene.limits.still_steps, np.array(sites, np.intp)
    zero = scene.tally.window.peaks[rates] == 0
    if not scene.lasts(rates, zero, steps=int(limit)).all():
        return None
    name = optimizer(scene.about(sites[0]))
    return scene.finding(
        "warning",
        "stuck",
        sites[0],
        f"Nothing moves: the learning rate of {name} ({scene.about(sites[0]).type}) is 0",
        detail=[f"in each of the last {plural(int(limit), 'step')} at least"],
        step=scene.since(sites[0], zero[0]),
        value=0,
        threshold=limit,
        others=sites[1:],
        advice="Look at the schedule: a warm-up that divides whole numbers, or that is never "
        "stepped, stays at 0.",
    )


def _without_gradient(scene: Scene, sites: list[int], mine: Table, steps: Table) -> Finding | None:
    """Judge whether an optimizer never saw a gradient of what it holds, though backwards ran."""
    tally, owned = scene.tally, Owned.of(scene)
    if not scene.records_all("param_grad"):
        return None
    numbers = tally.parameter[owned.site[mine]]
    fed = scene.of_role("param_grad")
    fed = fed[np.isin(tally.parameter[fed], numbers)]
    taken = fed[tally.direction[fed] == OPTIMIZER]
    given: Sites = fed[tally.direction[fed] == BACKWARD]
    if scene.seen[taken][:, steps].any() or not scene.seen[given][:, steps].any(axis=0).all():
        return None  # without a gradient at all they are `unused`
    site = int(scene.by_execution(given)[0])
    name = optimizer(scene.about(sites[0]))
    count = plural(int(steps.sum()), "step")
    return scene.finding(
        "warning",
        "stuck",
        sites[0],
        f"Nothing moves: {name} ({scene.about(sites[0]).type}) found no gradient in {count}",
        detail=[
            (
                f"every backward gave gradients, to {plural(len(numbers), 'parameter')}: they "
                "were gone when it stepped"
            )
        ],
        step=int(tally.window.steps[steps][0]),
        value=0,
        threshold=scene.limits.still_steps,
        rows=[tally.latest["row"][site]],
        others=given,
        advice="Call `zero_grad()` before the backward, or after the step; not in between.",
    )
