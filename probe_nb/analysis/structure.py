"""The tree of modules: what each is made of, and what went through it in one call."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from probe_nb.store.columns import Columns
from probe_nb.store.table import ABSENT, Arrays
from probe_nb.terms import Made, Role, RunInfo, Site

THROUGH: Final[dict[Role, str]] = {
    "input": "inputs",
    "output": "outputs",
    "grad_output": "grad_outputs",
    "grad_input": "grad_inputs",
}
"""The roles of what goes through a call, and the columns that list them."""

_CALL: Final = ("step", "micro_step", "call", "backward")
"""What tells one call, and one backward of it."""
_READ: Final = (*_CALL, "site", "dtype", "shape", "recompute")

Place = tuple[str, str]
"""Model and module path."""


class Tensor(NamedTuple):
    """A tensor that went through a call."""

    leaf: str
    dtype: str
    shape: tuple[int, ...]


class Node(NamedTuple):
    """A module, and the tensors of its first call, by role."""

    made: Made
    steps: tuple[int, ...]
    """The step of that call, and of the first whose gradients came if that is another one."""
    calls: int
    """Calls in the first of these."""
    through: dict[Role, tuple[Tensor, ...]]


def nodes(columns: Columns, info: RunInfo, step: int | None = None) -> list[Node]:
    """Return every module in the order of the model; of `step`, or of the first it ran in."""
    sites = columns.tables.sites.values
    first = _First(sites, step)
    for _, arrays in columns.chunks(names=_READ):
        first.read(arrays)
    made: dict[Place, Made] = {each[:2]: each for each in map(Made._make, info.tree)}
    for site in sites:  # in a file that has no tree, or under a name that `run.only` gave
        if site.direction == "forward" and site.role in THROUGH and (site.type or not site.api):
            made.setdefault((site.model, site.module), Made(site.model, site.module, site.type))
    found = first.tensors(columns)
    return [
        Node(
            each,
            *first.ran(place),
            {role: tuple(found.get((place, role), ())) for role in THROUGH},
        )
        for place, each in _nested(made)
    ]


def _nested(made: dict[Place, Made]) -> list[tuple[Place, Made]]:
    """Put each module behind the one that it is part of: in a dump the parts end first."""
    parts: dict[Place | None, list[Place]] = {}
    for model, path in made:
        parts.setdefault(_whole(model, path, made), []).append((model, path))
    todo, found = parts.get(None, [])[::-1], []
    while todo:
        place = todo.pop()
        found.append((place, made[place]))
        todo += parts.get(place, [])[::-1]
    return found


def _whole(model: str, path: str, made: dict[Place, Made]) -> Place | None:
    """Return the innermost module that is there of those which a path goes through."""
    while path:
        path = path.rpartition(".")[0]
        if (model, path) in made:
            return model, path
    return None


class _First:
    """Finds the rows of the first call of each module, role by role."""

    def __init__(self, sites: list[Site], step: int | None) -> None:
        self._step = step
        self._keys: dict[tuple[Place, Role], int] = {}
        self._of_site = np.full(len(sites), ABSENT, np.int64)
        for number, site in enumerate(sites):
            if site.role in THROUGH and not site.api:
                key = (site.model, site.module), site.role
                self._of_site[number] = self._keys.setdefault(key, len(self._keys))
        self._call = np.full((len(self._keys), len(_CALL)), ABSENT, np.int64)
        self._times = np.zeros(len(self._keys), np.int64)
        self._rows: list[tuple[int, int, int, int]] = []

    def read(self, arrays: Arrays) -> None:
        """Look at some rows; those of later ones come later."""
        wanted = (self._of_site[arrays["site"]] != ABSENT) & ~arrays["recompute"]
        if self._step is not None:
            wanted &= arrays["step"] == self._step
        rows = np.flatnonzero(wanted)
        key = self._of_site[arrays["site"][rows]]
        call = np.stack([arrays[name][rows] for name in _CALL], axis=1).astype(np.int64)
        new, place = np.unique(key, return_index=True)
        unknown = self._call[new, 0] == ABSENT
        self._call[new[unknown]] = call[place[unknown]]
        here = call[:, 0] == self._call[key, 0]
        np.maximum.at(self._times, key[here], call[here, 2] + 1)
        rows = rows[(call == self._call[key]).all(axis=1)]
        values = [arrays[name][rows].tolist() for name in ("site", "dtype", "shape")]
        self._rows += zip(self._of_site[arrays["site"][rows]].tolist(), *values, strict=True)

    def ran(self, place: Place) -> tuple[tuple[int, ...], int]:
        """Return the steps of a module's first calls, and how often it ran in the first."""
        found = [
            number for role in THROUGH if (number := self._keys.get((place, role))) is not None
        ]
        ran = [(int(self._call[n, 0]), int(self._times[n])) for n in found if self._times[n]]
        steps = sorted({step for step, _ in ran})
        return tuple(steps), max((times for step, times in ran if step == steps[0]), default=0)

    def tensors(self, columns: Columns) -> dict[tuple[Place, Role], list[Tensor]]:
        """Return what went through these calls."""
        tables, keys = columns.tables, [*self._keys]
        found: dict[tuple[Place, Role], list[Tensor]] = {}
        for key, site, dtype, shape in self._rows:
            leaf = tables.sites.values[site].leaf
            tensor = Tensor(leaf, tables.dtypes.values[dtype], tables.shapes.values[shape])
            found.setdefault(keys[key], []).append(tensor)
        return found
