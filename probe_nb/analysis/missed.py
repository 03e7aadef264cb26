"""Modules that were watched and left no record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from probe_nb.analysis.tally import Tally
    from probe_nb.terms import RunInfo

_CONTAINERS: Final = frozenset({"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"})
"""Nobody can call these: that they were not called is no finding."""


def missed(info: RunInfo) -> list[dict[str, str]]:
    """Return the modules without a record that could have had one."""
    return [each for each in info.unobserved if each.get("type") not in _CONTAINERS]


def missed_of(tally: Tally, info: RunInfo) -> str:
    """Write how many modules were not observed, of how many; empty if none.

    A module that was not called may have records all the same, of its parameters.
    """
    several, here = len(missed(info)), watched(tally, info)
    if not several:
        return ""
    be = "was" if several == 1 else "were"
    return f"{several:,} of {here:,} module{'' if here == 1 else 's'} {be} not observed"


def watched(tally: Tally, info: RunInfo) -> int:
    """Return the number of modules with a record, or that could have had one."""
    only = next(iter(info.models), "")
    names = {(each.get("model", only), each.get("module", "")) for each in missed(info)}
    return len(names.union(tally.modules))
