"""Many processes -> one run.

Rows of different processes have no order in time of their own. Those of one process keep theirs;
those of several are laid side by side step by step, and within a step the nth row of each beside
the nth of the others. `order` is numbered anew along this line, so that what came before what can
be asked of all rows alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probe_nb.errors import ConfigError, RunFormatError
from probe_nb.progress import along
from probe_nb.store.about_many import joined_info
from probe_nb.store.blocks import ALL, join, pick
from probe_nb.store.calls import Calls
from probe_nb.store.columns import Columns
from probe_nb.store.keeping import Tensors
from probe_nb.store.kept import Kept
from probe_nb.store.parts import Parts
from probe_nb.store.table import ABSENT, Arrays, Tables
from probe_nb.store.values import Values

_BLOCK: Final = 65_536
_CODES: Final = ("site", "dtype", "shape", "device", "checksum")
_HIGHEST: Final = 2**15 - 1


class Member(NamedTuple):
    """What one process recorded.

    Attributes:
        parts: Its run.
        rank: The rank of rows that have none; None where all have one.
        where: Where it was read, for messages.
    """

    parts: Parts
    rank: int | None
    where: str

    @property
    def ranks(self) -> list[int]:
        """The ranks of which it has rows, or would have; none where nobody knows."""
        found: set[int] = set()
        for _, block in self.parts.columns.chunks(names=("rank",)):
            found.update(np.unique(block["rank"]).tolist())
        if found <= {ABSENT}:
            own = self.parts.info.rank if self.rank is None else self.rank
            return [] if own is None else [own]
        return [] if ABSENT in found else sorted(found)


def merge(members: Sequence[Member], budget: int | None = None) -> Parts:
    """Lay the runs of several processes together.

    Args:
        members: At least one; no two of the same rank.
        budget: Bytes that the records may take in memory.

    Raises:
        RunFormatError: Two are of the same rank, one says of none, or they are of jobs of
            different sizes.
    """
    ranks = [each.ranks for each in members]
    _check(members, ranks)
    info = joined_info([(each.parts.info, of) for each, of in zip(members, ranks, strict=True)])
    columns = Columns(budget=budget, notices=info.notices)
    lines = [Line(each.parts.columns, of) for each, of in zip(members, ranks, strict=True)]
    orders = _lay(lines, columns)
    calls = Calls(_sum(each.parts.calls.budget for each in members), info.notices)
    values = Values(_sum(each.parts.values.budget for each in members), info.notices)
    for each, of, line, order in zip(members, ranks, lines, orders, strict=True):
        calls.take(each.parts.calls, rank=of[0])
        values.take(each.parts.values, rank=of[0], orders=(line.orders, order))
    places = [(each.parts.tensors, of[0]) for each, of in zip(members, ranks, strict=True)]
    return Parts(info, columns, Tensors(source=Beside(places)), calls, values)


def _sum(budgets: Iterable[int | None]) -> int | None:
    """Return what tables may take together; no bound where one of them has none."""
    found = list(budgets)
    return None if None in found else sum(each or 0 for each in found)


def _check(members: Sequence[Member], ranks: Sequence[list[int]]) -> None:
    seen: dict[int, str] = {}
    worlds: dict[int, str] = {}
    for each, of in zip(members, ranks, strict=True):
        if not of:
            raise RunFormatError(
                f"{each.where} does not say of which rank it is. Name the file after it, as "
                "`rank0.parquet`."
            )
        for rank in of:
            if rank > _HIGHEST:
                raise ConfigError(f"{each.where} is of rank {rank}; {_HIGHEST} is the highest.")
            if rank in seen:
                raise RunFormatError(
                    f"{seen[rank]} and {each.where} are both of rank {rank}. Leave one out: no "
                    "row of a rank may be there twice."
                )
            seen[rank] = each.where
        world = each.parts.info.world
        if world is not None:
            worlds.setdefault(world, each.where)
    if len(worlds) > 1:
        said = ", ".join(f"{where} is one of {world}" for world, where in sorted(worlds.items()))
        raise RunFormatError(
            f"These are no processes of one job: {said}. Leave out what an earlier job wrote."
        )


class Line:
    """The rows of one process in the order in which they were recorded.

    Attributes:
        columns: Where they are.
        rows: Their numbers there, in order.
        orders: What `order` is there.
        steps: The step that was going on: a gradient may belong to an earlier one.
        places: How many rows of the process came before it in that step.
        rank: What rows without a rank get.
    """

    def __init__(self, columns: Columns, ranks: Sequence[int]) -> None:
        """Put them in order."""
        self.columns, self.rank = columns, ranks[0]
        found = columns.tail(0, ("step", "order"))
        self.rows: NDArray[np.intp] = np.argsort(found["order"], kind="stable")
        self.orders = found["order"][self.rows]
        self.steps = np.maximum.accumulate(found["step"][self.rows])
        begins = np.flatnonzero(np.diff(self.steps, prepend=-1))
        lengths = np.diff(np.append(begins, len(self.steps)))
        self.places = np.arange(len(self.steps)) - np.repeat(begins, lengths)


def _lay(lines: Sequence[Line], into: Columns) -> list[NDArray[np.int64]]:
    """Lay the rows of all together; return the new `order` of each, line by line."""
    which = np.concatenate([np.full(len(e.rows), n, np.int32) for n, e in enumerate(lines)])
    keys = [np.concatenate([getattr(each, name) for each in lines]) for name in ("places", "steps")]
    by = np.lexsort((which, *keys))
    which = which[by]
    codes = [_codes(each.columns.tables, into.tables) for each in lines]
    orders = [np.flatnonzero(which == number) for number in range(len(lines))]
    starts = range(0, len(by), _BLOCK)
    for start in along(starts, "Merging ranks", len(starts)):
        end = min(start + _BLOCK, len(by))
        found, places = [], []
        for line, code, order in zip(lines, codes, orders, strict=True):
            low, high = np.searchsorted(order, (start, end))
            if low < high:
                rows = line.rows[low:high]
                rising = np.argsort(rows)
                found.append(_taken(line, rows[rising], code))
                places.append(order[low:high][rising])
        whole = pick(join(found), np.argsort(np.concatenate(places)))
        whole["order"] = np.arange(start, end, dtype=np.int64)
        into.append({name: whole[name] for name in ALL})
    return orders


def _taken(line: Line, rows: NDArray[np.intp], codes: Arrays) -> Arrays:
    """Return rows of one process as they are in the common run."""
    block = line.columns.take(rows, ALL)
    block |= {name: codes[name][block[name]] for name in _CODES}
    block["rank"] = np.where(block["rank"] < 0, line.rank, block["rank"]).astype(np.int16)
    return block


def _codes(theirs: Tables, ours: Tables) -> Arrays:
    """Return, of each column of codes, which code of ours each of theirs is."""
    found: Arrays = {}
    for name in _CODES:
        table: Any = getattr(ours, f"{name}s")
        values: Any = getattr(theirs, f"{name}s").values
        dtype = np.int16 if name in ("dtype", "device") else np.int32
        found[name] = np.array([*map(table.code, values), ABSENT], dtype)
    return found


class Beside:
    """The kept tensors of several processes, each where it is."""

    folder: Final = False
    mark: Final = ""

    def __init__(self, members: Sequence[tuple[Tensors, int]]) -> None:
        """Look into these when somebody asks; the number is the rank of those that have none."""
        self._members = members

    @property
    def path(self) -> Path:
        """Nothing: each is somewhere else."""
        return Path()

    def read(self) -> list[Kept]:
        """Return what is known of them.

        Raises:
            FileNotFoundError: Those of a process are gone.
            RunFormatError: They are damaged.
        """
        return [
            replace(each, rank=rank if each.rank < 0 else each.rank)
            for tensors, rank in self._members
            for each in tensors.known()
        ]
