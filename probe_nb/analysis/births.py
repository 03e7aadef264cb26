"""What a birth is, and what of a step is looked at to find it.

Not every infinity is a fault. `Marks` says which records count, `docs/find-a-nan.md` says why.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.calls import Calls, common
from probe_nb.store.table import Arrays
from probe_nb.terms import Site

Phase = Literal["forward", "backward", "optimizer", "parameter", "input", "buffer"]
Kind = Literal["NaN", "+Inf", "-Inf"]
Harm = tuple[Site, Kind]
Why = Literal[
    "own",  # a module's own work: what it was made from was finite
    "after",  # the parent's code, after its last child
    "before",  # the parent's code, before its first child
    "between",  # the parent's code, between two children
    "held",  # a parameter or buffer held it when the step began
    "fed",  # the input of a call that no watched module made
    "loss",  # the gradient that arrived at what such a call gave out
    "weight",  # the gradient of a parameter
    "handed",  # a gradient as the optimizer took it
    "stepped",  # the optimizer step itself
]


@dataclass(frozen=True)
class Birth:
    """Where it happened, without words.

    Attributes:
        site: Where the first record that was not finite was taken.
        code: The number of that site; for `loss`, that of the record.
        row: The number of that record.
        at: The module in whose work it happened; of `site`, unless it lies in a parent's code.
        between: The last module that was finite and the first that was not, in the direction of
            the flow, where it lies in a parent's code.
        proof: Numbers of the records that speak for it, besides `row`.
        came: The two modules between which the -Inf arose that an input held.
        harm: Where a -Inf first did harm, and what it was there.
        rank: The process in which it happened, -1 where there is one alone.
    """

    phase: Phase
    why: Why
    kind: Kind
    step: int
    order: int
    row: int
    code: int
    site: Site
    at: Site
    between: tuple[str, str] | None = None
    proof: tuple[int, ...] = ()
    came: tuple[str, str] | None = None
    harm: Harm | None = None
    rank: int = -1

    def before(self, other: Birth | None) -> bool:
        """Tell whether this one came first: steps may overlap, as where two models are trained."""
        return other is None or self.order < other.order


@dataclass(frozen=True)
class Marks:
    """Which records of a block are not finite, and which of them may be so on purpose.

    Attributes:
        hard: NaN or +Inf in the forward, any of the three in gradients and at the optimizer.
        soft: -Inf alone in the forward, as masks and log-probabilities have it, and whatever
            sits in a buffer: these count only where something hard follows from them.
        loud: All that is not finite.
        scaled: Gradients under a loss scale, which are never hard: `GradScaler` probes the range
            on purpose.
    """

    hard: NDArray[np.bool_]
    soft: NDArray[np.bool_]
    loud: NDArray[np.bool_]
    scaled: NDArray[np.bool_]

    @classmethod
    def of(cls, block: Arrays, sorts: Sorts, *, scaled_too: bool = False) -> Marks:
        """Judge each record by itself."""
        nan, pos, neg = (block[f"{name}_count"] > 0 for name in ("nan", "posinf", "neginf"))
        loud = nan | pos | neg
        sort = sorts.codes[block["site"]]
        scaled = ~np.isnan(block["loss_scale"]) & (sort != FORWARD)
        soft = loud & ((sort == BUFFER) | ((sort == FORWARD) & ~nan & ~pos))
        hard = loud & ~soft & (sort != SETTING)
        return cls(hard if scaled_too else hard & ~scaled, soft, loud, scaled)


FORWARD, BACKWARD, OPTIMIZER, BUFFER, SETTING = range(5)
"""Sorts of records; a setting is a number of the optimizer itself, such as its learning rate, or
what a `GradScaler` reads to find out whether gradients overflowed."""

_SCALER: Final = "Torch._amp_"
"""How the functions begin that a `GradScaler` calls: they are fed what is not finite on purpose."""


class Sorts:
    """The sort of each site, by its code."""

    def __init__(self, sites: list[Site]) -> None:
        """Look at sites, of which there may be more later."""
        self._sites = sites
        self.codes = np.empty(0, np.int8)

    def grow(self, number: int) -> None:
        """Know the sites up to a number."""
        new = [self._sort(site) for site in self._sites[len(self.codes) : number]]
        self.codes = np.append(self.codes, np.array(new, np.int8))

    @staticmethod
    def _sort(site: Site) -> int:
        if site.direction == "optimizer":
            return SETTING if site.api else OPTIMIZER
        if site.api.startswith(_SCALER):
            return SETTING
        if site.role == "buffer":
            return BUFFER
        return BACKWARD if site.direction == "backward" else FORWARD


@dataclass(frozen=True)
class Step:
    """One step of one process, as the search looks at it.

    Attributes:
        calls: Its records.
        marks: Which of them are not finite.
        complete: Nothing of this step is still to come.
        usual: Codes of sites that gave out -Inf in earlier steps, where it did no harm.
    """

    calls: Calls
    marks: Marks
    complete: bool
    usual: Container[int]

    def until(self, place: int) -> Step:
        """Return what was known when a record was taken: what came later explains nothing."""
        marks = Marks(*(values[: place + 1] for values in vars(self.marks).values()))
        return replace(self, calls=self.calls.until(place), marks=marks)

    def hard(self, places: Iterable[int]) -> list[int]:
        """Return those of some records that are not finite by any reading."""
        return [place for place in places if self.marks.hard[place]]

    def soft(self, places: Iterable[int]) -> list[int]:
        """Return those of some records that are not finite, and may be so on purpose."""
        return [place for place in places if self.marks.soft[place]]

    def all_finite(self, places: Iterable[int]) -> bool:
        """Tell whether all of some records hold nothing but finite numbers."""
        return all(self.calls.finite(place) for place in places)

    def around(self, model: str, paths: tuple[str, str]) -> Site:
        """Return a site of the module around two others, of whose call nothing was recorded."""
        path = common(paths)
        known = (site for site in self.calls.sites if (site.model, site.module) == (model, path))
        return next(known, Site(model, path, "", "", "forward", "output", ""))

    def born(
        self,
        phase: Phase,
        why: Why,
        place: int,
        *,
        at: Site | None = None,
        between: tuple[str, str] | None = None,
        proof: Iterable[int] = (),
    ) -> Birth:
        """Return the birth that shows first in the record at a place."""
        calls, block = self.calls, self.calls.block
        site = calls.site(place)
        return Birth(
            phase=phase,
            why=why,
            kind=kind_of(block, place),
            step=int(block["step"][place]),
            order=int(block["order"][place]),
            row=int(calls.rows[place]),
            code=int(block["site"][place]),
            site=site,
            at=at or site,
            between=between,
            proof=tuple(sorted({int(calls.rows[p]) for p in proof if p != place})),
            rank=int(block["rank"][place]),
        )


def kind_of(block: Arrays, place: int) -> Kind:
    """Return the gravest that a record holds."""
    if block["nan_count"][place] > 0:
        return "NaN"
    return "+Inf" if block["posinf_count"][place] > 0 else "-Inf"
