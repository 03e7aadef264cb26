"""Layers that return values many times larger than what they are fed, from the first step on."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.finding import Finding
from probe_nb.analysis.rules.scene import BACKWARD, FORWARD, Scene, Sites, Table
from probe_nb.analysis.words import number

Numbers = NDArray[np.float64]

_SMALL: Final = ("Softm", "Loss", "Dropout", "Sigmoid", "Entropy", "Identity")
"""Words in the names of classes that give small values on purpose."""

_SAME_SIZE: Final = 8
"""An output of fewer elements than an eighth of its input may be a sum: it grows by adding up."""


def growing(scene: Scene) -> list[Finding]:
    """Say which layers, or parts of several, blow values up.

    Only in training: what a trained model has become is not judged. A layer that owns a matrix is
    compared with its like; of other parts, the innermost that multiplies by far more is named.
    """
    tally = scene.tally
    sites, gains = scene.latest("gains", (tally.begun, tally.sites), lambda: _gains(scene))
    if not len(sites):
        return []
    owners, limits = _owners(scene)[sites], scene.limits
    layer = owners & (gains >= limits.gain)
    usual = np.ones(len(sites))
    for row in np.flatnonzero(layer).tolist():
        usual[row] = _usual(scene, sites, gains, row)
    layer &= gains >= limits.gain_beside * usual
    part = ~owners & (gains >= limits.gain_of_parts)
    if part.any():
        part &= ~_around_others(scene, sites, part | layer)
    found = np.flatnonzero(layer if layer.any() else part)
    if not len(found):
        return []
    order = scene.as_finished(sites[found])
    row = int(np.flatnonzero(sites == order[0])[0])
    return [_growing(scene, order, gains[row], float(usual[row]), layer=bool(layer[row]))]


def shrinking(scene: Scene) -> list[Finding]:
    """Say which parts without parameters return next to nothing of what they are fed.

    What owns parameters may begin small on purpose (a gate, a scale of 1e-6), and probabilities
    over many classes are small.
    """
    tally, limits = scene.tally, scene.limits
    sites, gains = scene.latest("gains", (tally.begun, tally.sites), lambda: _gains(scene))
    small = sites[gains <= limits.shrunk]
    if not len(small):
        return []
    owners = {(a.model, a.module) for a in map(scene.about, scene.of_role("param").tolist())}
    found = [site for site in small.tolist() if _may_shrink(scene, site, owners)]
    if not found:
        return []
    order = scene.as_finished(np.array(found, np.intp))
    site = int(order[0])
    gain = float(gains[np.flatnonzero(sites == site)[0]])
    return [
        scene.finding(
            "warning",
            "vanishing",
            site,
            f"{scene.name(site)} returns values {number(1 / gain)} times smaller than its input",
            detail=[
                (
                    f"spread of the output over rms of the input, in its first step (alarm from "
                    f"{number(1 / limits.shrunk)}); it has no parameter that could make up for it"
                ),
                scene.same_in(len(order) - 1),
            ],
            step=int(tally.begin["step"][site]),
            value=gain,
            threshold=limits.shrunk,
            others=order[1:],
        )
    ]


def _may_shrink(scene: Scene, site: int, owners: set[tuple[str, str]]) -> bool:
    """Tell whether a module has no parameter in it, and is not of a kind whose values are small."""
    about = scene.about(site)
    head = f"{about.module}." if about.module else ""
    inside = (
        model == about.model and (path == about.module or path.startswith(head))
        for model, path in owners
    )
    return not any(inside) and not any(word in about.type for word in _SMALL)


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
        step=int(scene.tally.begin["step"][site]),
        value=gain,
        threshold=limit,
        others=order[1:],
    )


def _usual(scene: Scene, sites: Sites, gains: Numbers, row: int) -> float:
    """Return the median gain of the other layers of a layer's class, 1 if there is none."""
    like = scene.tally.type[sites] == scene.tally.type[sites[row]]
    like[row] = False
    return float(np.median(gains[like])) if like.any() else 1.0


def _owners(scene: Scene) -> Table:
    """Tell which sites are of modules that own a matrix."""
    params = scene.of_role("param", direction=FORWARD)
    owns = np.zeros(len(scene.tally.modules), np.bool_)
    owns[scene.tally.module[params[scene.ndim[params] > 1]]] = True
    found: Table = owns[scene.tally.module]
    return found


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

    Judged in a site's very first step. Token ids have no size of their own: an embedding is held
    against 1. The spread, not the rms: a bias is no gain.
    """
    tally, begin = scene.tally, scene.tally.begin
    finite = np.maximum(begin["finite"], 1)
    square = begin["square"] / finite
    spread = np.sqrt(np.maximum(square - (begin["total"] / finite) ** 2, 0.0))
    fed = scene.of_modules("input", direction=FORWARD)
    fed = fed[scene.floats[fed] & (square[fed] > 0)]
    into, numel = np.zeros((2, len(tally.modules)))
    np.maximum.at(into, tally.module[fed], np.sqrt(square[fed]))
    np.maximum.at(numel, tally.module[fed], tally.latest["numel"][fed])
    sites = scene.of_role("output", direction=FORWARD)
    embedding = scene.is_type(lambda name: name.endswith("Embedding"))[sites]
    into = np.where(embedding, 1.0, into[tally.module[sites]])
    sum_like = tally.latest["numel"][sites] * _SAME_SIZE < numel[tally.module[sites]]
    trained = np.unique(scene.model[tally.direction == BACKWARD])
    judged = scene.floats[sites] & (into > 0) & (spread[sites] > 0) & (embedding | ~sum_like)
    judged &= np.isin(scene.model[sites], trained) & np.isfinite(spread[sites])
    judged &= ~scene.is_type(lambda name: "Norm" in name)[sites] & ~scene.functions[sites]
    judged &= spread[sites] > scene.limits.gain_beside_bias * _biases(scene)[tally.module[sites]]
    return sites[judged], spread[sites[judged]] / into[judged]


def _biases(scene: Scene) -> Numbers:
    """Return per module the rms of its bias: what an output differs by where nothing goes in."""
    tally, begin = scene.tally, scene.tally.begin
    found = np.zeros(len(tally.modules))
    params = scene.of_role("param", direction=FORWARD)
    params = params[(scene.ndim[params] == 1) & (begin["finite"][params] > 0)]
    rms = np.sqrt(begin["square"][params] / begin["finite"][params])
    np.maximum.at(found, tally.module[params], rms)
    return found
