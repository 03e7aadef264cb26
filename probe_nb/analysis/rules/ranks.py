"""Parameters that are not the same on all ranks any more."""

from __future__ import annotations

from probe_nb.analysis.finding import Finding
from probe_nb.analysis.ranks.all import drift as parted
from probe_nb.analysis.ranks.statement import Statement
from probe_nb.analysis.rules.scene import Scene


def drift(scene: Scene) -> list[Finding]:
    """Say where ranks parted whose parameters were the same before.

    Where they differ from the start each may have a part of the model, on purpose.
    """
    if sum(rank >= 0 for rank in scene.tally.ranks) < 2:  # noqa: PLR2004 - two ranks at least
        return []
    said: list[Statement] = scene.latest(
        "drift", scene.rows, lambda: parted(scene.tally.columns, ignore=())
    )
    return [
        scene.finding(
            "error",
            "drift",
            scene.tally.columns.tables.sites.code(each.at),
            each.sentence,
            detail=[each.detail],
            step=each.step,
            value=each.value,
            row=each.rows[0],
            rows=each.rows,
            advice=each.advice,
        )
        for each in said
        if each.kind == "drift" and each.severity == "error" and each.at is not None
    ]
