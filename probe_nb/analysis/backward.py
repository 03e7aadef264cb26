"""Births in the backward: what arrived at an output, what a module sent on, what its weights got.

A gradient arrives because somebody sent it. Where a module's own output is that of its parent, what
arrives is the parent's; and what arrives at the outermost comes from the loss.
"""

from __future__ import annotations

from dataclasses import replace

from probe_nb.analysis import masks
from probe_nb.analysis.births import Birth, Step
from probe_nb.analysis.calls import Call


def explained(step: Step, place: int) -> Birth:
    """Explain a gradient that is the first record of a step which is not finite."""
    call, site = step.calls.of[place], step.calls.site(place)
    if call is None:
        users = step.calls.of_module(site.model, site.module)
        arrived = [p for user in users for p in user.grad_outputs if p < place]
        found = step.born("backward", "weight", place, proof=arrived)
        return masks.shown(step, users, place) or found
    return _arrived(step, call, place) if site.role == "grad_output" else _sent(step, call, place)


def _sent(step: Step, call: Call, place: int) -> Birth:
    """Explain what a module sent back: its own backward, or its code before its first child."""
    child, sent = _last_sender(step, place, call, call)
    if child is not None:
        between = (child.path, call.path)
        proof = [*call.grad_outputs, *sent]
        return step.born("backward", "after", place, at=call.site, between=between, proof=proof)
    found = step.born("backward", "own", place, proof=[p for p in call.grad_outputs if p < place])
    return masks.shown(step, [call], place) or found


def _arrived(step: Step, call: Call, place: int) -> Birth:
    """Explain what arrived at an output."""
    outermost = _with_this_output(step, call, place)
    around = outermost.parent
    sender, sent = _last_sender(step, place, around, outermost)
    if around is None and (sender is None or not _same_model(sender, outermost)):
        return _from_the_loss(step, outermost, place)
    if sender is not None:
        between = (sender.path, call.path)
        at = around.site if around is not None else step.around(call.site.model, between)
        return step.born("backward", "between", place, at=at, between=between, proof=sent)
    assert around is not None  # noqa: S101 - without a sender there is one, else it was the loss
    between = (around.path, call.path)
    proof = [p for p in around.grad_outputs if p < place]
    return step.born("backward", "before", place, at=around.site, between=between, proof=proof)


def _same_model(sender: Call, call: Call) -> bool:
    return bool(call.path) and sender.site.model == call.site.model


def _from_the_loss(step: Step, outermost: Call, place: int) -> Birth:
    """Say that a gradient came from outside; it is that of the call which gives out the tensor."""
    about = outermost.site
    found = step.born("backward", "loss", place, at=about, proof=outermost.outputs)
    return replace(found, site=replace(found.site, module=about.module, type=about.type))


def _with_this_output(step: Step, call: Call, place: int) -> Call:
    """Return the outermost call that gives out the tensor at which a gradient arrived."""
    calls, leaf = step.calls, step.calls.site(place).leaf
    mine = [p for p in call.outputs if calls.site(p).leaf == leaf]
    while (around := call.parent) is not None:
        same = any(calls.same(p, place) for p in around.grad_outputs)
        if not same and not any(calls.same(p, one) for p in around.outputs for one in mine):
            break
        call = around
    return call


def _last_sender(
    step: Step, place: int, parent: Call | None, but: Call
) -> tuple[Call | None, list[int]]:
    """Return the call right inside `parent` that last sent a finite gradient back, and which."""
    best: tuple[Call | None, list[int]] = (None, [])
    for call in step.calls.children(parent):
        if call is but or call.micro_step != but.micro_step:
            continue
        for places in (call.grad_inputs, call.grad_outputs):
            sent = [p for p in places if p < place and step.calls.measured(p)]
            if sent:
                best = (call, sent) if sent[-1] > max(best[1], default=-1) else best
                break
    return best
