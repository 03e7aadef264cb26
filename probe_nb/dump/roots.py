"""A dump has what is inside of the model that was passed, and not that model."""

from __future__ import annotations

from typing import Final

from probe_nb.errors import notify
from probe_nb.store.columns import Columns
from probe_nb.terms import RunInfo

_SINGLE: Final = (
    "the dump has no entry: it names what is inside of a model, and this model is a single module. "
    "`torch.nn.Sequential(model)` has it inside"
)


def tell_of_single(columns: Columns, info: RunInfo) -> None:
    """Say once that a run has records of its model itself alone, if it has."""
    sites = [s for s in columns.tables.sites.values if s.direction != "optimizer"]
    has_names = any(site.module or site.api or info.wrapped.get(site.model) for site in sites)
    if not sites or has_names or _SINGLE in info.notices:
        return
    info.notices.append(_SINGLE)
    notify(_SINGLE)
