"""Whether all ranks have the same parameters, and what parted them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.ranks.rows import Partition, Rows, odd
from probe_nb.analysis.ranks.statement import Statement
from probe_nb.analysis.words import plural, steps_of
from probe_nb.store.about_many import of_ranks
from probe_nb.terms import Site, shown

PARTS: Final = (".shard", ".partial")
"""Ends of leaf paths of what each rank has a part of, on purpose."""

_NAMED: Final = 3
_EVIDENCE: Final = 16
_START: Final = (
    "Broadcast them before the first step, as DistributedDataParallel does, or give all ranks the "
    "same seed. Where each rank has its own part of the model on purpose, all is well: "
    "`ignore=` leaves modules out."
)
_OWN: Final = (
    "Let the backward run through the wrapper (`model(...)`, not `model.module(...)`), outside of "
    "`no_sync()` in the last micro step, on every rank."
)
_CHANGED: Final = (
    "Look at what changes gradients on some ranks alone: clipping, hooks, a skipped step, a "
    "parameter that the wrapper does not know."
)
_UNNAMED: Final = (
    "Name the optimizer, `watch(model, optimizer=optimizer)`: then the gradients that it took can "
    "be compared."
)
_STEPPED: Final = (
    "The gradients were the same: look at the optimizers' settings and state on these ranks, and "
    "at code that writes to parameters."
)


class Drift:
    """The parameters of all ranks, and their gradients as the optimizers took them."""

    def __init__(self, params: Rows, grads: Rows, shards: int) -> None:
        """Compare these; `shards` is the number of parameters that were left out as parts."""
        self._params, self._grads, self._shards = params, grads, shards
        self._differ, self._compared = params.differing()

    def said(self) -> Iterator[Statement]:
        """Say whether they are the same."""
        params = self._params
        if self._differ.any():
            yield self._drift()
        elif self._compared.any():
            number = len(np.unique(params.data["site"][self._compared & self._forward()])) or len(
                np.unique(params.data["site"][self._compared])
            )
            steps = len(np.unique(params.data["step"][self._compared]))
            ranks = self._ranks(self._compared)
            yield Statement(
                "note",
                "parameters",
                ranks,
                f"{plural(number, 'parameter')} {'is' if number == 1 else 'are'} the same on "
                f"{of_ranks(ranks)} in {steps_of(steps)}",
                detail="; ".join(["every statistic is equal", *self._left_out()]),
            )
        else:
            yield Statement(
                "note", "parameters", (), "No parameters were compared", detail=self._why_not()
            )

    def _forward(self) -> NDArray[np.bool_]:
        return np.array([s.direction == "forward" for s in self._params.sites], np.bool_)[
            self._params.data["site"]
        ]

    def _ranks(self, chosen: NDArray[np.bool_]) -> tuple[int, ...]:
        return tuple(np.unique(self._params.data["rank"][chosen]).tolist())

    def _left_out(self) -> list[str]:
        if not self._shards:
            return []
        verb = "is a part" if self._shards == 1 else "are parts"
        return [f"{plural(self._shards, 'parameter')} {verb} on each rank, and not compared"]

    def _why_not(self) -> str:
        if left := self._left_out():
            return left[0]
        if not len(self._params):
            return "their statistics were not recorded: `roles=` has to have `param`"
        return "no two ranks have the same parameter, on devices of one kind"

    # -- where they part --------------------------------------------------------------------------

    def _drift(self) -> Statement:
        params = self._params
        place = int(np.flatnonzero(self._differ)[np.argmin(params.data["order"][self._differ])])
        step, site = int(params.data["step"][place]), params.site(place)
        stepped = site.direction == "optimizer"
        way = np.array([s.direction == site.direction for s in params.sites], np.bool_)
        here = self._differ & (params.data["step"] == step) & way[params.data["site"]]
        parts = params.parted(here)
        first = int(params.data["step"][self._compared].min())
        start = not stepped and step == first
        when = f"after the optimizer step of step {step}" if stepped else f"from step {step} on"
        when = f"from the start, step {step}" if start else when
        detail, advice = (
            (self._started(step), _START) if start else self._cause(step, stepped=stepped)
        )
        number = len(np.unique(params.data["site"][here]))
        names = list(dict.fromkeys(_name(params.sites[c]) for c in params.data["site"][here]))
        more = f" and {number - _NAMED} more" if number > _NAMED else ""
        numbers = f"{plural(number, 'parameter')}: {', '.join(names[:_NAMED])}{more}"
        return Statement(
            "warning" if start else "error",
            "drift",
            odd(parts) or self._ranks(here),
            f"{_who(parts)} {when}",
            step=step,
            at=site,
            detail="; ".join([numbers, *detail, *self._left_out()]),
            advice=advice,
            rows=tuple(params.rows[here][:_EVIDENCE].tolist()),
            value=number,
        )

    def _started(self, step: int) -> list[str]:
        """Say how many were the same then."""
        params = self._params
        then = self._compared & self._forward() & (params.data["step"] == step)
        sites = params.data["site"]
        same = len(np.unique(sites[then])) - len(np.unique(sites[then & self._differ]))
        return [f"{plural(same, 'other')} {'is' if same == 1 else 'are'} the same"] if same else []

    def _cause(self, step: int, *, stepped: bool) -> tuple[list[str], str]:
        """Say what the gradients tell of the step that parted them."""
        grads = self._grads
        earlier = grads.data["step"][grads.data["step"] < step]
        when = step if stepped else int(earlier.max(initial=-1))
        last = self._last(when)
        if not last.any():
            return ["the gradients of that step were not recorded"], _CHANGED
        differ, compared = grads.differing()
        if not (differ & last).any():
            known = (compared & last).any()
            return (["the gradients were the same"], _STEPPED) if known else ([], _CHANGED)
        parts = grads.parted(last & compared)
        if not any(_age(grads.site(place)) for place in np.flatnonzero(last).tolist()):
            return ["what the optimizers took was not recorded"], _UNNAMED
        alone = self._alone(when, last)
        every = tuple(np.unique(grads.data["rank"][last]).tolist())
        if alone == every:
            return ["no rank's gradient was averaged: each took its own backward's alone"], _OWN
        if alone:
            verb = "took the gradient of its" if len(alone) == 1 else "took the gradients of their"
            said = f"{of_ranks(alone)} {verb} own backward alone: it was not averaged"
            return [said], _OWN
        return [f"the gradients differed already: {_listed(parts)}"], _CHANGED

    def _last(self, step: int) -> NDArray[np.bool_]:
        """Tell which records hold the gradients as the optimizer took them, in a step."""
        grads = self._grads
        here = grads.data["step"] == step
        order = [_age(site) for site in grads.sites]
        age = np.array(order, np.int64)[grads.data["site"]]
        found = np.zeros(len(grads), np.bool_)
        newest: dict[tuple[int, str, str, str], tuple[int, int, int]] = {}
        for place in np.flatnonzero(here).tolist():
            site = grads.site(place)
            key = int(grads.data["rank"][place]), site.model, site.module, _parameter(site)
            rank = int(age[place]), int(grads.data["order"][place]), place
            newest[key] = max(rank, newest.get(key, rank))
        found[[each[2] for each in newest.values()]] = True
        return found

    def _alone(self, step: int, last: NDArray[np.bool_]) -> tuple[int, ...]:
        """Return the ranks whose optimizer took exactly what their own backward had added."""
        grads = self._grads
        added: dict[tuple[int, str, str, str], list[int]] = {}
        taken: dict[int, list[tuple[tuple[int, str, str, str], int]]] = {}
        for place in np.flatnonzero(grads.data["step"] == step).tolist():
            site, rank = grads.site(place), int(grads.data["rank"][place])
            key = rank, site.model, site.module, _parameter(site)
            if _age(site) == 0:
                added.setdefault(key, []).append(place)
            if last[place]:
                taken.setdefault(rank, []).append((key, place))
        return tuple(
            rank
            for rank, each in sorted(taken.items())
            if all(any(grads.equal(at, own) for own in added.get(key, ())) for key, at in each)
        )


def _age(site: Site) -> int:
    """Return how late a gradient is known: added, as `.grad` holds it, as the optimizer took it."""
    if site.direction == "optimizer":
        return 2
    return int("grad" in site.leaf.split(".")[1:])


def _parameter(site: Site) -> str:
    return site.leaf.removesuffix(".grad")


def _name(site: Site) -> str:
    return f"{shown(site.module)}.{site.leaf}" if site.module else site.leaf


def _who(parts: Partition) -> str:
    """Begin a sentence about ranks whose parameters differ."""
    if other := odd(parts):
        verb = "differ from those of the others"
        return f"The parameters of {of_ranks(other)} {verb}"
    return f"The parameters of {_listed(parts)} differ"


def _listed(parts: Partition) -> str:
    """Write down which ranks agree with each other."""
    if all(len(part) == 1 for part in parts):
        return of_ranks([part[0] for part in parts])
    return " and ".join(of_ranks(part) for part in parts)
