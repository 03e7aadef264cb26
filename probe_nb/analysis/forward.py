"""Births in the forward: what a call gave out, and what it was handed."""

from __future__ import annotations

from probe_nb.analysis.births import Birth, Step
from probe_nb.analysis.calls import Call


def explained(step: Step, call: Call, place: int) -> Birth:
    """Explain an input or output that is the first record of a step which is not finite."""
    taken = step.calls.site(place).role == "input"
    return arrived(step, call, place) if taken else gave(step, call, place)


def arrived(step: Step, call: Call, place: int) -> Birth:
    """Explain an input: no watched module gave it out, so the code around the call made it."""
    around = call.parent
    before = step.calls.last_before(place, around, call)
    if around is not None and before is None:
        between = (around.path, call.path)
        return step.born(
            "forward", "before", place, at=around.site, between=between, proof=around.inputs
        )
    if before is None or (around is None and not _same_model(before, call)):
        return step.born("input", "fed", place)
    between = (before.path, call.path)
    at = around.site if around is not None else step.around(call.site.model, between)
    return step.born("forward", "between", place, at=at, between=between, proof=before.outputs)


def _same_model(before: Call, call: Call) -> bool:
    """Tell whether code of one model may lie between two calls that were seen inside no other."""
    return bool(call.path) and before.site.model == call.site.model


def gave(step: Step, call: Call, place: int) -> Birth:
    """Explain an output: the module made it, or its buffer, or its code after its last child."""
    held = [p for p in step.calls.owns(call.site, "buffer") if step.soft([p])]
    if worse := [p for p in held if not step.calls.only_neginf(p)]:
        return step.born("buffer", "held", worse[0], proof=[*call.inputs, place])
    last = step.calls.last_before(place, call, call)
    if last is None:
        return step.born("forward", "own", place, proof=call.inputs)
    between = (last.path, call.path)
    proof = [*call.inputs, *last.outputs]
    return step.born("forward", "after", place, at=call.site, between=between, proof=proof)
