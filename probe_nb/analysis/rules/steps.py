"""What changes from one step to the next, and inputs that are the same on every rank."""

from __future__ import annotations

from typing import Final

import numpy as np

from probe_nb.analysis.finding import Finding, Severity
from probe_nb.analysis.rules.gradients import FROM_THE_LOSS
from probe_nb.analysis.rules.scene import BACKWARD, FORWARD, Scene, Sites
from probe_nb.analysis.words import number, plural
from probe_nb.store.columns import Filter


def sudden_change(scene: Scene) -> list[Finding]:
    """Say where something suddenly became much larger or smaller; the first in execution order.

    What comes after it, in this step and in later ones, follows from it.
    """
    tally, limits = scene.tally, scene.limits
    seen = scene.changed
    judged = (seen.step >= 0) & scene.floats & (tally.latest["numel"] > 1)
    judged &= ~scene.functions | scene.functions_alone  # what a router or a loss computes may vary
    forward = np.flatnonzero(judged & (tally.direction == FORWARD))
    judged &= (tally.direction == BACKWARD) & (tally.latest["numel"] >= limits.change_elements)
    judged &= (tally.parameter < 0) | (scene.ndim > 1)
    high = (seen.bits > 0) & (seen.peak >= limits.change_least)
    rises = np.flatnonzero(judged & high)
    falls = np.flatnonzero(judged & (seen.bits < 0) & (tally.parameter < 0))
    if len(rises) and not (len(forward) and seen.step[forward].min() <= seen.step[rises].min()):
        return [_change(scene, rises, "warning")]
    if len(forward):
        first = _first_change(scene, forward)
        return [_change(scene, forward, "note" if _is_empty_mask(scene, first) else "warning")]
    return [_change(scene, falls, "note")] if len(falls) else []


_MOVED: Final = (
    "Lower the learning rate of its group: an optimizer's step made it so. If that is right, look "
    "at the gradient and the batch of the step before."
)


def _change(scene: Scene, sites: Sites, severity: Severity) -> Finding:
    tally, limits, step, bits = scene.tally, scene.limits, scene.changed.step, scene.changed.bits
    first = _first_change(scene, sites)
    when = int(step[first])
    site = scene.root_of(first, when)
    moved = scene.about(site).role == "param"
    loss = scene.is_root(site) and scene.about(site).role == "grad_output"
    row = scene.once(("row", site, when), lambda: _row(scene, site, when))
    zero = bits[first] < -1000  # noqa: PLR2004 - stands for nothing at all
    times = float(2.0 ** min(abs(bits[first]), 1000.0))
    if zero:
        words = "suddenly nothing but zeros"
    else:
        words = f"suddenly {number(times)} times {'larger' if bits[first] > 0 else 'smaller'}"
    limit = limits.change_forward if tally.direction[site] == FORWARD else limits.change_backward
    same_step = int((step[sites] == when).sum()) - 1
    return scene.finding(
        severity,
        "sudden_change",
        site,
        f"{scene.place(site)} is {words} at step {when}"
        + (": it came from the loss" if loss else ""),
        advice=FROM_THE_LOSS if loss else _MOVED if moved else "",
        detail=[
            f"rms against its median over the steps before (alarm from {number(limit)} times)",
            f"{plural(same_step, 'other site')} changed in the same step" if same_step else "",
        ],
        step=when,
        value=0.0 if zero else times,
        threshold=limit,
        row=row,
        others=sites[sites != site],
    )


def _first_change(scene: Scene, sites: Sites) -> int:
    """Return the site that changed first."""
    first = np.lexsort((scene.tally.latest["order"][sites], scene.changed.step[sites]))[0]
    return int(sites[first])


def _is_empty_mask(scene: Scene, site: int) -> bool:
    """Tell whether an input of a model that takes one value besides 0 was all zeros once.

    A mask or target of a batch that holds nothing of the kind.
    """
    tally, about = scene.tally, scene.about(site)
    gone = bool(scene.changed.bits[site] < -1000)  # noqa: PLR2004 - stands for nothing at all
    if not gone or about.role != "input" or about.module:
        return False
    latest = tally.latest
    total, square = tally.window["total"][site], tally.window["square"][site]
    peak = np.fmax.reduce(tally.window.peaks[site], initial=0.0)
    values = bool(np.allclose(square, peak * np.abs(total), rtol=1e-4))  # all of them 0 or peak
    return values and bool(latest["numel"][site] > 1)


def _row(scene: Scene, site: int, step: int) -> int:
    """Return the largest record of a site in a step."""
    wanted = [
        Filter("step", lambda values: values == step),
        Filter("site", lambda values: values == site),
    ]
    rows, found = scene.tally.columns.where(wanted, ("absmax",))
    return int(rows[np.nanargmax(found["absmax"])]) if len(rows) else -1


def input_scale(scene: Scene) -> list[Finding]:
    """Note that a model is fed values far larger than 1, unless it begins with a norm."""
    tally, limit = scene.tally, scene.limits.input_size
    finite, square = tally.begin["finite"], tally.begin["square"]
    fed = scene.of_role("input", direction=FORWARD)
    large = (finite[fed] > 0) & (square[fed] > limit**2 * finite[fed])
    roots = [s for s in fed[scene.floats[fed] & large].tolist() if scene.is_root(s)]
    if not roots or not (tally.direction == BACKWARD).any():
        return []
    outputs = scene.as_finished(scene.of_modules("output", direction=FORWARD))
    first = scene.about(int(outputs[0])).type if len(outputs) else ""
    if "Norm" in first:
        return []
    size = float(np.sqrt(square[roots[0]] / finite[roots[0]]))
    return [
        scene.finding(
            "note",
            "input_scale",
            roots[0],
            f"The model is fed values of size {number(size)}: {scene.place(roots[0])}",
            detail=[f"rms in the first step (note from {number(limit)})"],
            step=int(tally.begin["step"][roots[0]]),
            value=size,
            threshold=limit,
        )
    ]


def same_input(scene: Scene) -> list[Finding]:
    """Say that every rank was fed the same data, step after step."""
    tally = scene.tally
    if len(tally.ranks) < 2:  # noqa: PLR2004 - two ranks at least
        return []
    fed = [site for site in scene.of_role("input", direction=FORWARD) if scene.is_root(site)]
    found = []
    for site in (int(each) for each in fed if scene.floats[each]):
        steps, rows = _equal_steps(scene, site)
        if len(steps) >= scene.limits.lasting:
            split = any(".shard" in each.leaf for each in tally.columns.tables.sites.values)
            found.append(
                scene.finding(
                    "note" if split else "warning",
                    "same_input",
                    site,
                    f"{plural(len(tally.ranks), 'rank')} were fed the same data in "
                    f"{scene.place(site)}",
                    detail=[f"every statistic is the same in {plural(len(steps), 'step')}"],
                    step=steps[0],
                    value=len(steps),
                    threshold=scene.limits.lasting,
                    rows=rows,
                )
            )
    return found[:1]


def _equal_steps(scene: Scene, site: int) -> tuple[list[int], list[int]]:
    """Return the steps in which the first call had the same numbers on all ranks."""
    names = ("step", "micro_step", "call", "rank", "mean", "std", "l2", "absmax")
    rows, found = scene.tally.columns.where([Filter("site", lambda values: values == site)], names)
    first = (found["micro_step"] == 0) & (found["call"] == 0) & (found["std"] > 0)
    steps, evidence = [], []
    for step in np.unique(found["step"][first]).tolist():
        here = np.flatnonzero(first & (found["step"] == step))
        numbers = {tuple(found[n][row].item() for n in names[4:]) for row in here}
        if len(np.unique(found["rank"][here])) > 1 and len(numbers) == 1:
            steps.append(int(step))
            evidence += rows[here].tolist()
    return steps, evidence[:16]
