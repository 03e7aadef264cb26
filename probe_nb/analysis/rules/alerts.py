"""Findings of the user's own rules."""

from __future__ import annotations

from probe_nb.analysis.alert_rules import Alerts
from probe_nb.analysis.finding import Finding
from probe_nb.analysis.rules.scene import Scene
from probe_nb.analysis.words import plural


def alerts(scene: Scene) -> list[Finding]:
    """Return one finding for each rule that a record has passed."""
    rules = scene.info.config.get("alerts") if scene.info is not None else None
    if not rules:
        return []
    asked = scene.once("alerts", lambda: Alerts(rules))
    found = []
    for name, passed in asked.read(scene.tally.columns).items():
        if passed.first is None:
            continue
        step, _, row, site = passed.first
        found.append(
            scene.finding(
                "warning",
                "alert",
                site,
                f"Alert `{name}` at step {step} in {scene.place(site)}",
                detail=[
                    (
                        f"{plural(passed.count, 'record')} in {plural(len(passed.sites), 'site')}: "
                        f"{asked.rules[name]}"
                    )
                ],
                step=step,
                value=passed.count,
                row=row,
                rows=passed.rows,
                others=sorted(passed.sites - {site}),
            )
        )
    return found
