"""What was not seen, and why."""

from __future__ import annotations

from collections.abc import Iterable

from probe_nb.observe.select import Watched


def unobserved(watched: Iterable[Watched]) -> list[dict[str, str]]:
    """List the modules that left no row, with the reason."""
    return [
        {"model": w.model, "module": w.path, "type": w.type, "reason": _reason(w)}
        for w in watched
        if not (w.selected and w.seen)
    ]


def _reason(watched: Watched) -> str:
    if not watched.selected:
        return "not selected"
    if watched.called:
        return "called only in steps that were not asked for"
    if watched.compiled:
        return "runs as compiled code, which stays compiled; watch the model it was compiled from"
    return "never called (or called only through .forward(), or inside fused or compiled code)"
