"""The records of one step as the calls that made them: what ran inside what, and before what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.store.table import Arrays
from probe_nb.terms import COUNTS, STATISTICS, Site

NEEDED: Final = (
    *("step", "micro_step", "rank", "order", "call", "site", "numel", *STATISTICS, *COUNTS),
    *("recompute", "requires_grad", "loss_scale", "status"),
)
"""The columns that the search for an origin reads."""

_OF_CALLS: Final = {
    "input": "inputs",
    "output": "outputs",
    "grad_output": "grad_outputs",
    "grad_input": "grad_inputs",
}
_NUMBERS: Final = ("numel", *STATISTICS, *COUNTS)


@dataclass(eq=False)
class Call:
    """One call of a module or function. Its records are numbered by their place in the step.

    Attributes:
        begin: Place of the first record that it left.
        end: Place of the last output; None while it runs, or if no output was recorded.
        parent: The call around it, None if none was recorded.
    """

    site: Site
    micro_step: int
    begin: int
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    grad_outputs: list[int] = field(default_factory=list)
    grad_inputs: list[int] = field(default_factory=list)
    parent: Call | None = None

    @property
    def path(self) -> str:
        """The module's path."""
        return self.site.module

    @property
    def end(self) -> int | None:
        """Where it ended."""
        return self.outputs[-1] if self.outputs else None

    def is_above(self, other: Call) -> bool:
        """Tell whether the other's module lies in this one's; a function lies in its module."""
        if self.site.api or self.site.model != other.site.model:
            return False
        return lies_in(other.path, self.path) or (bool(other.site.api) and other.path == self.path)

    def holds(self, other: Call) -> bool:
        """Tell whether the other ran inside this one, as far as times tell."""
        if self.end is None:
            return self.is_above(other)
        return (other.begin if other.end is None else other.end) <= self.end


def lies_in(path: str, around: str) -> bool:
    """Tell whether a module path lies inside another.

    >>> lies_in("layers.10", "layers"), lies_in("layers.10", "layers.1"), lies_in("a", "")
    (True, False, True)
    """
    return path != around and (not around or path.startswith(f"{around}."))


def paths_around(path: str, api: str) -> Iterator[str]:
    """Yield the paths around a call: a function lies in its module.

    >>> list(paths_around("a.b.c", "")), list(paths_around("a", "torch.exp"))
    (['a.b', 'a', ''], ['a', ''])
    """
    if api:
        yield path
    while path:
        path = path.rpartition(".")[0]
        yield path


def common(paths: Iterable[str]) -> str:
    """Return the innermost module path around several others.

    >>> common(["a.b.c", "a.b.d"]), common(["a.b", "a.b"]), common(["a", "b"])
    ('a.b', 'a', '')
    """
    parts = [path.split(".")[:-1] for path in paths]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared)


class Calls:
    """What one process recorded in one step, or what is known of it so far.

    Attributes:
        block: The records in execution order.
        rows: The number that each has in the run.
        sites: What the codes in `site` stand for.
        of: The call of each record, None for those of parameters and buffers.
    """

    def __init__(self, block: Arrays, rows: NDArray[np.intp], sites: list[Site]) -> None:
        """Sort the records into calls and find out what ran inside what."""
        by = np.argsort(block["order"], kind="stable")
        self.block = {name: block[name][by] for name in NEEDED}
        self.rows, self.sites = rows[by], sites
        self.of: list[Call | None] = []
        self._owned: dict[tuple[str, str, str, str], list[int]] = {}
        self.calls: list[Call] = []
        self._by_module: dict[tuple[str, str], list[Call]] = {}
        self._collect()
        self._nest()

    def _collect(self) -> None:
        found: dict[tuple[str, str, str, int, int, bool], Call] = {}
        names = ("site", "micro_step", "call", "recompute")
        columns = zip(*(self.block[name].tolist() for name in names), strict=True)
        for place, (code, micro_step, number, recompute) in enumerate(columns):
            site = self.sites[code]
            into = None if site.direction == "optimizer" else _OF_CALLS.get(site.role)
            if into is None:
                key = (site.model, site.module, site.direction, site.role)
                self._owned.setdefault(key, []).append(place)
                self.of.append(None)
                continue
            which = (site.model, site.module, site.api, micro_step, number, recompute)
            call = found.get(which)
            if call is None:
                call = found[which] = Call(site, micro_step, place)
                self.calls.append(call)
                if not site.api:
                    self._by_module.setdefault((site.model, site.module), []).append(call)
            getattr(call, into).append(place)
            self.of.append(call)

    # -- what ran inside what ---------------------------------------------------------------------

    def _nest(self) -> None:
        """Give each call its parent: by time, and by path where times do not tell.

        Where calls overlap without one being inside the other there are threads, and of those
        that hold a call in time only one whose module lies around it can have made it.
        """
        timed = [call for call in self.calls if call.inputs]
        if self._nest_timed(timed, threads=False):
            self._nest_timed(timed, threads=True)
        for call in self.calls:
            if call.parent is None and (call.path or call.site.api):
                call.parent = self._around(call)

    @staticmethod
    def _nest_timed(timed: list[Call], *, threads: bool) -> bool:
        """Tell whether calls were seen that overlap."""
        stack: list[Call] = []
        endless: dict[tuple[str, str], Call] = {}
        overlap = False
        for call in timed:
            stack = [each for each in stack if each.end is None or each.end > call.begin]
            holding = [each for each in stack if each.holds(call)]
            overlap |= len(holding) < len(stack)
            if threads:
                holding = [each for each in holding if each.is_above(call)]
            above = ((call.site.model, path) for path in paths_around(call.path, call.site.api))
            holding = [*holding[-1:], *(endless[each] for each in above if each in endless)]
            call.parent = max(holding, key=lambda each: each.begin, default=None)
            if call.end is not None:
                stack.append(call)
            elif not call.site.api:  # nobody knows when it ended: what lies in it may be its own
                endless[call.site.model, call.path] = call
        return overlap

    def _around(self, call: Call) -> Call | None:
        """Return the call around one by their paths: of one whose inputs were not recorded."""
        last = call.begin if call.end is None else call.end
        for path in paths_around(call.path, call.site.api):
            for each in self._by_module.get((call.site.model, path), ()):
                late = each.end is None or each.end >= last
                if late and not each.inputs and each.micro_step == call.micro_step:
                    return each
        return None

    def children(self, parent: Call | None) -> Iterator[Call]:
        """Yield the calls right inside another; those inside none for None."""
        return (call for call in self.calls if call.parent is parent)

    def last_before(self, place: int, parent: Call | None, but: Call) -> Call | None:
        """Return the call right inside `parent` that ended last before a place."""
        ended = [
            call
            for call in self.children(parent)
            if call is not but and call.end is not None and call.end < place
        ]
        return max(ended, key=lambda call: call.outputs[-1], default=None)

    def until(self, place: int) -> Calls:
        """Return what was known when a record was taken, itself included."""
        block = {name: values[: place + 1] for name, values in self.block.items()}
        return Calls(block, self.rows[: place + 1], self.sites)

    # -- what is known of a record ----------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.rows)

    def site(self, place: int) -> Site:
        """Return where a record was taken."""
        return self.sites[int(self.block["site"][place])]

    def measured(self, place: int) -> bool:
        """Tell whether the elements of a record were counted."""
        return bool(self.block["nan_count"][place] >= 0)

    def finite(self, place: int) -> bool:
        """Tell whether a record was counted and holds nothing but finite numbers."""
        counts = [self.block[f"{name}_count"][place] for name in ("nan", "posinf", "neginf")]
        return self.measured(place) and not any(counts)

    def same(self, one: int, other: int) -> bool:
        """Tell whether two records are of the same tensor, or of equal ones: all numbers agree."""
        agree = bool((self._prints[one] == self._prints[other]).all())
        return agree and self.measured(one)

    def equal(self, place: int) -> list[int]:
        """Return the records that are the same as one that is not finite, itself included."""
        return self._loud[self._prints[place].tobytes()]

    @cached_property
    def _prints(self) -> NDArray[np.float64]:
        """The numbers of each record; -0 is 0."""
        columns = [np.nan_to_num(self.block[name].astype(float)) for name in _NUMBERS]
        return np.stack(columns, axis=1) + 0.0

    @cached_property
    def _loud(self) -> dict[bytes, list[int]]:
        """The records that are not finite, by their numbers."""
        found: dict[bytes, list[int]] = {}
        bad = sum(np.maximum(self.block[f"{n}_count"], 0) for n in ("nan", "posinf", "neginf"))
        for place in np.flatnonzero(np.asarray(bad)).tolist():
            found.setdefault(self._prints[place].tobytes(), []).append(place)
        return found

    def only_neginf(self, place: int) -> bool:
        """Tell whether -Inf is all that is not finite in a record."""
        return not any(self.block[name][place] > 0 for name in ("nan_count", "posinf_count"))

    def of_module(self, model: str, path: str) -> list[Call]:
        """Return the calls of one module."""
        return self._by_module.get((model, path), [])

    def owns(self, site: Site, role: str, direction: str = "forward") -> list[int]:
        """Return the records of the parameters or buffers of a site's module itself."""
        return self._owned.get((site.model, site.module, direction, role), [])

    def of_parameter(self, site: Site, role: str, direction: str) -> list[int]:
        """Return the records of the parameter that a site belongs to."""
        name = site.leaf.split(".")[0]
        owned = self.owns(site, role, direction)
        return [place for place in owned if self.site(place).leaf.split(".")[0] == name]
