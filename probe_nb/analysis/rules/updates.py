"""What the optimizer does to the weights."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from probe_nb.analysis.finding import Finding, Severity
from probe_nb.analysis.rules.moves import Moves
from probe_nb.analysis.rules.owned import Owned
from probe_nb.analysis.rules.scene import BACKWARD, OPTIMIZER, Scene, Sites
from probe_nb.analysis.words import number


def update_ratio(scene: Scene) -> list[Finding]:
    """Say which weights are moved too far, or hardly at all, in the median of steps in a row.

    In the last steps, and in the first ones of the run: what is far too large at first may have
    blown the weight up until the update is small beside it.
    """
    owned = Owned.of(scene)
    judged = np.flatnonzero(owned.matrix & owned.trained)
    if not len(judged):
        return []
    window, tally = scene.tally.window, scene.tally
    now = Moves.of(scene, owned, judged, window.steps, scene.sizes)
    parts = [now]
    if not np.isin(tally.opening.steps, window.steps).all():
        sizes = tally.opening.of(tally.sites)
        parts.insert(0, Moves.of(scene, owned, judged, tally.opening.steps, sizes))
    high = next((part for part in parts if part.high.any()), None)
    found = [] if high is None else [_too_large(scene, owned, high)]
    return found + ([_too_small(scene, owned, now)] if now.low.any() else [])


def _too_large(scene: Scene, owned: Owned, moves: Moves) -> Finding:
    row, step = moves.first_too_far()
    value, rate = float(moves.most[row]), moves.rates[row]
    limit, most = moves.limit(row), row == int(np.argmax(np.where(moves.high, moves.most, 0.0)))
    whole = moves.high.sum() > max(len(moves.rows) / 2, 2)
    name = scene.name(int(owned.site[moves.rows[row]]))
    of = f"{moves.high.sum()} of {len(moves.rows)} weights, {'most' if most else 'first'} of all"
    of = f"{of} {name}," if whole else name
    decay = rate is not None and rate.by_decay(value)
    what = "" if rate is None else f", {rate.words(decay=decay)}"
    more = [_beside_others(moves, row)] if rate is not None and moves.far_faster[row] else []
    return _ratio(
        scene,
        owned,
        moves.rows[moves.high],
        row=int(moves.rows[row]),
        sentence=f"Updates of {of} are too large: {_times(value)} per step{what}",
        detail=[*more, _alarm(scene, "above", limit)],
        step=step,
        value=value,
        threshold=limit,
        advice=_DECAY if decay else "",
    )


_DECAY: Final = (
    "Lower `weight_decay` of this group: it takes that part of the weight in every step."
)
_CLIPPED: Final = (
    "Raise the limit of `clip_grad_norm_` (1 to 5 is usual), or leave it out: what the optimizer "
    "is given is next to nothing."
)


def _times(value: float) -> str:
    """Write an update beside its weight: a share of it, or how many times as large."""
    return f"{number(value)} {'of' if value < 1 else 'times'} the weight"


def _beside_others(moves: Moves, row: int) -> str:
    rates = [each.rate for each in moves.rates if each is not None]
    rate = moves.rates[row]
    assert rate is not None  # noqa: S101 - asked before
    return f"its learning rate is {number(rate.rate / np.median(rates))} times the usual one"


def _too_small(scene: Scene, owned: Owned, moves: Moves) -> Finding:
    limits, row = scene.limits, int(np.argmin(np.where(moves.low, moves.middle, np.inf)))
    value, rate = float(moves.middle[row]), moves.rates[row]
    clipped = _clipped(scene, owned, moves.rows[moves.low])
    what = "" if rate is None else f", {rate.words(decay=False)}"
    if clipped:
        what = f": gradients are clipped to {number(1 / clipped)} of what they were"
    every = bool(moves.low.mean() >= limits.low_share)
    return _ratio(
        scene,
        owned,
        moves.rows[moves.low],
        severity="warning" if clipped and every else "note",
        row=int(moves.rows[row]),
        sentence=f"Updates of {scene.name(int(owned.site[moves.rows[row]]))} are too small: "
        f"{_times(value)} per step{what}",
        detail=[_alarm(scene, "below", limits.update_ratio_low)],
        step=int(moves.steps[moves.there[row]][0]),
        value=value,
        threshold=limits.update_ratio_low,
        advice=_CLIPPED if clipped else "",
    )


def _clipped(scene: Scene, owned: Owned, rows: Sites) -> float:
    """Return by how much gradients shrank between the backward and the step; 0 if by little."""
    tally, sizes = scene.tally, scene.sizes
    if tally.scaler.last >= 0:  # then they are unscaled in between
        return 0.0
    fed = scene.of_role("param_grad")
    given, taken = np.zeros((2, len(tally.parameters), sizes.shape[1]))
    way = tally.direction[fed]
    np.fmax.at(given, tally.parameter[fed[way == BACKWARD]], sizes[fed[way == BACKWARD]])
    np.fmax.at(taken, tally.parameter[fed[way == OPTIMIZER]], sizes[fed[way == OPTIMIZER]])
    numbers = tally.parameter[owned.site[rows]]
    given, taken = given[numbers], taken[numbers]
    both = (given > 0) & (taken > 0)
    factor = float(np.median(given[both] / taken[both])) if both.any() else 0.0
    return factor if factor >= scene.limits.clipped_away else 0.0


def _alarm(scene: Scene, way: str, limit: float) -> str:
    steps = scene.limits.update_steps
    return (
        f"|update| / |weight| in the median of {steps} steps in a row (alarm {way} {number(limit)})"
    )


def _ratio(
    scene: Scene,
    owned: Owned,
    rows: Sites,
    *,
    row: int,
    detail: list[str],
    severity: Severity = "warning",
    **said: Any,
) -> Finding:
    tally, site = scene.tally, int(owned.site[row])
    others = [other for other in owned.site[rows].tolist() if other != site]
    updates = scene.of_role("update", direction=OPTIMIZER)
    mine = updates[tally.parameter[updates] == tally.parameter[site]]
    return scene.finding(
        severity,
        "update_ratio",
        site,
        detail=[*detail, scene.same_in(len(others), "other weight")],
        rows=tally.latest["row"][mine],
        others=others,
        **said,
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
