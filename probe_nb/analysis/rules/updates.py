"""What the optimizer does to the weights, and what micro steps add up to."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.finding import Finding
from probe_nb.analysis.rules.owned import Owned
from probe_nb.analysis.rules.scene import BACKWARD, OPTIMIZER, Scene, Sites
from probe_nb.analysis.words import number, plural
from probe_nb.store.table import ABSENT

Numbers = NDArray[np.float64]

_LARGE_STEPS: Final = frozenset({"LBFGS", "Rprop"})
"""Optimizers whose steps go as far as a line search, or their own history, lets them."""


def update_ratio(scene: Scene) -> list[Finding]:
    """Say which weights are moved too far, or hardly at all, in the median of steps in a row."""
    owned, limits = Owned.of(scene), scene.limits
    if not len(owned):
        return []
    ratios = _ratios(scene, owned)
    there = np.isfinite(ratios) & (ratios > 0)
    rows = np.flatnonzero(owned.matrix & owned.trained & (there.sum(axis=1) >= limits.update_steps))
    if not len(rows):
        return []
    each = [ratios[row][there[row]] for row in rows]
    middle = np.array([np.median(values) for values in each])
    peak = np.array([values.max() for values in each])
    most = np.zeros(len(rows))
    for place in np.flatnonzero(peak > limits.update_ratio_beside):
        most[place] = _most(each[place], limits.update_steps)
    beside = np.median(middle) if len(middle) > 1 else np.inf
    most *= not _LARGE_STEPS.intersection(scene.tally.types)
    high = most > limits.update_ratio
    high |= (most > limits.update_ratio_beside) & (most > limits.update_beside * beside)
    low = middle < limits.update_ratio_low
    found = []
    if high.any():
        site, step = _first_over(scene, owned, ratios, rows[high], most[high])
        found.append(_ratio(scene, owned, rows[high], most[high], site=site, step=step))
    if low.any():
        worst = rows[low][np.argmin(middle[low])]
        site, step = int(owned.site[worst]), int(scene.tally.window.steps[0])
        found.append(_ratio(scene, owned, rows[low], middle[low], site=site, step=step, high=False))
    return found


def _first_over(
    scene: Scene, owned: Owned, ratios: Numbers, rows: Sites, most: Numbers
) -> tuple[int, int]:
    """Return the weight that is moved most, and since when it is moved too far."""
    row = int(rows[np.argmax(most)])
    there = np.flatnonzero(np.isfinite(ratios[row]) & (ratios[row] > 0))
    values, limits = ratios[row, there], scene.limits
    medians = _medians(values, limits.update_steps)
    limit = min(limits.update_ratio, float(most.max()))
    begin = int(np.argmax(medians >= limit))
    since = there[begin + int(np.argmax(values[begin:] >= limit))]
    return int(owned.site[row]), int(scene.tally.window.steps[since])


def _most(values: Numbers, steps: int) -> float:
    """Return the largest median of so many steps in a row."""
    return float(_medians(values, steps).max())


def _medians(values: Numbers, steps: int) -> Numbers:
    """Return the median of each stretch of so many steps."""
    windows = np.lib.stride_tricks.sliding_window_view(values, steps)
    medians: Numbers = np.median(windows, axis=1)
    return medians


def _ratios(scene: Scene, owned: Owned) -> Numbers:
    """Return |update| / |weight before it| per parameter and step, NaN where it is not known.

    Where no optimizer was named, the change of the weight's size is what an update was at least.
    A weight that begins at zero counts as a quarter of 1 / sqrt(fan-in), about half of what PyTorch
    begins with: its first updates are large beside nothing.
    """
    tally, sizes = scene.tally, scene.sizes
    before = sizes[owned.site]
    moved = np.full(before.shape, np.nan)
    with np.errstate(invalid="ignore"):  # what is beyond all bounds has no change
        moved[:, :-1] = np.abs(before[:, 1:] - before[:, :-1])
    updates = scene.of_role("update", direction=OPTIMIZER)
    place = np.full(len(tally.parameters), -1)
    place[tally.parameter[owned.site]] = np.arange(len(owned))
    updates = updates[place[tally.parameter[updates]] >= 0]
    moved[place[tally.parameter[updates]]] = sizes[updates]
    shapes = tally.columns.tables.shapes.values
    rows = np.array([*((shape or (1,))[0] for shape in shapes), 1], np.float64)
    rows = rows[tally.latest["shape"][owned.site]]
    least = np.sqrt(rows)[:, None] / 4  # l2 of numel elements of 1 / (4 sqrt(numel / rows))
    with np.errstate(invalid="ignore"):
        ratios: Numbers = moved / np.maximum(before, np.maximum(least, 1e-30))
    return ratios


def _ratio(
    scene: Scene,
    owned: Owned,
    rows: Sites,
    values: Numbers,
    *,
    site: int,
    step: int,
    high: bool = True,
) -> Finding:
    limits, tally = scene.limits, scene.tally
    value = float(values.max() if high else values.min())
    limit = limits.update_ratio_low
    if high:
        limit = limits.update_ratio if value > limits.update_ratio else limits.update_ratio_beside
    others = [other for other in owned.site[rows].tolist() if other != site]
    updates = scene.of_role("update", direction=OPTIMIZER)
    mine = updates[tally.parameter[updates] == tally.parameter[site]]
    words, way = ("large", "above") if high else ("small", "below")
    return scene.finding(
        "warning" if high else "note",
        "update_ratio",
        site,
        f"Updates of {scene.name(site)} are too {words}: {number(value)} of the weight per step",
        detail=[
            (
                f"|update| / |weight| in the median of {limits.update_steps} steps in a row (alarm "
                f"{way} {number(limit)})"
            ),
            scene.same_in(len(others), "other weight"),
        ],
        step=step,
        value=value,
        threshold=limit,
        rows=tally.latest["row"][mine],
        others=others,
    )


def update_lost(scene: Scene) -> list[Finding]:
    """Say which updates leave most elements as they are: their dtype cannot hold the difference.

    Where gradients are zero there is nothing to lose.
    """
    limits, tally, owned = scene.limits, scene.tally, Owned.of(scene)
    dtypes = tally.columns.tables.dtypes.values
    coarse = [code for code, name in enumerate(dtypes) if name in ("bfloat16", "float16")]
    weights = owned.site[np.isin(tally.latest["dtype"][owned.site], coarse)]
    if not len(weights) or not _stepped(scene):
        return []
    gradient = np.full((2, len(tally.parameters)), -1)
    gradient[0, tally.parameter[weights]] = weights
    fed = scene.of_role("param_grad", direction=BACKWARD)
    gradient[1, tally.parameter[fed]] = fed
    sites = scene.of_role("update", direction=OPTIMIZER)
    sites = sites[(gradient[:, tally.parameter[sites]] >= 0).all(axis=0)]
    value, fed = gradient[:, tally.parameter[sites]]
    lost = tally.window.zero_share(sites) - tally.window.zero_share(fed)
    found = np.flatnonzero(scene.lasts(sites, lost >= limits.lost_share))
    if not len(found):
        return []
    worst = scene.by_execution(sites[found])
    site = int(worst[0])
    row = int(np.flatnonzero(sites == site)[0])
    share, dtype = float(lost[row][scene.seen[site]][-1]), scene.dtype(int(value[row]))
    return [
        scene.finding(
            "warning",
            "update_lost",
            site,
            f"Updates of {scene.name(site)} are rounded away in {dtype}",
            detail=[
                (
                    f"{share:.0%} of the elements that have a gradient stay as they are (alarm "
                    f"from {limits.lost_share:.0%})"
                ),
                scene.same_in(len(worst) - 1, "other weight"),
            ],
            value=share,
            threshold=limits.lost_share,
            others=worst[1:],
        )
    ]


def _stepped(scene: Scene) -> bool:
    """Tell whether an optimizer really stepped: a learning rate is not 0, no scaler stopped it."""
    tally = scene.tally
    settings = [(s, scene.about(s).leaf) for s in scene.of_role("state", direction=OPTIMIZER)]
    rates = [s for s, leaf in settings if leaf.endswith(".lr") and scene.about(s).api]
    skips = [s for s, leaf in settings if leaf == "skipped"]
    moves = not rates or bool((tally.latest["max"][rates] > 0).any())
    return moves and not bool((tally.latest["max"][skips] > 0).any())


# -- micro steps ----------------------------------------------------------------------------------


def not_zeroed(scene: Scene) -> list[Finding]:
    """Say that `.grad` holds more than all that the step added, so something was there before."""
    added, held = _pairs(scene)
    if not len(added):
        return []
    one, whole, count = _micro(scene, added, held)
    excess = np.divide(whole, one * np.sqrt(count), out=np.zeros_like(whole), where=one > 0)
    limit = scene.limits.not_zeroed
    found = held[scene.lasts(held, excess > limit)]
    if not len(found):
        return []
    site = int(scene.by_execution(found)[0])
    row = int(np.flatnonzero(held == site)[0])
    now = float(excess[row][scene.seen[site]][-1])
    return [
        scene.finding(
            "warning",
            "not_zeroed",
            site,
            f"Gradients add up over steps: {scene.place(site)} holds {number(now)} times what the "
            "step can have added",
            detail=[scene.same_in(len(found) - 1, "other parameter")],
            step=scene.since(site, excess[row] > limit),
            value=now,
            threshold=limit,
            others=found[found != site],
        )
    ]


def gradient_noise(scene: Scene) -> list[Finding]:
    """Note that the gradients of the micro steps of a step have little in common."""
    added, held = _pairs(scene)
    if not len(added):
        return []
    one, whole, count = _micro(scene, added, held)
    several = (count > 1) & np.isfinite(one) & np.isfinite(whole)
    steps = np.flatnonzero(several.any(axis=0))
    if len(steps) < scene.limits.lasting:
        return []
    noise = signal = 0.0
    for step in steps:
        here = several[:, step]
        m = float(count[here, step].max())
        mean_square = float((one[here, step] ** 2).sum()) / m
        square_mean = float((whole[here, step] ** 2).sum()) / m**2
        variance = (mean_square - square_mean) * m / (m - 1)
        noise, signal = noise + variance, signal + mean_square - variance
    scale = noise / signal if signal > 0 else np.inf
    if scale < scene.limits.noise_scale:
        return []
    site = int(scene.by_execution(held)[0])
    times = "beyond measure" if np.isinf(scale) else f"{number(scale)} times the signal"
    return [
        scene.finding(
            "note",
            "gradient_noise",
            site,
            f"The gradients of the micro steps have little in common: noise is {times}",
            detail=[
                (
                    f"simple noise scale in micro batches, over {plural(len(steps), 'step')} and "
                    f"{plural(len(held), 'parameter')}"
                )
            ],
            step=int(scene.tally.window.steps[steps[0]]),
            value=scale,
            threshold=scene.limits.noise_scale,
        )
    ]


def _pairs(scene: Scene) -> tuple[Sites, Sites]:
    """Return the gradients that were added, and for each what `.grad` held then.

    None in distributed runs: there `.grad` is the mean over ranks of what each of them added.
    """
    tally = scene.tally
    if max(tally.ranks, default=ABSENT) >= 0 or (scene.info and scene.info.rank is not None):
        return np.empty(0, np.intp), np.empty(0, np.intp)
    sites = scene.of_role("param_grad", direction=BACKWARD)
    holds = sites[tally.held[sites]]
    place = np.full(len(tally.parameters), -1)
    place[tally.parameter[sites[~tally.held[sites]]]] = sites[~tally.held[sites]]
    added = place[tally.parameter[holds]]
    return added[added >= 0], holds[added >= 0]


def _micro(scene: Scene, added: Sites, held: Sites) -> tuple[Numbers, Numbers, Numbers]:
    """Return per parameter and step: root of the sum of |added|^2, |held| at the end, how many."""
    window, numel = scene.tally.window, scene.tally.latest["numel"][added][:, None]
    return scene.sizes[added], window["last"][held], window["counted"][added] / numel
