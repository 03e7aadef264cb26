"""What was not seen, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import torch
from torch import nn

from probe_nb import reasons
from probe_nb.observe.select import Watched
from probe_nb.terms import Role

_OF_CALLS: Final[frozenset[Role]] = frozenset({"input", "output", "grad_output", "grad_input"})
_FORWARD: Final[frozenset[Role]] = frozenset({"input", "output"})
_FUSED: Final = (nn.TransformerEncoderLayer, nn.TransformerEncoder, nn.MultiheadAttention)
"""Modules that replace themselves by one kernel in evaluation, unless a mode looks on."""
_GRAPHS: Final = ("GraphModule", "UnflattenedModule")
_UNIMPLEMENTED: Final = nn.Module.forward, nn.Module.__call__


class Coverage:
    """Lists what was not seen; made anew only after something more was seen."""

    def __init__(
        self,
        watched: list[Watched],
        named: Collection[Watched],
        roles: Collection[Role],
        *,
        opened: bool = False,
        unfused: bool = False,
        here: bool = True,
    ) -> None:
        """Look at these modules, at those that `run.only` names, and at those that are added.

        `opened` says that compiled code runs eagerly: it hides nothing then. `unfused` says that
        functions are seen, and that no kernel is fused for it; `here` that this process was
        asked for.
        """
        self._watched = watched
        self._named = named
        self._asked = _OF_CALLS.intersection(roles)
        self._opened = opened
        self._unfused = unfused
        self._here = here
        self._known: tuple[int, ...] = ()
        self._listed: list[dict[str, str]] = []

    def unobserved(self) -> list[dict[str, str]]:
        """Return the modules that left no row of a call, with the reason."""
        everything = (*self._watched, *self._named)
        known = tuple(map(self._progress, everything))
        if known != self._known:
            tree = _Tree(self._watched, opened=self._opened, here=self._here)
            found = [(w, self._reason(w, tree)) for w in everything]
            self._listed = [
                {"model": w.model, "module": w.path, "type": w.type, "reason": reason}
                for w, reason in found
                if reason
            ]
            self._known = known
        return self._listed

    def _progress(self, watched: Watched) -> int:
        sites = watched.sites
        facts = (
            watched.selected,
            watched.called,
            watched.seen,
            watched.checkpointed,
            watched.faulty,
        )
        return sum(fact << place for place, fact in enumerate(facts)) + 32 * len(sites)

    @staticmethod
    def _of_functions(watched: Watched) -> str:
        if watched.checkpointed:
            return reasons.REENTRANT
        return reasons.UNFUSED if isinstance(watched.module(), _FUSED) else ""

    def _reason(self, watched: Watched, tree: _Tree) -> str:
        if not watched.selected:
            return reasons.NOT_SELECTED
        if watched.late:
            return reasons.LATE
        if not watched.seen:
            return reasons.FAULTY if watched.faulty else tree.reason(watched)
        if self._unfused and (reason := self._of_functions(watched)):
            return reason
        if not self._asked or any(where[0] in _OF_CALLS for where in watched.sites):
            return ""
        lacking = reasons.NO_TENSORS if self._asked & _FORWARD else reasons.NO_GRADIENTS
        return reasons.FAULTY if watched.faulty else lacking


class _Tree:
    """The watched modules by their paths, to ask what happened around one of them."""

    def __init__(self, watched: Iterable[Watched], *, opened: bool, here: bool) -> None:
        self._opened = opened
        self._here = here
        self._at = {(w.model, path): w for w in watched for path in (w.path, *w.aliases)}
        self._models = {w.model for w in watched if w.is_root and w.module() is not None}
        self._busy = {
            (w.model, path.rpartition(".")[0])
            for w in watched
            if w.called
            for path in (w.path, *w.aliases)
            if path
        }

    def reason(self, watched: Watched) -> str:
        """Say why a module that was to be seen was not."""
        if watched.called:
            return self._passed_over(watched)
        module = watched.module()
        if module is None:
            return reasons.GONE if watched.model in self._models else reasons.NEVER
        around = self._around(watched)
        if watched.compiled and not self._opened:
            return reasons.COMPILED
        if any(isinstance(each, torch.jit.ScriptModule) for each, _ in around):
            return reasons.SCRIPTED
        if _has_no_forward(module):
            return reasons.TRACED if _frozen(module, around) else reasons.CONTAINER
        return self._uncalled(watched, around)

    def _passed_over(self, watched: Watched) -> str:
        """Say why nothing is there of a module that was called."""
        if not self._here:
            return reasons.RANKS
        elsewhere = reasons.ELSEWHERE if watched.silenced else reasons.STEPS
        return reasons.LEFT_OUT if watched.left_out else elsewhere

    def _uncalled(self, watched: Watched, around: list[tuple[nn.Module, bool]]) -> str:
        caller = next((module for module, called in around if called), None)
        if isinstance(caller, nn.TransformerEncoderLayer):
            return reasons.FUSED
        lent = any(w[0] == "param_grad" and "optimizer" not in w for w in watched.sites)
        if lent or (isinstance(caller, nn.MultiheadAttention) and around[0][0] is caller):
            return reasons.LENT
        busy = any((watched.model, path) in self._busy for path in (watched.path, *watched.aliases))
        return reasons.BYPASSED if busy else reasons.NEVER

    def _around(self, watched: Watched) -> list[tuple[nn.Module, bool]]:
        """Return the modules around one, the nearest first, and whether each was called."""
        found, path = [], watched.path
        while path:
            path = path.rpartition(".")[0]
            parent = self._at.get((watched.model, path))
            if parent is not None and (module := parent.module()) is not None:
                found.append((module, parent.called))
        return found


def _has_no_forward(module: nn.Module) -> bool:
    """Tell whether nobody can call a module: what only holds others."""
    cls = type(module)
    mine = getattr(cls, "forward", None), cls.__call__
    return "forward" not in vars(module) and mine == _UNIMPLEMENTED


def _frozen(module: nn.Module, around: list[tuple[nn.Module, bool]]) -> bool:
    """Tell whether a module is what tracing left of a layer: its weights, without its code."""
    if not module._parameters and not module._buffers:
        return False
    return any(kind.__name__ in _GRAPHS for each, _ in around for kind in type(each).__mro__)
