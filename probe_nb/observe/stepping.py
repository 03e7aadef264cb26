"""One step of a named optimizer while it runs: which frame runs it, and our hooks around it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer
from torch.utils.hooks import RemovableHandle

from probe_nb.observe.compiled import beside
from probe_nb.observe.copies import Turns
from probe_nb.observe.regions import local
from probe_nb.observe.select import Watched
from probe_nb.observe.shards import Owned
from probe_nb.terms import Status

_OWN: tuple[str, ...] = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


class Own:
    """A hook of ours among an optimizer's own, for the time of one step."""

    def __init__(
        self,
        act: Callable[[Optimizer, FrameType], None],
        owner: object,
        fault: Callable[[Exception], None],
    ) -> None:
        """Be one of the owner's."""
        self._act = act
        self.owner = owner
        self._fault = fault

    @beside
    def __call__(self, optimizer: Optimizer, *_: Any) -> None:
        """Run as torch's hook."""
        try:
            self._act(optimizer, sys._getframe(1))
        except Exception as error:  # a fault of ours is never the user's
            self._fault(error)


@dataclass
class Step:
    """One step of an optimizer, while it runs. Nothing else holds tensors."""

    frame: int
    """Which frame of torch runs it. A step that raised leaves none, and no hook tells of it."""
    closure: bool
    """Gradients are computed inside."""
    moved: list[Owned] = field(default_factory=list)
    copies: dict[int, Tensor | Status] = field(default_factory=dict)
    looked: bool = False
    written: bool = False
    handles: list[RemovableHandle] = field(default_factory=list)

    def runs_in(self, frame: FrameType, optimizer: Optimizer) -> bool:
        """Tell whether this is the step that is run by a frame."""
        return id(frame) == self.frame and local(frame, "self") is optimizer

    def runs_around(self, frame: FrameType | None, optimizer: Optimizer) -> bool:
        """Tell whether this step runs still, in a frame or somewhere around it."""
        while frame is not None:
            if self.runs_in(frame, optimizer):
                return True
            frame = frame.f_back
        return False

    def put_hooks(
        self, optimizer: Optimizer, last_before: Own, first_after: Own
    ) -> tuple[bool, bool]:
        """Put hooks where those of others would come in between, and tell which were put.

        Nobody runs through the optimizer's own tables now: torch looks at them later.
        """
        before, after = (getattr(optimizer, name) for name in _OWN)
        put_before = _others(torch_optimizer._global_optimizer_pre_hooks, before)
        put_after = _others(torch_optimizer._global_optimizer_post_hooks, after)
        if put_before:
            self._put(before, last_before)
        if put_after:
            self._put(after, first_after)
            after.move_to_end(self.handles[-1].id, last=False)
        return put_before, put_after

    def _put(self, table: Any, hook: Own) -> None:
        handle = RemovableHandle(table)
        self.handles.append(handle)
        table[handle.id] = hook

    def drop(self) -> None:
        """Hold nothing any more."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        self.copies.clear()
        self.moved.clear()


@dataclass
class Named:
    """One of the optimizers that were named."""

    optimizer: weakref.ref[Optimizer]
    itself: Watched
    """What its own rows are written under."""
    turns: Turns = field(default_factory=Turns)
    step: Step | None = None
    number: tuple[int, int] = (-1, 0)
    """A step of the run, and how often this optimizer has stepped in it."""
    told: bool = False
    """Since the scaler was last updated it stepped, or was known not to."""

    def drop(self) -> None:
        """Forget the step that runs, or that raised."""
        step, self.step = self.step, None
        if step is not None:
            step.drop()

    def close(self, owner: object) -> None:
        """Leave nothing of the owner's on the optimizer, also where an interrupt hid it."""
        self.drop()
        for name in _OWN:
            table = getattr(self.optimizer(), name, {})
            for key, hook in list(table.items()):
                if isinstance(hook, Own) and hook.owner is owner:
                    table.pop(key, None)


def named(optimizers: Iterable[Optimizer]) -> dict[int, Named]:
    """Return what is known of each optimizer, by its identity."""
    found: dict[int, Named] = {}
    for number, optimizer in enumerate(optimizers):
        ref: Any = weakref.ref(optimizer)
        about = ("", "", type(optimizer))
        itself = Watched(ref, *about, is_root=False, selected=True, api=f"optimizer.{number}")
        found.setdefault(id(optimizer), Named(ref, itself))
    return found


def has_closure(args: Any, kwargs: Any) -> bool:
    """Tell whether a step was given a closure; the first argument is the optimizer."""
    return any(callable(each) for each in (*args[1:], *kwargs.values()))


def _others(*tables: dict[int, Any]) -> bool:
    """Tell whether any hook in these tables is somebody else's."""
    return any(not _is_ours(hook) for table in tables for hook in list(table.values()))


def _is_ours(hook: Any) -> bool:
    owner = hook if isinstance(hook, Own) else getattr(hook, "__self__", None)
    return type(owner).__module__.partition(".")[0] == __name__.partition(".")[0]
