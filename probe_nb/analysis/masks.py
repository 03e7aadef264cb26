"""What is not finite on purpose: -Inf as masks have it, NaN that a model is made to be fed with.

-Inf counts where it did harm: a call that took it gave out NaN or +Inf, or it is what a loss or the
model gave out. Then it was born where it first came out, unless that is where it always does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from probe_nb.analysis import forward
from probe_nb.analysis.births import Birth, Step
from probe_nb.analysis.calls import Call


def is_handled(step: Step, place: int) -> bool:
    """Tell whether NaN was fed on purpose: the call that took it made numbers of it.

    While the step goes on, a call that has not ended may still do so.
    """
    calls, call = step.calls, step.calls.of[place]
    if call is None or calls.site(place).role != "input" or calls.block["posinf_count"][place] > 0:
        return False
    around = call.parent
    if around is not None and not any(calls.same(p, place) for p in step.hard(around.inputs)):
        return False
    return step.all_finite(call.outputs) if call.outputs else not step.complete


def source(step: Step, call: Call, place: int, found: Birth) -> Birth | None:
    """Return the birth of the -Inf that became something worse here, None if it was none.

    A birth it is not where it came from outside, where it was in earlier steps too, and where
    another call took the very same tensor and did well: then it is a mask, and the fault is here.
    """
    calls = step.calls
    if found.phase != "forward":
        return None
    code = call if found.why in ("own", "after") else call.parent
    weights = [] if code is None else calls.owns(code.site, "param")
    if spoilt := step.soft(weights):
        return step.born("parameter", "held", spoilt[0], proof=[*call.inputs, place])
    taken = _taken(step, call, place, found)
    given = [p for each in taken if (p := _given(step, each, call)) is not None]
    if given and (giver := calls.of[min(given)]) is not None:
        return forward.gave(step, giver, min(given))
    first = next((p for p in taken if calls.site(p).leaf == "0"), None)
    if first is None or found.why != "own" or call.parent is None:
        return None
    taker, place = _outermost(step, call, first)
    arose = forward.arrived(step, taker, place)
    if weights:  # no mask: they are applied to it
        return arose
    return replace(found, came=arose.between)


def _outermost(step: Step, call: Call, place: int) -> tuple[Call, int]:
    """Return the outermost call around one that was handed the same tensor, and its record."""
    while (around := call.parent) is not None:
        same = [p for p in step.soft(around.inputs) if step.calls.same(p, place)]
        if not same:
            break
        call, place = around, same[0]
    return call, place


def shown(step: Step, users: Iterable[Call]) -> Birth | None:
    """Return the birth of a -Inf that shows first in the gradients of a module it went through."""
    for call in users:
        given = step.soft(call.outputs)
        if given and step.all_finite(call.inputs):
            return forward.gave(step, call, given[0])
        taken = step.soft(call.inputs) if given else []
        sources = [p for each in taken if (p := _given(step, each, call)) is not None]
        if sources and (giver := step.calls.of[sources[0]]) is not None:
            return forward.gave(step, giver, sources[0])
    return None


def _taken(step: Step, call: Call, place: int, found: Birth) -> list[int]:
    """Return the records with -Inf that the code where it happened had at hand."""
    if found.between is None:
        return step.soft(call.inputs)
    around = call if found.why == "after" else call.parent
    last = step.calls.last_before(place, around, call)
    return [] if last is None else step.soft(last.outputs)


def _given(step: Step, place: int, taker: Call) -> int | None:
    """Return the output in which a tensor with -Inf came out first, None if it does not count."""
    calls = step.calls
    same = [p for p in step.soft(range(len(calls))) if calls.same(p, place)]
    given = [p for p in same if p <= place and calls.site(p).role == "output"]
    giver = calls.of[given[0]] if given else None
    if giver is None or int(calls.block["site"][given[0]]) in step.usual:
        return None
    users = [user for p in same if calls.site(p).role == "input" and (user := calls.of[p])]
    if any(u is not taker and u.outputs and step.all_finite(u.outputs) for u in users):
        return None
    taken = [p for p in giver.inputs if not calls.finite(p)]
    if not taken:
        return given[0]
    return next((p for each in step.soft(taken) if (p := _given(step, each, giver))), None)


def end(step: Step, before: int | None) -> int | None:
    """Return the first record of -Inf that a loss gave out, or that leaves the model and is lost.

    Where something worse follows, at `before`, only one that is certain to have been lost by then.
    """
    for place in step.soft(range(len(step.calls) if before is None else before)):
        if step.calls.site(place).role == "output":
            certain = _is_lost(step, place)
            if certain or (certain is None and before is None and step.complete):
                return place
    return None


def at_the_end(step: Step, end: int) -> Birth | None:
    """Return the birth of the -Inf that a loss or the model gave out at `end`."""
    calls = step.calls
    same = [p for p in step.soft(range(end)) if calls.same(p, end)]
    first = next((p for p in same if calls.site(p).role == "output"), end)
    call = calls.of[first]
    if call is None:
        return None
    return source(step, call, first, found := forward.gave(step, call, first)) or found


def _is_lost(step: Step, place: int) -> bool | None:
    """Tell whether -Inf is what a loss gave out or leaves the model; None: unless more follows."""
    calls, call = step.calls, step.calls.of[place]
    if call is None:
        return False
    if call.site.type.endswith("Loss"):
        return True
    if call.parent is not None or (call.path if step.rooted else place != _last_output(step)):
        return False
    if call.grad_outputs and step.all_finite(call.grad_outputs):
        return False  # its loss made numbers of it
    return True if step.rooted and not calls.block["requires_grad"][place] else None


def _last_output(step: Step) -> int:
    return max((call.outputs[-1] for call in step.calls.calls if call.outputs), default=-1)
