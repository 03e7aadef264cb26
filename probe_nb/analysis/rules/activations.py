"""Units that do not work: dead ones and saturated ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from probe_nb.analysis.finding import Finding, Severity
from probe_nb.analysis.rules import ranges
from probe_nb.analysis.rules.gradients import cutting, last_flow
from probe_nb.analysis.rules.scene import BACKWARD, FORWARD, Scene, Sites, Table
from probe_nb.analysis.window import Table as Numbers
from probe_nb.analysis.words import is_inside

RECTIFIERS: Final = ("ReLU", "ReLU6", "Threshold", "Hardswish", "Hardshrink", "Softshrink")
"""Classes whose output is exactly zero where a unit does not fire."""

_ALIVE: Final = ("output", "grad_output", "grad_input", "param_grad")

Slope = Callable[[Numbers, Numbers], Numbers]
_SLOPES: Final[dict[str, Slope]] = {
    "Tanh": lambda _, square: 1 - square,
    "Sigmoid": lambda mean, square: 4 * (mean - square),
    "Softsign": lambda _, square: 1 - square,
    "Hardtanh": lambda _, square: 1 - square,
    "Hardsigmoid": lambda mean, square: 4 * (mean - square),
}
"""Mean slope as a share of the largest one, from mean and mean square of the output.

Exact for tanh (1 - y^2) and the sigmoid (y - y^2, at most 1/4); for the others a measure that is
0 only where every unit is at its bound.
"""


def dead(scene: Scene) -> list[Finding]:
    """Say which outputs and gradients are nothing but zeros, and which rectifiers almost.

    Of a dead module only the output is named: that gradients into it are zero follows. Where the
    gradient that the loss sends is zero already, the loss asks for nothing (a hinge that is
    fulfilled): a note. So are zeros of one branch, beside which others carry gradients on.
    """
    outputs = _dead_outputs(scene)
    if len(outputs):
        return [_dead(scene, outputs)]
    gradients = _all_zero(scene, scene.of_role("grad_output", "grad_input", "param_grad"))
    cancelled = _cancelled(scene, gradients)
    gradients = gradients[~np.isin(gradients, cancelled)]
    if not len(gradients):
        return [_dead(scene, cancelled, "note", _NO_EFFECT)] if len(cancelled) else []
    if ranges.all_lost(scene) is not None:
        return []  # it was not zero before it was rounded
    if np.isin(scene.from_the_loss, gradients).any():
        return [_dead(scene, gradients, "note")]
    flows = gradients[scene.tally.parameter[gradients] < 0]
    gradients = flows if len(flows) else gradients
    ends = last_flow(scene, scene.tally.latest["absmax"] > 0)[gradients]
    if ends.any():
        return [_dead(scene, gradients[ends])]
    return [_dead(scene, gradients, "note", _NO_PART)]


_NO_PART: Final = "what lies in front of it has gradients: it alone has no influence on the loss"


_NO_EFFECT: Final = (
    "the gradient of its module is not zero: it cancels, so the loss does not feel it"
)


def _cancelled(scene: Scene, gradients: Sites) -> Sites:
    """Return the vectors among gradients whose sum cancels: what reached their module is not zero.

    The last bias where only differences count, the bias of keys in attention.
    """
    tally = scene.tally
    arrived = scene.of_role("grad_output")
    reached = np.zeros(len(tally.modules), np.bool_)
    reached[tally.module[arrived[tally.latest["absmax"][arrived] > 0]]] = True
    vectors = gradients[(tally.parameter[gradients] >= 0) & (scene.ndim[gradients] < 2)]  # noqa: PLR2004
    found: Sites = vectors[reached[tally.module[vectors]]]
    return found


def all_zero(scene: Scene) -> Table:
    """Tell which outputs and gradients were all zeros in each of the last steps."""
    found = np.zeros(scene.tally.sites, np.bool_)
    found[_all_zero(scene, scene.of_role(*_ALIVE))] = True
    return found


def _dead_outputs(scene: Scene) -> Sites:
    limit, outputs = scene.limits.dead_share, _units(scene)
    rectified = scene.of_type(outputs, RECTIFIERS)
    silent = rectified[scene.lasts(rectified, scene.tally.window.zero_share(rectified) >= limit)]
    return scene.as_finished(np.union1d(_all_zero(scene, outputs), silent))


def _units(scene: Scene) -> Sites:
    """Return outputs that units made: those with a graph; without any, the first of each module.

    What a module hands on besides may be nothing but zeros on purpose (a bias of positions).
    """
    tally = scene.tally
    outputs = scene.of_role("output", direction=FORWARD)
    inside = np.array([is_inside(scene.about(site)) for site in outputs.tolist()], np.bool_)
    outputs = outputs[inside | scene.functions_alone]  # a loss that is fulfilled is no dead unit
    order = np.full(len(tally.modules), np.iinfo(np.int64).max)
    np.minimum.at(order, tally.module[outputs], tally.latest["order"][outputs])
    first = tally.latest["order"][outputs] == order[tally.module[outputs]]
    first &= np.isin(outputs, scene.of_modules("output", direction=FORWARD))
    graph = tally.latest["requires_grad"][outputs] == 1
    trains = np.isin(scene.model[outputs], scene.model[tally.direction == BACKWARD])
    units: Sites = outputs[np.where(trains, graph, first)]
    return units


def _all_zero(scene: Scene, sites: Sites) -> Sites:
    """Return those whose every element was zero in each of the last steps."""
    latest = scene.tally.latest
    judged = (latest["zero_count"] == latest["numel"]) & (latest["numel"] > 1) & scene.floats
    sites = sites[judged[sites]]
    if not len(sites):
        return sites
    zero = scene.tally.window["zero"][sites] == scene.tally.window["counted"][sites]
    return scene.by_execution(sites[scene.lasts(sites, zero)])


def _dead(scene: Scene, sites: Sites, severity: Severity = "warning", why: str = "") -> Finding:
    site, limits = int(sites[0]), scene.limits
    share = scene.tally.window.zero_share(sites[:1])[0]
    now = float(share[scene.seen[site]][-1])
    since = scene.since(site, share >= limits.dead_share)
    born = since == int(scene.tally.begin["step"][site])
    words = "Nothing but zeros" if now == 1 else f"Hardly anything but zeros ({now:.2%})"
    return scene.finding(
        severity,
        "dead",
        site,
        f"{words} in {scene.place(site)}",
        detail=[
            _how_long(scene, site, since),
            why,
            scene.same_in(len(sites) - 1),
        ],
        step=since,
        value=now,
        threshold=limits.dead_share,
        others=sites[1:],
        advice=_FROM_THE_FIRST if born and scene.about(site).role == "output" else "",
    )


def _how_long(scene: Scene, site: int, since: int) -> str:
    """Write since when a site is dead: of what lies before the window nothing is known."""
    last = int(scene.tally.latest["step"][site])
    if since == int(scene.tally.begin["step"][site]):
        return f"from its first step ({since}) to step {last}"
    if since > int(scene.tally.window.steps[0]):
        return f"from step {since} to step {last}"
    return f"at least from step {since} to step {last}"


_FROM_THE_FIRST: Final = (
    "It never worked: look at the initialisation, the bias in front of it and the scale of its "
    "input, or use LeakyReLU or GELU."
)


def saturated(scene: Scene) -> list[Finding]:
    """Say which bounded activations have no slope left for a gradient to pass.

    The activation whose output is the model's own may be as sharp as its targets are (a generator
    of black and white images): there it is a note, unless no gradient at all comes through it.
    """
    window, limit = scene.tally.window, scene.limits.saturated_slope
    outputs = scene.of_modules("output", direction=FORWARD)
    found: list[tuple[int, float, int]] = []
    for name, slope in _SLOPES.items():
        sites = scene.of_type(outputs, (name,))
        if not len(sites):
            continue
        left = slope(window.means(sites), window.mean_square(sites))
        holds = left < limit
        for row in np.flatnonzero(scene.lasts(sites, holds)).tolist():
            site = int(sites[row])
            now = float(left[row][scene.seen[site]][-1])
            found.append((site, max(now, 0.0), scene.since(site, holds[row])))
    inside = [each for each in found if not _is_last(scene, each[0]) or _cuts(scene, each[0])]
    outside = [each for each in found if each not in inside]
    groups: tuple[tuple[Severity, Any], ...] = (("warning", inside), ("note", outside))
    return [_saturated(scene, group, severity) for severity, group in groups if group]


def _saturated(scene: Scene, found: list[tuple[int, float, int]], severity: Severity) -> Finding:
    order = scene.as_finished(np.array([site for site, _, _ in found], np.intp)).tolist()
    (site, left, step), *_ = sorted(found, key=lambda each: order.index(each[0]))
    return scene.finding(
        severity,
        "saturated",
        site,
        f"{scene.about(site).type} is saturated in {scene.place(site)}",
        detail=[
            (
                f"its mean slope is {left:.2%} of the largest possible (alarm below "
                f"{scene.limits.saturated_slope:.0%}), so hardly any gradient passes"
            ),
            scene.same_in(len(found) - 1),
        ],
        step=step,
        value=left,
        threshold=scene.limits.saturated_slope,
        others=order[1:],
    )


def _cuts(scene: Scene, site: int) -> bool:
    """Tell whether a gradient reaches the module of a site, and has vanished behind it."""
    return bool(np.isin(scene.tally.module[cutting(scene)], scene.tally.module[site]).any())


def _is_last(scene: Scene, site: int) -> bool:
    """Tell whether nothing of its model runs after a site's module but the modules around it."""
    tally, about = scene.tally, scene.about(site)
    outputs = [
        int(other)
        for other in scene.of_modules("output", direction=FORWARD)
        if tally.latest["order"][other] > tally.latest["order"][site]
    ]
    later = (scene.about(other) for other in outputs)
    return not any(
        each.model == about.model and not _around(each.module, about.module) for each in later
    )


def _around(outer: str, inner: str) -> bool:
    return not outer or inner.startswith(f"{outer}.")
