"""Layers that return values many times larger than what they are fed, from the first step on."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.finding import Finding
from probe_nb.analysis.rules.scene import BACKWARD, FORWARD, Scene, Sites, Table
from probe_nb.analysis.words import number

Numbers = NDArray[np.float64]

_SAME_SIZE: Final = 8
"""An output of fewer elements than an eighth of its input may be a sum: it grows by adding up."""


def growing(scene: Scene) -> list[Finding]:
    """Say which layers, or parts of several, blow values up.

    Only in training: what a trained model has become is not judged. A layer that owns a matrix is
    compared with its like; of other parts, the innermost that multiplies by far more is named.
    """
    sites, gains = _gains(scene)
    if not len(sites):
        return []
    owners = _owners(scene, sites)
    usual = np.array([_usual(scene, sites, gains, row) for row in range(len(sites))])
    limits = scene.limits
    layer = owners & (gains >= limits.gain) & (gains >= limits.gain_beside * usual)
    part = ~owners & (gains >= limits.gain_of_parts)
    part &= ~_around_others(scene, sites, part | layer)
    found = np.flatnonzero(layer if layer.any() else part)
    if not len(found):
        return []
    order = scene.by_execution(sites[found])
    row = int(np.flatnonzero(sites == order[0])[0])
    return [_growing(scene, order, gains[row], float(usual[row]), layer=bool(layer[row]))]


def _growing(scene: Scene, order: Sites, gain: float, usual: float, *, layer: bool) -> Finding:
    site, limits = int(order[0]), scene.limits
    beside = f"; others of its class: {number(usual)}" if layer else ""
    limit = limits.gain if layer else limits.gain_of_parts
    return scene.finding(
        "warning",
        "growing",
        site,
        f"{scene.name(site)} returns values {number(gain)} times larger than its input",
        detail=[
            (
                f"spread of the output over rms of the input, in its first step{beside} (alarm "
                f"from {number(limit)})"
            ),
            scene.same_in(len(order) - 1),
        ],
        step=int(scene.tally.window.steps[np.argmax(scene.seen[site])]),
        value=gain,
        threshold=limit,
        others=order[1:],
    )


def _usual(scene: Scene, sites: Sites, gains: Numbers, row: int) -> float:
    """Return the median gain of the other layers of a layer's class, 1 if there is none."""
    like = scene.tally.type[sites] == scene.tally.type[sites[row]]
    like[row] = False
    return float(np.median(gains[like])) if like.any() else 1.0


def _owners(scene: Scene, sites: Sites) -> Table:
    """Tell which of some sites are of modules that own a matrix."""
    tally = scene.tally
    params = scene.of_role("param", direction=FORWARD).tolist()
    owners = {int(tally.module[site]) for site in params if len(scene.shape(site)) > 1}
    return np.array([int(tally.module[site]) in owners for site in sites], np.bool_)


def _around_others(scene: Scene, sites: Sites, found: Table) -> Table:
    """Tell which sites belong to modules around a module that was found too."""
    inner = [(a.model, a.module) for a in map(scene.about, sites[found].tolist())]
    around = np.zeros(len(sites), np.bool_)
    for row, about in enumerate(map(scene.about, sites.tolist())):
        head = f"{about.module}." if about.module else ""
        around[row] = any(
            model == about.model and path != about.module and path.startswith(head)
            for model, path in inner
        )
    return around


def _gains(scene: Scene) -> tuple[Sites, Numbers]:
    """Return outputs in training, and their spread over the rms of what went in.

    Judged in a site's first step in the window. Token ids have no size of their own: an embedding
    is held against 1. The spread, not the rms: a bias is no gain.
    """
    tally, window = scene.tally, scene.tally.window
    trained = {tally.modules_of[m][0] for m in tally.module[tally.direction == BACKWARD]}
    inputs = np.zeros(len(tally.modules)), np.zeros(len(tally.modules))
    fed = scene.of_role("input", direction=FORWARD)
    begin = np.argmax(scene.seen[fed], axis=1)
    rms = np.sqrt(np.maximum(window.mean_square(fed)[np.arange(len(fed)), begin], 0))
    rms = np.where(scene.floats[fed] & np.isfinite(rms), rms, 0.0)
    np.maximum.at(inputs[0], tally.module[fed], rms)
    np.maximum.at(inputs[1], tally.module[fed], np.where(rms > 0, tally.latest["numel"][fed], 0))
    outputs = scene.of_role("output", direction=FORWARD)
    found, gains = [], []
    for site in outputs[scene.floats[outputs]].tolist():
        about, module = scene.about(site), int(tally.module[site])
        embedding = about.type.endswith("Embedding")
        into = 1.0 if embedding else inputs[0][module]
        numel = int(tally.latest["numel"][site])
        small = not embedding and numel * _SAME_SIZE < inputs[1][module]
        if about.model not in trained or not into or small or "Norm" in about.type:
            continue
        step = int(np.argmax(scene.seen[site]))
        square = window.mean_square([site])[0, step] - window.means([site])[0, step] ** 2
        if square > 0:
            found.append(site)
            gains.append(float(np.sqrt(square)) / into)
    return np.array(found, np.intp), np.array(gains)
