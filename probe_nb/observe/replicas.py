"""Replicas: the copies of a model that `nn.DataParallel` makes for each forward.

A replica is a new object, but it shares the table of forward hooks with the module that it was
made from. By that it is recognised.
"""

from __future__ import annotations

import threading
import weakref

from torch import nn

from probe_nb.observe.select import Watched


class Replicas:
    """Knows which module a replica was made from, and which replicas run one forward."""

    def __init__(self, watched: dict[int, Watched]) -> None:
        """Look among these modules, by identity."""
        self._watched = watched
        self._tables: dict[int, Watched] = {}
        self._looked_at = 0
        self._running: list[weakref.ref[nn.Module]] = []
        self.lock = threading.RLock()
        """Held while a replica lets the clock see its forward: all of them start at once."""

    def original(self, replica: nn.Module) -> Watched | None:
        """Return what is known of the module that a replica was made from."""
        table = replica._forward_hooks
        if len(self._watched) != self._looked_at:
            self._look()
        watched = self._tables.get(id(table))
        module = None if watched is None else watched.module()
        return watched if module is not None and module._forward_hooks is table else None

    def _look(self) -> None:
        alive = [(w, m) for w in list(self._watched.values()) if (m := w.module()) is not None]
        self._tables = {id(m._forward_hooks): w for w, m in alive}
        self._looked_at = len(self._watched)

    def first(self, replica: nn.Module) -> bool:
        """Tell whether a forward begins with this replica of a root, or another has begun it.

        The replicas of one forward live until it is over, and each runs once.
        """
        running = [each for ref in self._running if (each := ref()) is not None]
        begins = not running or any(each is replica for each in running)
        if begins:
            self._running.clear()
        self._running.append(weakref.ref(replica))
        return begins


def is_replica(module: nn.Module) -> bool:
    """Tell whether `nn.DataParallel` made this module."""
    return "_is_replica" in module.__dict__
