"""The lines of the user's that led to the calls of each site, read as calls are added."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from probe_nb.store.calls import Calls, as_text
from probe_nb.store.table import ABSENT, Interned
from probe_nb.terms import Callee, Site, Stack

WAYS: Final = 3
"""Stacks that are told of one module: a row is no place for all."""

FRAMES: Final = 12
"""Lines of a stack that are told, the innermost first; `run.calls()` has all."""


class Stacks:
    """The stacks of a run by what was called.

    What is told of a site hardly ever changes, so that it need not be sent again and again: the
    first ways that led to it, in the order in which they were seen.

    Attributes:
        texts: What is told; sites point into it.
    """

    def __init__(self, calls: Calls | None) -> None:
        """Read nothing yet; None for a run without calls."""
        self._calls = calls
        self._read = 0
        self._ways: dict[Callee, tuple[int, ...]] = {}
        self._texts: Interned[str] = Interned()

    @property
    def texts(self) -> list[str]:
        """The texts that `of` counts in."""
        return self._texts.values

    def told(self, by: Iterable[int]) -> dict[str, list[str]]:
        """Return what a front end is sent: in their places the texts that some row tells."""
        used = set(by)
        texts = [text if at in used else "" for at, text in enumerate(self.texts)]
        return {"stacks": texts} if texts else {}

    def read(self) -> bool:
        """Take in what was added; tell whether any site has more to tell."""
        calls = self._calls
        if calls is None or not calls.stacks.values:
            return False
        new = calls.columns(self._read)
        self._read += len(new)
        new = new[new["stack"] != ABSENT]
        known = len(calls.stacks.values)
        _, first = np.unique(new["site"].astype(np.int64) * known + new["stack"], return_index=True)
        changed = False
        for at in np.sort(first).tolist():
            callee = calls.callees.values[new["site"][at]]
            changed |= self._take(callee, int(new["stack"][at]))
        return changed

    def _take(self, callee: Callee, stack: int) -> bool:
        ways = self._ways.get(callee, ())
        if stack in ways or len(ways) >= WAYS:
            return False
        self._ways[callee] = (*ways, stack)
        return True

    def of(self, site: Site) -> int:
        """Return which text tells of a site; -1 for none."""
        ways = self._ways.get(Callee(site.model, site.module, site.type, site.api))
        if ways is None or self._calls is None:
            return ABSENT
        return self._texts.code("\n\n".join(_told(self._calls.frames(stack)) for stack in ways))


def _told(stack: Stack) -> str:
    left = len(stack) - FRAMES
    return as_text(stack[:FRAMES]) + (f"\n… {left} more" if left > 0 else "")
