"""The findings of a run: every rule is asked, and what it says is ranked, worst first.

Rank: errors, warnings, notes; of one severity what began first, and within a step the forward
before the backward before the optimizer, each in execution order. So the cause stands before what
follows from it, and what is known to follow from something else that was found is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from probe_nb.analysis.finding import SEVERITIES, Finding
from probe_nb.analysis.listed import NOTHING, Listed
from probe_nb.analysis.rules import (
    activations,
    alerts,
    foreign,
    gradients,
    growth,
    micro_steps,
    nonfinite,
    parameters,
    ranges,
    ranks,
    rate_groups,
    standstill,
    steps,
    updates,
)
from probe_nb.analysis.rules.scene import BACKWARD, Scene
from probe_nb.errors import notify

COLUMNS: Final = (
    *("severity", "kind", "module", "step", "sentence", "detail", "advice"),
    *("model", "role", "leaf", "rows", "value", "threshold"),
)
"""The columns of `run.findings()`."""

Rule = Callable[[Scene], list[Finding]]

RULES: Final[tuple[Rule, ...]] = (
    nonfinite.non_finite,
    nonfinite.loss_scale,
    ranges.clipped,
    ranges.overflow_risk,
    ranges.underflow,
    activations.dead,
    activations.saturated,
    growth.growing,
    growth.shrinking,
    gradients.exploding,
    gradients.vanishing,
    foreign.foreign,
    parameters.unused,
    parameters.frozen,
    parameters.stuck,
    standstill.standstill,
    updates.update_ratio,
    updates.update_lost,
    rate_groups.rates_apart,
    micro_steps.not_zeroed,
    micro_steps.gradient_noise,
    steps.sudden_change,
    ranks.drift,
    steps.same_input,
    steps.input_scale,
    alerts.alerts,
)

_LASTING: Final = frozenset({"frozen", "unused", "stuck", "update_lost", "not_zeroed", "alert"})
"""What is wrong with the program and not with its numbers: no NaN brings it about."""


_CAUSES: Final = frozenset({"growing", "exploding", "update_ratio", "sudden_change"})
"""What makes values leave all bounds, so that they end as NaN or Inf steps later."""


def found(scene: Scene) -> list[Finding]:
    """Ask every rule and return what they found, worst first."""
    if not scene.tally.records:
        return []
    with np.errstate(all="ignore"):  # what is beyond all bounds is judged as that
        every = [finding for rule in RULES for finding in _asked(rule, scene)]
    every = _without_repeats(scene, every)
    born = next((each for each in every if each.kind == "non_finite"), None)
    if born is not None:
        every = _beside(scene, every, born)
    return sorted(every, key=lambda each: _rank(scene, each))


def _asked(rule: Rule, scene: Scene) -> list[Finding]:
    """Ask one rule; where it fails the others are asked all the same, and it is said once."""
    try:
        return rule(scene)
    except Exception as error:
        words = f"{rule.__name__}: {error!r}"
        scene.once(("failed", rule), lambda: notify(f"probe_nb could not ask the rule {words}"))
        return []


def _rank(scene: Scene, each: Finding) -> tuple[int, ...]:
    direction = int(scene.tally.direction[each.site])
    return SEVERITIES.index(each.severity), each.step, direction, each.order


def _without_repeats(scene: Scene, every: list[Finding]) -> list[Finding]:
    """Leave out what says of the same tensors less than another finding does."""
    tally, kinds = scene.tally, {each.kind for each in every}
    stuck: set[int] = set()
    for each in every:
        if each.kind in {"stuck", "update_lost"}:
            stuck |= _parameters(scene, each)

    def follows(each: Finding) -> bool:
        if each.kind == "not_zeroed":  # what no optimizer holds, none sets to zero
            return _parameters(scene, each) <= stuck
        if each.kind == "rates_apart":  # that names the group which is the odd one
            return "update_ratio" in kinds
        backward = tally.direction[each.site] == BACKWARD
        return each.kind == "sudden_change" and "exploding" in kinds and bool(backward)

    return [each for each in every if not follows(each)]


def _parameters(scene: Scene, finding: Finding) -> set[int]:
    """Return the numbers of the parameters that a finding is about."""
    numbers = scene.tally.parameter[[finding.site, *finding.others]]
    return set(numbers[numbers >= 0].tolist())


def _beside(scene: Scene, every: list[Finding], born: Finding) -> list[Finding]:
    """Leave out what follows from a NaN, and make an error of what led to it."""
    kept = [
        each
        for each in every
        if each is born
        or each.kind in _LASTING
        or (each.step, each.order) < (born.step, born.order)
    ]
    blown_up = _blown_up(scene, born)
    then = f"what came of it: {born.sentence}"

    def led_there(each: Finding) -> bool:
        if (each.step, each.order) >= (born.step, born.order):
            return False
        if each.kind == "overflow_risk":
            return _fed(scene, each.site, born)
        return blown_up and each.kind in _CAUSES

    return [
        replace(each, severity="error", detail="; ".join(p for p in (each.detail, then) if p))
        if led_there(each)
        else each
        for each in kept
    ]


def _fed(scene: Scene, site: int, born: Finding) -> bool:
    """Tell whether a module was fed, where it gave out the first Inf, the very output of a site."""
    tally = scene.tally
    place = np.flatnonzero(tally.window.steps == born.step)
    mine = np.flatnonzero(tally.module == tally.module[born.site])
    inputs = np.intersect1d(mine, scene.of_role("input"))
    names = ("peaks", "square", "total")
    pairs = [[tally.window[name][sites][:, place] for sites in (inputs, [site])] for name in names]
    same = np.logical_and.reduce([taken == given for taken, given in pairs])
    return bool((same & np.isfinite(pairs[0][0])).any())


def _blown_up(scene: Scene, born: Finding) -> bool:
    """Tell whether the values that a NaN was made of had left all bounds before."""
    tally = scene.tally
    place = np.flatnonzero(tally.window.steps == born.step)
    mine = tally.module == tally.module[born.site]
    peaks = tally.window.peaks[mine][:, place]
    finite = peaks[np.isfinite(peaks)]
    return bool(len(finite) and finite.max() >= scene.limits.blown_up)


def as_frame(findings: list[Finding], unjudged: str = "") -> Listed:
    """Return findings as a DataFrame; `unjudged` says why there can be none."""
    rows = [[getattr(each, name) for name in COLUMNS] for each in findings]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame["rows"] = frame["rows"].map(list)
    text = [n for n in COLUMNS if n not in {"step", "rows", "value", "threshold"}]
    made = Listed(frame.astype(dict.fromkeys(text, "str") | {"step": "int64"}))
    made.attrs["nothing"] = unjudged or NOTHING
    return made
