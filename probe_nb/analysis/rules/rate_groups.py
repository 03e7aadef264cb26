"""Groups of an optimizer whose learning rates are far apart, and whose updates are, too."""

from __future__ import annotations

from itertools import takewhile
from typing import Final, NamedTuple

import numpy as np

from probe_nb.analysis.finding import Finding
from probe_nb.analysis.rules.moves import Moves
from probe_nb.analysis.rules.owned import Owned
from probe_nb.analysis.rules.scene import OPTIMIZER, Scene
from probe_nb.analysis.words import number, plural, steps_of

_ROUNDING: Final = 1e-6
"""0.03 is 30 times 0.001, whatever the last bits of the three say."""


class _Group(NamedTuple):
    """The weights of a group.

    Attributes:
        rate: Its learning rate.
        moved: |update| / |weight|, the median over weights and steps.
        sites: Its weights, the one that moves farthest first.
    """

    rate: float
    moved: float
    sites: list[int]


def rates_apart(scene: Scene) -> list[Finding]:
    """Note that one group learns far faster than every other of its optimizer.

    It is often meant so, as a new head beside a trained backbone is: so it is a note at most.
    """
    owned = Owned.of(scene)
    judged = np.flatnonzero(owned.matrix & owned.trained)
    if len({owned.group[row] for row in judged.tolist()}) < 2:  # noqa: PLR2004 - two to differ
        return []
    tally = scene.tally
    parts = (
        (tally.opening.steps, tally.opening.of(tally.sites)),
        (tally.window.steps, scene.sizes),
    )
    for steps, sizes in parts:  # they are farthest apart before the slow ones have learnt of it
        moves = Moves.of(scene, owned, judged, steps, sizes)
        found = [_apart(scene, moves, groups) for groups in _groups(owned, moves).values()]
        if any(found):
            return [finding for finding in found if finding is not None]
    return []


def _groups(owned: Owned, moves: Moves) -> dict[str, list[_Group]]:
    """Return the groups of each optimizer whose rates are known."""
    rows: dict[tuple[str, str], list[int]] = {}
    for row, place in enumerate(moves.rows.tolist()):
        if moves.rates[row] is not None:
            rows.setdefault(owned.group[place], []).append(row)
    found: dict[str, list[_Group]] = {}
    for (optimizer, _), mine in rows.items():
        middle = moves.middle[mine]
        first = moves.rates[mine[0]]
        sites = owned.site[moves.rows[mine]][np.argsort(-middle, kind="stable")].tolist()
        assert first is not None  # noqa: S101 - asked above
        found.setdefault(optimizer, []).append(_Group(first.rate, float(np.median(middle)), sites))
    return found


def _apart(scene: Scene, moves: Moves, groups: list[_Group]) -> Finding | None:
    """Judge the fastest group of an optimizer beside the others."""
    first, *others = sorted(groups, key=lambda each: -each.rate)
    rates = {each.rate for each in others}
    limits, rate = scene.limits, max(rates, default=0.0)
    moved = max((each.moved for each in others), default=0.0)
    apart = rate > 0 and first.rate >= limits.rates_apart * rate * (1 - _ROUNDING)
    if not (apart and first.moved >= limits.moves_apart * moved):
        return None
    tally, site, times = scene.tally, first.sites[0], first.rate / rate
    name = _name(scene, first.sites, [site for each in others for site in each.sites])
    rest = f"others at {'' if len(rates) == 1 else 'most '}{number(rate)}"
    updates = scene.of_role("update", direction=OPTIMIZER)
    return scene.finding(
        "note",
        "rates_apart",
        site,
        f"The learning rates of the groups differ {number(times)} times ({name} at "
        f"{number(first.rate)}, {rest}), and so do their updates",
        detail=[
            (
                f"|update| / |weight| is {number(first.moved)} there and at most {number(moved)} "
                f"in the others, each in the median of {steps_of(len(moves.steps))} (note from "
                f"{number(limits.rates_apart)} times the rate and {number(limits.moves_apart)} "
                "times the update)"
            )
        ],
        step=int(moves.steps[0]),
        value=times,
        threshold=limits.rates_apart,
        rows=tally.latest["row"][updates[tally.parameter[updates] == tally.parameter[site]]],
        others=first.sites[1:],
    )


def _name(scene: Scene, sites: list[int], others: list[int]) -> str:
    """Return the module that holds a group and nothing else; else one of it, and of how many."""
    names = list(dict.fromkeys(scene.name(site) for site in sites))
    levels = zip(*(name.split(".") for name in names), strict=False)
    common = ".".join(level[0] for level in takewhile(lambda level: len({*level}) == 1, levels))
    if common and not any(f"{scene.name(site)}.".startswith(f"{common}.") for site in others):
        return common
    more = f" and {plural(len(names) - 1, 'other module')}" if len(names) > 1 else ""
    return f"{names[0]}{more}"
