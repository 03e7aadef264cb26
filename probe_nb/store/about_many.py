"""What several processes say about themselves -> what one run says."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Final

from probe_nb.terms import RunInfo

_FINE: Final = "finished"
_APART: Final = dt.timedelta(minutes=30)
_LISTED: Final = 8
OF_PROCESS: Final = ("name", "created", "ended", "steps", "devices", "versions")
"""What is remembered of each process, in `RunInfo.processes`."""

_Said = Sequence[tuple[RunInfo, Sequence[int]]]


def joined_info(said: _Said) -> RunInfo:
    """Join what runs say; what differs between them is written into the notices.

    `said` has of each run the ranks that are in it.
    """
    infos = [info for info, _ in said]
    first = infos[0]
    ranks = sorted(rank for _, of in said for rank in of)
    made = RunInfo(
        name=first.name,
        created=min(info.created for info in infos),
        models={name: kind for info in infos for name, kind in info.models.items()},
        modules=max(info.modules for info in infos),
        config=deepcopy(first.config),
        versions=dict(first.versions),
        devices=list(dict.fromkeys(each for info in infos for each in info.devices)),
        rank=ranks[0] if len(ranks) == 1 else None,
        ended=next((info.ended for info in infos if info.ended != _FINE), first.ended),
        steps=max(info.steps for info in infos),
        notices=[*_missing(infos, ranks), *_differences(said), *_notices(said)],
        unobserved=_once([each for info in infos for each in info.unobserved]),
        shared={name: of for info in infos for name, of in info.shared.items()},
        wrapped={name: said for info in infos for name, said in info.wrapped.items()},
        unnamed_scaler=any(info.unnamed_scaler for info in infos),
        tree=_once([each for info in infos for each in info.tree]),
        world=next((info.world for info in infos if info.world is not None), None),
        processes=_processes(said),
    )
    for info in infos:
        for model, groups in info.moved.items():
            made.moved.setdefault(model, {}).update(groups)
    return made


def _processes(said: _Said) -> dict[str, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for info, ranks in said:
        own = {name: deepcopy(getattr(info, name)) for name in OF_PROCESS}
        for rank in ranks:
            found[rank] = info.processes.get(str(rank), own)
    return {str(rank): found[rank] for rank in sorted(found)}


def _once(values: list[Any]) -> list[Any]:
    found: list[Any] = []
    known: set[str] = set()
    for value in values:
        if (key := repr(value)) not in known:
            known.add(key)
            found.append(value)
    return found


def _missing(infos: Sequence[RunInfo], ranks: Sequence[int]) -> list[str]:
    """Say which processes of the job are not there, as far as the others know of them."""
    world = max((info.world for info in infos if info.world is not None), default=0)
    missing = sorted(set(range(world)) - set(ranks))
    if not missing:
        return []
    verb = "is" if len(missing) == 1 else "are"
    return [f"Of {world} processes {len(ranks)} are here; {of_ranks(missing)} {verb} missing."]


def _differences(said: _Said) -> list[str]:
    """Say in what the runs differ and should not."""
    found = []
    versions = dict.fromkeys(name for info, _ in said for name in info.versions)
    told: list[tuple[str, Any]] = [
        ("the name", lambda info: info.name),
        ("how the watch ended", lambda info: info.ended),
        ("the number of steps", lambda info: info.steps),
        *((f"the version of {n}", lambda info, n=n: info.versions.get(n)) for n in versions),
    ]
    options = dict.fromkeys(name for info, _ in said for name in info.config)
    told += [(f"`{n}=`", lambda info, n=n: info.config.get(n)) for n in options if n != "name"]
    for what, of in told:
        groups: dict[str, tuple[Any, list[int]]] = {}
        for info, ranks in said:
            value = of(info)
            groups.setdefault(repr(value), (value, []))[1].extend(ranks)
        if len(groups) > 1:
            parts = [f"{value} on {of_ranks(ranks)}" for value, ranks in groups.values()]
            found.append(f"Ranks differ in {what}: {', '.join(parts[:_LISTED])}.")
    if (apart := _apart([info for info, _ in said])) > _APART:
        hours = apart.total_seconds() / 3600
        found.append(f"The runs were begun {hours:.1f} hours apart: are they of one job?")
    return found


def _apart(infos: Sequence[RunInfo]) -> dt.timedelta:
    try:
        times = [dt.datetime.fromisoformat(info.created).timestamp() for info in infos]
    except (OSError, OverflowError, ValueError):
        return dt.timedelta(0)
    return dt.timedelta(seconds=max(times) - min(times))


def _notices(said: _Said) -> list[str]:
    """Return what the runs had to say; of which ranks it is true where not of all."""
    found: dict[str, list[int]] = {}
    for info, ranks in said:
        for text in info.notices:
            found.setdefault(text, []).extend(ranks)
    every = sum(len(ranks) for _, ranks in said)
    return [
        text if len(ranks) == every or every == 1 else f"{of_ranks(ranks, begin=True)}: {text}"
        for text, ranks in found.items()
    ]


def of_ranks(ranks: Sequence[int], *, begin: bool = False) -> str:
    """Write ranks as a person does.

    >>> of_ranks([3]), of_ranks([0, 1, 2]), of_ranks([0, 2], begin=True)
    ('rank 3', 'ranks 0 to 2', 'Ranks 0 and 2')
    """
    known = sorted(set(ranks))
    word = "rank" if len(known) == 1 else "ranks"
    word = word.capitalize() if begin else word
    run = len(known) > 2 and known == list(range(known[0], known[-1] + 1))  # noqa: PLR2004
    if run:
        return f"{word} {known[0]} to {known[-1]}"
    texts = [str(each) for each in known]
    if len(texts) > _LISTED:
        return f"{len(texts)} {word}, {texts[0]} among them"
    return f"{word} {' and '.join([', '.join(texts[:-1]), texts[-1]] if texts[1:] else texts)}"
