"""What the shapes of a run say of the sums behind its values."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from probe_nb.analysis.compare.align import Side
from probe_nb.terms import ROLES

Floats = NDArray[np.float64]
_PARAM: Final = ROLES.index("param")
_IN: Final = ("input", "grad_input")
_OUT: Final = ("output", "grad_output")
_LOOKED_UP: Final = ("Embedding", "EmbeddingBag")


class Sums:
    """How many terms are behind one element of each record: as its module's shapes tell.

    * A weight of shape (out, in, ...) makes sums of in x ... terms.
    * A module that gives out fewer elements than it takes in has summed the others up.
    * Other modules sum along their last dimension at most: normalisation, softmax.
    * The gradient of a parameter is a sum over all places at which it was used.
    """

    def __init__(self, side: Side) -> None:
        """Read the shapes of one side."""
        self.side = side
        where: dict[tuple[str, str, str], int] = {}
        self.module = np.array(
            [where.setdefault((s.model, s.module, s.api), len(where)) for s in side.sites], np.intp
        ).reshape(-1)
        self._roles = [site.role for site in side.sites]
        shapes = side.columns.tables.shapes.values
        self.last = np.array([*(s[-1] if s else 1 for s in shapes), 1], np.float64)
        self.first = np.array([*(s[0] if s else 1 for s in shapes), 1], np.float64)
        self.fan_in = np.array([*(math.prod(s[1:]) if len(s) > 1 else 0 for s in shapes), 0.0])
        self.count = len(where)
        self.weight = self._largest(("param",), self.fan_in[side.data["shape"]])
        for site, module in zip(side.sites, self.module.tolist(), strict=True):
            if site.type in _LOOKED_UP:
                self.weight[module] = 1.0
        numel = np.maximum(side.data["numel"], 0).astype(np.float64)
        self.taken = self._largest(_IN, numel)
        self.given = self._largest(_OUT, numel)
        self.along = self._largest((*_IN, *_OUT), self.last[side.data["shape"]])

    def _largest(self, roles: tuple[str, ...], values: Floats) -> Floats:
        """Return the largest value of each module's records in these roles."""
        found = np.zeros(self.count)
        if not self._roles:
            return found
        rows = np.flatnonzero(np.isin(self._roles, roles)[self.side.data["site"]])
        np.maximum.at(found, self.module[self.side.data["site"][rows]], values[rows])
        return found

    def terms(self) -> Floats:
        """Return the number of terms behind each record."""
        data = self.side.data
        module = self.module[data["site"]]
        own = np.where(self.weight > 0, self.weight, self.along)
        summed = self.taken / np.maximum(self.given, 1.0)
        of_call = np.maximum(np.maximum(own, summed), 1.0)[module]
        role = np.array(self._roles)[data["site"]] if len(data["site"]) else np.empty(0, str)
        places = self.given[module] / np.maximum(self.first[data["shape"]], 1.0)
        of_gradient = np.isin(role, ("param_grad", "update", "state"))
        exact = np.isin(role, ("param", "buffer"))
        found = np.where(of_gradient, np.maximum(places, of_call), of_call)
        terms: Floats = np.where(exact, 1.0, found)
        return terms
