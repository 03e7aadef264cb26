"""What ran inside what, and where it was called: `construct.json` and `stack.json`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from probe_nb.dump.keys import Key, spell
from probe_nb.dump.writer_entries import Entry, Owner, Place, Where
from probe_nb.store.calls import Callee, Calls, Stack
from probe_nb.store.table import ABSENT

Named = Callable[[Callee, int], Key]
Parents = dict[Key, Key | None]
Ends = dict[Owner, list[tuple[Place, Key]]]


def of_table(
    calls: Calls, step: int, rank: int, named: Named
) -> tuple[Parents, list[tuple[Key, Stack]]]:
    """Return the parents and stacks of the calls that were written down when they began.

    A model that is in nothing is left out: what ran in it ran in nothing.
    """
    parents: Parents = {}
    stacks: list[tuple[Key, Stack]] = []
    rows = calls.columns()
    known: dict[int, Key | None] = {ABSENT: None}
    for place in ((rows["step"] == step) & (rows["rank"] == rank)).nonzero()[0].tolist():
        row = rows[place]
        callee = calls.callees.values[row["site"]]
        parent = known.get(int(row["parent"]))
        key = named(callee, int(row["call"]))
        if not key.name:
            known[place] = parent
            continue
        known[place] = key
        parents[key] = parent
        if row["stack"] != ABSENT:
            stacks.append((key, calls.stacks.values[row["stack"]]))
    return parents, stacks


def of_paths(entries: Iterable[Entry]) -> Parents:
    """Take parents from the paths of modules: the call of the module around that ended next."""
    forward = [e for e in entries if e.key.direction == "forward" and e.key.kind == "module"]
    ends: Ends = {}
    for entry in sorted(forward, key=lambda each: each.place):
        ends.setdefault(entry.where[:2], []).append((entry.place, entry.key))
    return {entry.key: _next_around(entry.where, entry.place, ends) for entry in forward}


def _next_around(where: Where, place: Place, ends: Ends) -> Key | None:
    path = where[1]
    while path:
        path = path.rpartition(".")[0]
        for end, key in ends.get((where[0], path), ()):
            if end > place:
                return key
    return None


def construct(forward: Parents, entries: Iterable[Key]) -> dict[str, str | None]:
    """Return the parent of each call; a backward is in that of what its forward was in."""
    there = [*entries]
    backwards = {key for key in there if key.direction == "backward"}
    made = {spell(key): None if up is None else spell(up) for key, up in forward.items()}
    for key in there:
        if key.kind == "parameters_grad":
            continue
        if key.direction == "forward":
            made.setdefault(spell(key), None)
            continue
        up = forward.get(replace(key, direction="forward"))
        while up is not None and replace(up, direction="backward") not in backwards:
            up = forward.get(up)
        made[spell(key)] = None if up is None else spell(replace(up, direction="backward"))
    return made


def stack_file(stacks: Iterable[tuple[Key, Stack]]) -> dict[str, Any]:
    """Return the calls of each stack, the stacks in the order in which they came."""
    grouped: dict[Stack, list[str]] = {}
    for key, stack in stacks:
        grouped.setdefault(stack, []).append(spell(key))
    return {
        str(number): [names, [_line(*frame) for frame in stack]]
        for number, (stack, names) in enumerate(grouped.items())
    }


def _line(file: str, line: int, function: str, source: str) -> str:
    return f"File {file}, line {line}, in {function}, \n {source}"
