"""The findings of a run: every rule is asked, and what it says is ranked, worst first.

Rank: errors, warnings, notes; of one severity what began first, and within a step the forward
before the backward before the optimizer, each in execution order. So the cause stands before what
follows from it, and what is known to follow from something else that was found is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pandas as pd

from probe_nb.analysis.finding import SEVERITIES, Finding
from probe_nb.analysis.rules import activations, gradients, nonfinite, parameters, ranges
from probe_nb.analysis.rules.scene import Scene

COLUMNS: Final = (
    *("severity", "kind", "model", "module", "role", "leaf", "step", "sentence", "detail"),
    *("advice", "rows", "value", "threshold"),
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
    activations.growing,
    gradients.exploding,
    gradients.vanishing,
    parameters.unused,
    parameters.frozen,
    parameters.stuck,
)

_LASTING: Final = frozenset({"frozen", "unused", "stuck", "update_lost", "not_zeroed"})
"""What is wrong with the program and not with its numbers: no NaN brings it about."""


def found(scene: Scene) -> list[Finding]:
    """Ask every rule and return what they found, worst first."""
    if not scene.tally.records:
        return []
    every = [finding for rule in RULES for finding in rule(scene)]
    return sorted(_causes(every), key=lambda each: _rank(scene, each))


def _rank(scene: Scene, each: Finding) -> tuple[int, ...]:
    direction = int(scene.tally.direction[each.site])
    return SEVERITIES.index(each.severity), each.step, direction, each.order


def _causes(every: list[Finding]) -> list[Finding]:
    """Leave out what follows from something else that was found."""
    born = next((each for each in every if each.kind == "non_finite"), None)
    if born is None:
        return every
    return [
        each
        for each in every
        if each is born or each.kind in _LASTING or (each.step, each.order) < _when(born)
    ]


def _when(finding: Finding) -> tuple[int, int]:
    return finding.step, finding.order


def as_frame(findings: list[Finding]) -> pd.DataFrame:
    """Return findings as a DataFrame."""
    rows = [[getattr(each, name) for name in COLUMNS] for each in findings]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame["rows"] = frame["rows"].map(list)
    text = [n for n in COLUMNS if n not in {"step", "rows", "value", "threshold"}]
    return frame.astype(dict.fromkeys(text, "str") | {"step": "int64"})
