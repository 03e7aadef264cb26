"""The search for the birth in one step.

Of the records of a step, in execution order, the first that is not finite decides. What it is tells
where to look: an output whose inputs were finite is its module's own work; an input that is not
what the module before gave out was made in the code between the two, which is their parent's.
"""

from __future__ import annotations

import numpy as np

from probe_nb.analysis import backward, forward, masks
from probe_nb.analysis.births import Birth, Step


def birth(step: Step) -> Birth | None:
    """Return the birth in a step, None if nothing was born."""
    hard = np.flatnonzero(step.marks.hard).tolist()
    if all(masks.is_handled(step, place) for place in hard):
        hard = []
    end = masks.lost(step, hard[0] if hard else None)
    if end is not None:
        return masks.at_the_loss(step.until(end), end)
    return _explained(step.until(hard[0]), hard[0]) if hard else None


def _explained(step: Step, place: int) -> Birth:
    """Explain the first record that is not finite."""
    call, site = step.calls.of[place], step.calls.site(place)
    if site.direction == "optimizer":
        return _stepped(step, place)
    if site.direction == "backward":
        return backward.explained(step, place)
    if call is None:
        return step.born("parameter", "held", place)
    found = forward.explained(step, call, place)
    return masks.source(step, call, place, found) or found


def _stepped(step: Step, place: int) -> Birth:
    """Explain what is not finite at the optimizer: the gradient it took, or its own work."""
    calls, site = step.calls, step.calls.site(place)
    mine = {
        role: calls.of_parameter(site, role, "optimizer")
        for role in ("param_grad", "param", "update", "state")
    }
    if taken := step.hard(mine["param_grad"]):
        added = calls.of_parameter(site, "param_grad", "backward")
        return step.born("optimizer", "handed", taken[0], proof=added)
    made = [*mine["param"], *mine["update"], *mine["state"]]
    worst = next(iter(step.hard(made)), place)
    proof = [*mine["param_grad"], *made, *calls.of_parameter(site, "param", "forward")]
    return step.born("optimizer", "stepped", worst, proof=proof)
