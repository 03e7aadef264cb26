"""NaN and Inf: the one place where they began, and gradients that overflow under a loss scale."""

from __future__ import annotations

from typing import Final

import numpy as np

from probe_nb.analysis import evidence
from probe_nb.analysis.finding import Finding
from probe_nb.analysis.firsts import First
from probe_nb.analysis.rules.scene import Scene, Table
from probe_nb.analysis.tally import Tally
from probe_nb.analysis.words import number, plural

_NON_FINITE: Final = (("nan", "NaN"), ("posinf", "+Inf"), ("neginf", "-Inf"))


def culprit(tally: Tally) -> tuple[str, First] | None:
    """Return the first record of the gravest non-finite kind, with the name of the kind.

    An infinity that came before the first NaN in the same step stands for it: overflows turn into
    NaN a few modules on.
    """
    firsts = tally.firsts
    found = [(name, f) for kind, name in _NON_FINITE if (f := firsts[kind].overall) is not None]
    if not found:
        return None
    name, first = found[0]
    earlier = [(n, f) for n, f in found[1:] if f.step == first.step and f.before(first)]
    earlier = [pair for pair in earlier if pair[0] == "+Inf"]
    return earlier[0] if earlier else (name, first)


def downstream(tally: Tally) -> Table:
    """Tell which sites turned non-finite after the culprit did."""
    found = culprit(tally)
    if found is None:
        return np.zeros(tally.sites, np.bool_)
    _, first = found
    step, order = tally.firsts["bad"].step, tally.firsts["bad"].order
    after: Table = (step > first.step) | ((step == first.step) & (order > first.order))
    after[first.site] = False
    after &= step >= 0
    return after


def non_finite(scene: Scene) -> list[Finding]:
    """Say where the first NaN or Inf was born; what follows from it is no finding of its own."""
    tally, found = scene.tally, culprit(scene.tally)
    if found is None:
        return []
    name, first = found
    after = np.flatnonzero(downstream(tally))
    detail = [scene.once((name, first), lambda: evidence.birth(tally, first, name))]
    if len(after):
        detail.append(f"{plural(len(after), 'site')} of {tally.sites} turned NaN or Inf after it")
    return [
        scene.finding(
            "error",
            "non_finite",
            first.site,
            f"{name} first appeared at step {first.step} in {scene.place(first.site)}",
            detail=detail,
            step=first.step,
            row=first.row,
            order=first.order,
            others=after,
        )
    ]


def loss_scale(scene: Scene) -> list[Finding]:
    """Say that gradients overflow under the loss scale, and whether they go on doing so."""
    scaler, patience = scene.tally.scaler, scene.limits.scaler_patience
    if not scaler.streak or scaler.row < 0:
        return []
    bad = scaler.streak >= patience
    detail = f"the loss scale was {number(scaler.scale)}; GradScaler skips such steps"
    if bad:
        detail += ", but a scale that does not settle means that the gradients are not finite"
    return [
        scene.finding(
            "error" if bad else "note",
            "loss_scale",
            scaler.site,
            f"Gradients overflowed under the loss scale in the last "
            f"{plural(scaler.streak, 'step')}, first in {scene.place(scaler.site)}",
            detail=[detail],
            step=scaler.overflowed[-scaler.streak],
            value=scaler.streak,
            threshold=patience,
            row=scaler.row,
        )
    ]
