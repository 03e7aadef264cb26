"""Why a run has nothing to judge: no record, or none with a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.missed import missed
from probe_nb.analysis.words import plural
from probe_nb.errors import FAULT
from probe_nb.grammar import steps_in
from probe_nb.reasons import AGAIN, LEFT_OUT, REMEDIES
from probe_nb.terms import MODULE_ROLES, STATUSES

if TYPE_CHECKING:
    from probe_nb.terms import RunInfo

_MEASURED: Final = frozenset({"ok", "no_finite", "has_nan", "has_inf"})
_WRITTEN: Final = 3
"""So many reasons are written out, the most frequent ones."""
_ASKED: Final = {
    "token_range": "tokens {}",
    "steps": "steps {}",
    "select": "modules like {}",
    "scope": "calls from {}",
    "names": "calls whose name has {}",
    "when": "calls in `{}` mode",
    "apis": "functions of {}",
    "one_way": "rows of the {}",
    "roles": "roles {}",
}
_TO: Final = ("token_range", "scope")


def unmeasured(statuses: NDArray[np.int64]) -> str:
    """Say of how many records of each status what to know of them; "" if a number is there."""
    found = {STATUSES[code]: int(statuses[code]) for code in np.flatnonzero(statuses)}
    if not _MEASURED.isdisjoint(found):
        return ""
    return _listed(Counter(found), "record")


def unrecorded(info: RunInfo) -> str:
    """Say why there is no record."""
    if "dump" in info.config:
        return "there is no record of a tensor in the dump"
    if info.config.get("level") == "debug":
        return (
            'at `level="debug"` only what `probe.save` is given is recorded, and no tensor was; '
            "what is no tensor is in run.values()"
        )
    if left_out := _other_rank(info):
        return left_out
    if any(each.get("reason") == AGAIN for each in info.unobserved):
        return "the same model was watched again before a forward of it ran: see the later run"
    parts = list(_asked(info.config))
    if out := sum(each.get("reason") == LEFT_OUT for each in info.unobserved):
        were = "was" if out == 1 else "were"
        parts.append(f"{plural(out, 'module')} {were} called and left out by it")
    if why := _listed(Counter(each.get("reason", "") for each in missed(info)), "module"):
        parts.append(why)
    return "; ".join(parts) or _NOTHING_RAN.get(info.config.get("level", ""), _NO_FORWARD)


def lost(info: RunInfo | None) -> str:
    """Return the first notice of an error of probe_nb, "" if there was none."""
    notices = info.notices if info is not None else []
    return next((text for text in notices if FAULT in text), "")


def absent(info: RunInfo | None) -> str:
    """Say which ranks of a job are not there, "" if all are or nobody knows."""
    here = {int(rank) for rank in info.processes} if info is not None else set()
    missing = sorted(set(range((info.world if info is not None else None) or 0)) - here)
    if not here or not missing:
        return ""
    first = ", ".join(map(str, missing[:_WRITTEN]))
    more = f" and {len(missing) - _WRITTEN} more" if len(missing) > _WRITTEN else ""
    return f"Rank{'s' * (len(missing) > 1)} {first}{more} {'are' if missing[1:] else 'is'} missing"


def awaited(info: RunInfo) -> str:
    """Say what an open run without a record waits for."""
    if info.config.get("level") == "debug":
        return "a tensor that `save` is given"
    forward = f"a forward of {', '.join(info.models) or 'the model'}"
    steps = info.config.get("steps")
    return f"{forward}; only {_ASKED['steps'].format(steps)} were asked for" if steps else forward


_NO_FORWARD: Final = "no forward of the model ran inside the watch"
_NOTHING_RAN: Final = {
    "api": "no function of torch that can be recorded was called inside the watch",
}


def _other_rank(info: RunInfo) -> str:
    """Say that nothing was to be recorded in this process, "" if something was."""
    ranks, rank = info.config.get("ranks"), info.rank or 0
    if not ranks or steps_in(ranks, "ranks")[1](rank):
        return ""
    return f"only ranks {ranks} were asked for, and this process is rank {rank}"


def _asked(config: dict[str, Any]) -> Iterator[str]:
    """Yield what alone was asked for."""
    for option, words in _ASKED.items():
        asked = config.get(option)
        if not asked or (option == "roles" and _is_every_role(config)):
            continue
        between = " to " if option in _TO else ", "
        said = asked if isinstance(asked, str) else between.join(map(str, asked))
        yield f"only {words.format(said)} were asked for"


def _is_every_role(config: dict[str, Any]) -> bool:
    return bool(config.get("one_way")) or set(config["roles"]) >= set(MODULE_ROLES)


def _listed(reasons: Counter[str], noun: str) -> str:
    """Write the most frequent reasons, and what to do about the first that has a remedy."""
    listed = [(reason, n) for reason, n in reasons.most_common(_WRITTEN) if reason]
    text = "; ".join(f"{plural(n, noun)}: {reason}" for reason, n in listed)
    remedy = next((REMEDIES[reason] for reason, _ in listed if reason in REMEDIES), "")
    return f"{text}. {remedy}" if remedy else text
