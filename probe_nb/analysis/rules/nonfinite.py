"""NaN and Inf: the one place where they began, and gradients that overflow under a loss scale."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from probe_nb.analysis.births import Birth
from probe_nb.analysis.finding import Finding
from probe_nb.analysis.firsts import First
from probe_nb.analysis.rules.moves import farthest
from probe_nb.analysis.rules.scene import BACKWARD, Scene, Table
from probe_nb.analysis.tally import Tally
from probe_nb.analysis.thresholds import DEFAULTS
from probe_nb.analysis.told import Words
from probe_nb.analysis.words import number, plural


def culprit(tally: Tally) -> tuple[str, First] | None:
    """Return the record in which the first NaN or Inf shows, with the name of its kind."""
    born = tally.origins.birth
    return None if born is None else (born.kind, First(born.step, born.order, born.row, born.code))


def downstream(tally: Tally) -> Table:
    """Tell which sites turned non-finite after the culprit did."""
    found = culprit(tally)
    if found is None:
        return np.zeros(tally.sites, np.bool_)
    _, first = found
    after: Table = tally.firsts["bad"].order > first.order
    after[first.site] = False
    return after


def non_finite(scene: Scene) -> list[Finding]:
    """Say where the first NaN or Inf was born; what follows from it is no finding of its own."""
    tally, born = scene.tally, scene.tally.origins.birth
    if born is None:
        return []
    if born.phase == "backward" and scene.info is not None and scene.info.unnamed_scaler:
        return [_under_an_unnamed_scale(scene, born)]
    after = np.flatnonzero(downstream(tally))
    words = scene.once(born, lambda: Words(tally.columns, born, scene.info))
    detail = [scene.once(("detail", born), words.detail)]
    if pushed := scene.once(("pushed", born), lambda: _pushed(scene, born)):
        detail.append(pushed)
    if len(after):
        detail.append(f"{plural(len(after), 'site')} of {tally.sites} turned NaN or Inf after it")
    found = scene.finding(
        "error",
        "non_finite",
        born.code,
        words.sentence(),
        detail=detail,
        step=born.step,
        row=born.row,
        rows=born.proof,
        others=after,
        advice=words.advice(),
    )
    return [replace(found, module=born.at.module)]


_FAR: Final = 10.0
"""An update this many times its weight is named beside a NaN that came after it.

No training goes on from there, and none that goes well comes near it: 0.001 is usual.
"""


def _pushed(scene: Scene, born: Birth) -> str:
    """Say which update had blown a weight up before; empty if none had."""
    moved = None if born.phase in {"input", "buffer"} else farthest(scene, born.step)
    if moved is None or moved[2] < _FAR:
        return ""
    site, step, ratio = moved
    name = f"{scene.name(site)} ({scene.about(site).leaf})"
    return f"the update of {name} at step {step} was {number(ratio)} times its size"


def _under_an_unnamed_scale(scene: Scene, born: Birth) -> Finding:
    """Say that gradients overflow, where a scaler that nobody named may skip such steps."""
    found = scene.finding(
        "warning",
        "loss_scale",
        born.code,
        f"Gradients overflowed, first in {scene.place(born.code)}, and a GradScaler that was not "
        "named steps the optimizer",
        detail=["GradScaler skips such steps, and what it multiplies the loss by is not known"],
        step=born.step,
        row=born.row,
        rows=born.proof,
        advice="Pass the scaler as `scaler=`: then steps that it skips are told from faults.",
    )
    return replace(found, module=born.at.module)


def loss_scale(scene: Scene) -> list[Finding]:
    """Say that gradients overflow under the loss scale, and whether they go on doing so."""
    scaler, patience = scene.tally.scaler, scene.limits.scaler_patience
    again = _again(scene)
    if scaler.streak < patience and len(again) >= patience:
        return _collapses(scene, again)
    if not scaler.streak:
        return _settled(scene)
    if scaler.row < 0:
        return []
    detail = f"the loss scale was {number(scaler.scale)}; GradScaler skips such steps"
    streak = "step" if scaler.streak == 1 else plural(scaler.streak, "step")
    sentence = f"Gradients overflowed under the loss scale in the last {streak}, first in "
    sentence += scene.place(scaler.site)
    advice, site, row = "" if scaler.streak >= patience else _ONCE, scaler.site, scaler.row
    born = scene.tally.origins.unsettled() if scaler.streak >= DEFAULTS.scaler_patience else None
    if born is not None:
        words = scene.once(born, lambda: Words(scene.tally.columns, born, scene.info))
        sentence, advice, site, row = words.sentence(), words.advice(), born.code, born.row
        lasts = f"and so in each of the last {streak}, at every loss scale that was tried"
        detail = f"{words.detail()}; {lasts}; {detail}"
    bad = scaler.streak >= patience
    found = scene.finding(
        "error" if bad else "note",
        "loss_scale",
        site,
        sentence,
        detail=[detail],
        step=scaler.overflowed[-scaler.streak],
        value=scaler.streak,
        threshold=patience,
        row=row,
        rows=() if born is None else born.proof,
        advice=advice,
    )
    return [found if born is None else replace(found, module=born.at.module)]


_ONCE: Final = (
    "Nothing, while it stays at one or two steps in a row: so a GradScaler finds the largest scale "
    "that fits, at first and whenever it has doubled the scale."
)


def _settled(scene: Scene) -> list[Finding]:
    """Note which steps a scaler skipped before it found its scale."""
    steps, first = scene.tally.scaler.overflowed, scene.tally.scaler.first
    if first is None:
        return []
    return [
        scene.finding(
            "note",
            "loss_scale",
            first.site,
            f"Gradients overflowed under the loss scale in {plural(len(steps), 'step')}, the last "
            f"at step {steps[-1]}, and no longer",
            detail=[f"GradScaler skipped {'it' if len(steps) == 1 else 'them'}"],
            step=steps[0],
            value=len(steps),
            threshold=scene.limits.scaler_patience,
            row=first.row,
            advice=_ONCE,
        )
    ]


def _again(scene: Scene) -> list[int]:
    """Return the overflowing steps of the window that came after a good one."""
    steps, overflowed = scene.tally.window.steps.tolist(), set(scene.tally.scaler.overflowed)
    if not overflowed:
        return []
    good = next((n for n, step in enumerate(steps) if step not in overflowed), len(steps))
    return [step for step in steps[good:] if step in overflowed]


def _collapses(scene: Scene, again: list[int]) -> list[Finding]:
    """Say that the scale falls, again and again, after it had settled."""
    tally = scene.tally
    place = int(np.searchsorted(tally.window.steps, again[0]))
    bad = np.isinf(tally.window.peaks[:, place]) & (tally.direction == BACKWARD)
    if not bad.any():
        return []
    site = int(scene.as_finished(np.flatnonzero(bad))[0])
    return [
        scene.finding(
            "warning",
            "loss_scale",
            site,
            f"The loss scale does not settle: {plural(len(again), 'step')} of the last "
            f"{len(tally.window.steps)} overflowed after a good one, first in {scene.place(site)}",
            step=again[0],
            value=len(again),
            threshold=scene.limits.scaler_patience,
        )
    ]
