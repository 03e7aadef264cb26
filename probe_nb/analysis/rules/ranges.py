"""The range of the dtype in use: values at its end, near its end, and below its normal numbers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis import evidence
from probe_nb.analysis.alarms import LIMITS
from probe_nb.analysis.finding import Finding
from probe_nb.analysis.rules.scene import BACKWARD, Scene
from probe_nb.analysis.words import number

_NARROW: Final = ("float16", "float8_e5m2", "float8_e4m3fn")
"""Types whose smallest normal number is within reach of gradients (float16: 6e-5)."""


def clipped(scene: Scene) -> list[Finding]:
    """Say that values are stuck at the largest number of their dtype."""
    return _at_end(scene, "saturated", "clipped")


def overflow_risk(scene: Scene) -> list[Finding]:
    """Say that values are two doublings or less from infinity."""
    return _at_end(scene, "risk", "overflow_risk")


def _at_end(scene: Scene, alarm: str, kind: str) -> list[Finding]:
    firsts = scene.tally.firsts[alarm]
    first = firsts.overall
    if first is None:
        return []
    record = scene.once(first, lambda: evidence.record(scene.tally, first.row))
    limit = LIMITS.get(record.dtype, (0, 0, record.absmax))[2]
    others = [site for site in np.flatnonzero(firsts.step >= 0).tolist() if site != first.site]
    sentence, detail, value, threshold = _words(scene, kind, record, limit)
    where = f"at step {first.step} in {scene.place(first.site)}"
    return [
        scene.finding(
            "warning",
            kind,
            first.site,
            f"{sentence} {where}",
            detail=[detail, scene.same_in(len(others))],
            step=first.step,
            value=value,
            threshold=threshold,
            row=first.row,
            others=others,
        )
    ]


def _words(scene: Scene, kind: str, record: Any, limit: float) -> tuple[str, str, float, float]:
    if kind == "clipped":
        detail = (
            f"{record.at_max_count:,} of {record.numel:,} elements are {number(limit)} in "
            "magnitude: what was larger has been clipped"
        )
        sentence = f"Values stuck at the largest {record.dtype} number"
        return sentence, detail, record.at_max_count / max(record.numel, 1), 0.0
    headroom, share = scene.limits.overflow_headroom, record.absmax / limit
    detail = (
        f"largest |value| {number(record.absmax)}, {share:.0%} of {number(limit)} "
        f"(alarm from {headroom:.0%})"
    )
    return f"Values close to the end of the {record.dtype} range", detail, share, headroom


def underflow(scene: Scene) -> list[Finding]:
    """Say that gradients fall below the normal numbers of their dtype, step after step."""
    if (lost := all_lost(scene)) is not None:
        return [_all_lost(scene, lost)]
    tally, limit = scene.tally, scene.limits.underflow_share
    judged = (tally.direction == BACKWARD) & _narrow(scene)
    sites = np.flatnonzero(judged & (tally.latest["subnormal_count"] > 0))
    if not len(sites):
        return []
    share = tally.window.small_share(sites)
    holds = share > limit
    found = np.flatnonzero(scene.lasts(sites, holds))
    if not len(found):
        return []
    worst = scene.by_execution(sites[found])
    site = int(worst[0])
    row = int(np.flatnonzero(sites == site)[0])
    now = float(share[row][scene.seen[site]][-1])
    return [
        scene.finding(
            "warning",
            "underflow",
            site,
            f"Gradients fall below the normal range of {scene.dtype(site)} in {scene.place(site)}",
            detail=[
                (
                    f"{now:.0%} of the elements that are not zero are subnormal and lose bits "
                    f"(alarm from {limit:.0%} in {scene.limits.lasting} steps)"
                ),
                scene.same_in(len(worst) - 1),
            ],
            step=scene.since(site, holds[row]),
            value=now,
            threshold=limit,
            others=worst[1:],
        )
    ]


def _narrow(scene: Scene) -> NDArray[np.bool_]:
    """Tell of each site whether the smallest numbers of its dtype are within reach."""
    dtypes = scene.tally.columns.tables.dtypes.values
    narrow = [code for code, name in enumerate(dtypes) if name in _NARROW]
    return np.isin(scene.tally.latest["dtype"], narrow)


def all_lost(scene: Scene) -> int | None:
    """Return where the gradient of the loss arrives, if it is narrow and never was but zero.

    A loss that is satisfied (hinge) sends zeros too, but not from the first step on.
    """
    tally, arrived = scene.tally, scene.from_the_loss
    arrived = arrived[_narrow(scene)[arrived]]
    zero = (tally.window.zeros[arrived] == 1) | ~scene.seen[arrived]
    never = (tally.begin["square"][arrived] == 0) & (tally.begin["finite"][arrived] > 0)
    found = arrived[scene.lasts(arrived, zero) & zero.all(axis=1) & never]
    if not len(found):
        return None
    return scene.root_of(int(found[0]), int(tally.latest["step"][found[0]]))


def _all_lost(scene: Scene, site: int) -> Finding:
    return scene.finding(
        "warning",
        "underflow",
        site,
        f"All gradients are lost in {scene.dtype(site)}: nothing but zeros arrive at "
        f"{scene.place(site)}",
        detail=[
            "in every step from the first on: what the loss sends is below the smallest number"
        ],
        step=int(scene.tally.begin["step"][site]),
        value=1.0,
        threshold=scene.limits.underflow_share,
        others=np.flatnonzero((scene.tally.direction == BACKWARD) & _narrow(scene)),
    )
