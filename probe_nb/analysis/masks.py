"""What is not finite on purpose: -Inf as masks have it, NaN that a model is made to be fed with.

-Inf counts where it did harm: a call that took it gave out NaN or +Inf, its gradient is not finite,
or a loss gave it out. Then it was born where it first came out, unless it always comes out there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from probe_nb.analysis import forward
from probe_nb.analysis.births import Birth, Harm, Step, kind_of
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
    given = _given(step, taken)
    if given is not None and (giver := calls.of[given]) is not None:
        return replace(forward.gave(step, giver, given), harm=_harm(step, place))
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


def shown(step: Step, users: Iterable[Call], place: int) -> Birth | None:
    """Return the birth of a -Inf that shows first in the gradients of a module it went through."""
    for call in users:
        given: int | None = next(iter(step.soft(call.outputs)), None)
        if given is not None and not step.all_finite(call.inputs):
            given = _given(step, step.soft(call.inputs))
        if given is not None and (giver := step.calls.of[given]) is not None:
            return replace(forward.gave(step, giver, given), harm=_harm(step, place))
    return None


def _taken(step: Step, call: Call, place: int, found: Birth) -> list[int]:
    """Return the records with -Inf that the code where it happened had at hand."""
    if found.between is None:
        return step.soft(call.inputs)
    around = call if found.why == "after" else call.parent
    last = step.calls.last_before(place, around, call)
    return [] if last is None else step.soft(last.outputs)


def _given(step: Step, places: Iterable[int]) -> int | None:
    """Return the earliest output in which tensors with -Inf came out, None if it does not count.

    What a call handed on is followed back through it, so each tensor is looked at once.
    """
    found, seen, waiting = [], set(), list(places)
    while waiting:
        place = waiting.pop()
        same = step.calls.equal(place)
        given = next((p for p in same if step.calls.site(p).role == "output"), place + 1)
        if given > place or given in seen:
            continue
        seen.add(given)
        giver = step.calls.of[given]
        if giver is None or _is_usual(step, given, same):
            continue
        taken = [p for p in giver.inputs if not step.calls.finite(p)]
        waiting += step.soft(taken)
        found += [] if taken else [given]
    return min(found, default=None)


def _is_usual(step: Step, given: int, same: list[int]) -> bool:
    """Tell whether an output is a mask: it had -Inf before, or another took it and did well."""
    calls = step.calls
    if int(calls.block["site"][given]) in step.usual:
        return True
    users = [user for p in same if calls.site(p).role == "input" and (user := calls.of[p])]
    return any(user.outputs and step.all_finite(user.outputs) for user in users)


def lost(step: Step, before: int | None) -> int | None:
    """Return the first record of -Inf that a loss gave out, of those before another."""
    for place in step.soft(range(len(step.calls) if before is None else before)):
        site = step.calls.site(place)
        if site.role == "output" and site.type.endswith("Loss"):
            return place
    return None


def at_the_loss(step: Step, end: int) -> Birth | None:
    """Return the birth of the -Inf that a loss gave out at `end`."""
    calls = step.calls
    given = [p for p in calls.equal(end) if calls.site(p).role == "output"]
    first = min([*given, end])
    call = calls.of[first]
    if call is None:
        return None
    born = source(step, call, first, found := forward.gave(step, call, first)) or found
    return replace(born, harm=_harm(step, end))


def _harm(step: Step, place: int) -> Harm:
    return step.calls.site(place), kind_of(step.calls.block, place)
