"""Gradients that vanish or explode: beside others, over steps, and along depth."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.finding import Finding
from probe_nb.analysis.rules.owned import Owned
from probe_nb.analysis.rules.scene import BACKWARD, Scene, Sites, Table
from probe_nb.analysis.words import number

FROM_THE_LOSS: Final = (
    "Look at the loss of that step, at the targets it was computed from and at what it is "
    "multiplied by; clip gradients. If a `GradScaler` is in use, pass it as `scaler=`."
)

_FLOWING: Final = ("grad_output", "grad_input")
_OLDER: Final = 4
"""Steps that the older half of the window must have before growth is judged."""


def tiny(scene: Scene) -> Table:
    """Tell which flowing gradients were tiny beside the others in each of the last steps.

    A bias in front of a normalisation has a gradient that is zero up to rounding, so gradients of
    parameters never count; a converged model has small gradients everywhere.
    """
    found: Table = scene.once_here("tiny", lambda: _tiny(scene))[0]
    return found


def _tiny(scene: Scene) -> tuple[Table, dict[int, Table]]:
    """Return which are tiny, and of each of them in which steps."""
    tally, limits = scene.tally, scene.limits
    found, now = np.zeros(tally.sites, np.bool_), tally.latest["absmax"]
    when: dict[int, Table] = {}
    small = (now < limits.vanished) & (now > 0)
    if not small[scene.of_role(*_FLOWING)].any():
        return found, when
    small &= last_flow(scene, now >= limits.vanished)
    for role in _FLOWING:
        of_role = scene.of_modules(role)  # functions are fed parameters too
        of_role = of_role[tally.latest["numel"][of_role] > 1]
        sites = of_role[small[of_role]]
        if not len(sites):
            continue
        sizes, peaks = scene.sizes, tally.window.peaks[sites]
        largest = np.fmax.reduce(sizes[of_role], axis=0)
        beside = sizes[sites] < limits.vanished_beside * largest
        holds = beside & (peaks < limits.vanished) & (peaks > 0)
        lasting = scene.lasts(sites, holds)
        found[sites] |= lasting
        when |= dict(zip(sites[lasting].tolist(), holds[lasting], strict=True))
    return found, when


def last_flow(scene: Scene, alive: Table) -> Table:
    """Tell of each gradient whether none that is alive comes after it in the backward of its model.

    Where one does, a branch is faint or still (the queries of attention), and the rest learns.
    """
    latest, flowing = scene.tally.latest, scene.of_role(*_FLOWING)
    going = flowing[(alive & (latest["numel"] > 1))[flowing]]
    steps, when = np.unique(latest["step"], return_inverse=True)
    last = np.full((int(scene.model.max(initial=0)) + 1, len(steps)), -1)
    np.maximum.at(last, (scene.model[going], when[going]), latest["order"][going])
    found: Table = latest["order"] > last[scene.model, when]
    return found


def cutting(scene: Scene) -> Sites:
    """Return the gradients that vanish within one module: what arrived at it was far larger.

    In the order of the backward; a module around others is not looked at.
    """
    tally, limits, rms = scene.tally, scene.limits, scene.tally.window.rms()
    into, sent = scene.of_role("grad_output"), scene.of_role("grad_input")
    arrived = np.full((len(tally.modules), rms.shape[1]), np.nan)
    np.fmax.at(arrived, tally.module[into], rms[into])
    peaks = tally.window.peaks[sent]
    holds = (peaks < limits.vanished) & (rms[sent] < limits.cut * arrived[tally.module[sent]])
    cut = sent[scene.lasts(sent, holds)]
    around = {(a.model, up) for a in map(scene.about, into.tolist()) for up in _above(a.module)}
    keys = [(a.model, a.module) for a in map(scene.about, cut.tolist())]
    inner = np.array([key not in around for key in keys], np.bool_)
    return scene.as_finished(cut[inner])


def _above(path: str) -> list[str]:
    """Return the paths of the modules around one."""
    parts = path.split(".") if path else []
    return [".".join(parts[:end]) for end in range(len(parts))]


def huge(scene: Scene) -> Table:
    """Tell which gradients are huge, or have grown out of all proportion, while still finite."""
    tally, limits, now = scene.tally, scene.limits, scene.tally.latest["absmax"]
    gradient = tally.direction == BACKWARD
    found: Table = gradient & (now >= limits.exploded)
    half = len(tally.window.steps) // 2
    rows, peaks = np.flatnonzero(gradient & (now >= 1)), tally.window.peaks
    if half >= _OLDER and len(rows):
        rows = rows[~(now[rows] < limits.exploded_growth * peaks[rows, half - 1])]  # most are left
        older = np.fmax.reduce(peaks[rows, :half], axis=1)
        found[rows] |= (now[rows] >= limits.exploded_growth * older) & (older > 0)
    return found


def vanishing(scene: Scene) -> list[Finding]:
    """Say where gradients are tiny beside others, or fade away towards the input."""
    sites = scene.by_execution(np.flatnonzero(tiny(scene)))
    if not len(sites):
        return _along_depth(scene, sign=1)
    cut = cutting(scene)
    cut = cut[last_flow(scene, scene.tally.latest["absmax"] >= scene.limits.vanished)[cut]]
    site = int(cut[0]) if len(cut) else int(sites[0])
    latest, limits = scene.tally.latest, scene.limits
    when = scene.once_here("tiny", lambda: _tiny(scene))[1]
    return [
        scene.finding(
            "warning",
            "vanishing",
            site,
            f"Vanishing in {scene.place(site)}",
            detail=[
                (
                    f"largest |value| {number(latest['absmax'][site])} at step "
                    f"{int(latest['step'][site])}, and under {limits.vanished:g} for the last "
                    f"{limits.lasting} steps while gradients elsewhere are a million times larger"
                ),
                "what arrived at this module was far larger" if len(cut) else "",
                scene.same_in(len(sites) - 1),
            ],
            step=scene.since(
                site, when.get(site, scene.tally.window.peaks[site] < limits.vanished)
            ),
            value=latest["absmax"][site],
            threshold=limits.vanished,
            others=sites[sites != site],
        )
    ]


def exploding(scene: Scene) -> list[Finding]:
    """Say where gradients are huge or grow out of all proportion, over steps or along depth."""
    sites = np.flatnonzero(huge(scene))
    if not len(sites):
        return _along_depth(scene, sign=-1)
    latest, since = scene.tally.latest, _huge_since(scene, sites)
    first = np.lexsort((latest["order"][sites], since))[0]
    step = int(since[first])
    site = scene.root_of(int(sites[first]), step)
    loss = scene.is_root(site) and scene.about(site).role == "grad_output"
    return [
        scene.finding(
            "warning",
            "exploding",
            site,
            f"Exploding in {scene.place(site)}" + (": it came from the loss" if loss else ""),
            advice=FROM_THE_LOSS if loss else "",
            detail=[
                (
                    f"largest |value| {number(latest['absmax'][site])} at step "
                    f"{int(latest['step'][site])}"
                ),
                scene.same_in(len(sites) - 1),
            ],
            step=step,
            value=latest["absmax"][site],
            threshold=scene.limits.exploded,
            others=sites[sites != site],
        )
    ]


def _huge_since(scene: Scene, sites: Sites) -> NDArray[np.int64]:
    """Return since when each is huge, or when it suddenly grew."""
    steps, peaks = scene.tally.window.steps, scene.tally.window.peaks[sites]
    over = peaks >= scene.limits.exploded
    since = np.where(over.any(axis=1), steps[np.argmax(over, axis=1)], steps[-1])
    changed = scene.changed.step[sites]
    found: NDArray[np.int64] = np.where(changed >= 0, np.minimum(changed, since), since)
    return found


# -- along depth --------------------------------------------------------------------------------


def _along_depth(scene: Scene, sign: int) -> list[Finding]:
    """Compare the gradients of weights, as shares of the weights, in order of execution.

    Args:
        scene: What was tallied.
        sign: 1: fading towards the input; -1: growing towards it.
    """
    limits, found = scene.limits, []
    for model in np.unique(scene.model).tolist():
        sites, logs = scene.once_here(("depth", model), partial(_relative, scene, model))
        if len(sites) < limits.depth_layers:
            continue
        third = max(len(sites) // 3, 1)
        ends = np.median(logs[:third]), np.median(logs[-third:])
        fall = sign * (ends[1] - ends[0])
        if fall < np.log2(limits.depth_ratio) or not _rises(sign * logs, limits.depth_order):
            continue
        place = int(np.argmax(sign * np.diff(logs)))
        steep = sign * np.diff(logs)[place] > fall / 2
        site = int(sites[place] if steep else sites[0])
        found.append(_depth(scene, sites, site, sign, float(2**fall)))
    return found


def _relative(scene: Scene, model: int) -> tuple[Sites, NDArray[np.float64]]:
    """Return the gradients of matrices in order of execution, and log2 of |gradient| / |weight|.

    The median over the steps of the window in which all of them are there.
    """
    tally, owned = scene.tally, Owned.of(scene)
    judged = owned.matrix & (scene.model[owned.site] == model) & scene.ran[owned.site]
    # of an embedding most rows have no gradient in a step
    judged &= ~scene.is_type(lambda name: name.endswith("Embedding"))[owned.site]
    weight = np.full(len(tally.parameters), -1)
    weight[tally.parameter[owned.site[judged]]] = owned.site[judged]
    sites = scene.of_role("param_grad", direction=BACKWARD)
    sites = sites[~tally.held[sites] & (weight[tally.parameter[sites]] >= 0)]
    sites = scene.by_execution(sites)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log2(scene.sizes[sites] / scene.sizes[weight[tally.parameter[sites]]])
    steps = np.flatnonzero(np.isfinite(logs).all(axis=0))
    if not len(sites) or len(steps) < scene.limits.lasting:
        return sites[:0], np.empty(0)
    return sites, np.median(logs[:, steps], axis=1)


def _rises(logs: NDArray[np.float64], least: float) -> bool:
    """Tell whether values rise along depth, by Spearman's rank correlation."""
    ranks = np.argsort(np.argsort(logs))
    return bool(np.corrcoef(ranks, np.arange(len(logs)))[0, 1] >= least)


def _depth(scene: Scene, sites: Sites, site: int, sign: int, ratio: float) -> Finding:
    kind, words = ("vanishing", "fade away") if sign > 0 else ("exploding", "grow")
    last = scene.name(int(sites[-1]))
    return scene.finding(
        "warning",
        kind,
        site,
        f"Gradients {words} towards the input: {kind} from {last} down to {scene.place(site)}",
        detail=[
            (
                f"as a share of the weights they differ by a factor of {number(ratio)} between the "
                f"two ends of {len(sites)} layers (alarm from {number(scene.limits.depth_ratio)})"
            )
        ],
        step=int(scene.tally.window.steps[scene.seen[site]][0]),
        value=ratio,
        threshold=scene.limits.depth_ratio,
        others=sites[sites != site],
    )
