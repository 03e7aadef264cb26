"""A part of each tensor in place of the whole: `slices=`.

It stands before all that reads a tensor, so that the numbers, the shape, the checksum and what is
kept are those of the part. The part is a view: nothing is copied and the model has its tensor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from probe_nb.grammar import Slice
from probe_nb.observe.calls import Call
from probe_nb.observe.select import Watched
from probe_nb.observe.shards import held
from probe_nb.observe.sink import Facts, Sink, Where
from probe_nb.stats.measurable import modes_off
from probe_nb.terms import Status
from probe_nb.ungraded import ungraded

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
_UNCUT: Final = (NotImplementedError, RuntimeError, IndexError)
"""What torch raises of a layout that cannot be cut."""


class Slicing:
    """Takes observations and hands on a part of each."""

    def __init__(self, sink: Sink, slices: Sequence[Slice]) -> None:
        """Hand on to `sink`."""
        self._sink = sink
        self._slices = slices
        self._idle = set(slices)
        self._most = -1

    def tensor(
        self,
        call: Call,
        where: Where,
        t: Tensor,
        backward: int = -1,
        scale: Tensor | None = None,
    ) -> None:
        """Hand on a part of a tensor, or say that it has none."""
        try:
            if type(t) not in _PLAIN:
                t, part = held(t)
                where = (where[0], where[1] + part, *where[2:]) if part else where
            cut = self._cut(t)
        except Exception as error:
            status: Status = "unsupported"
            if not isinstance(error, _UNCUT):
                self._sink.fault(call.watched, where[0], error)
                status = "failed"
            self._sink.absent(call, where, Facts.of(t), status, backward)
            return
        self._sink.tensor(call, where, cut, backward, scale)

    def _cut(self, t: Tensor) -> Tensor:
        if t.is_nested:
            raise NotImplementedError
        index: list[Any] = [slice(None)] * t.dim()
        self._most = max(self._most, t.dim())
        for each in self._slices:
            if each.dim < t.dim() and each.size in (None, t.shape[each.dim]):
                index[each.dim] = slice(each.begin, each.end)
                self._idle.discard(each)
        if all(each == slice(None) for each in index):
            return t
        with torch._C.DisableTorchFunction(), modes_off():  # noqa: SLF001 - as in keeper
            cut: Tensor = ungraded(t.__getitem__, tuple(index))
            if t.requires_grad:
                with contextlib.suppress(RuntimeError):  # inside a transform of torch.func
                    cut.requires_grad_()
        return cut

    def idle(self) -> str:
        """Say which cuts fitted no tensor that was seen; "" if each did, or none was seen."""
        if self._most < 0:
            return ""
        return "; ".join(_fitted_nothing(e, self._most) for e in self._slices if e in self._idle)

    def absent(
        self, call: Call, where: Where, facts: Facts, status: Status, backward: int = -1
    ) -> None:
        """Hand on a tensor whose numbers cannot be had; its shape is that of the whole."""
        self._sink.absent(call, where, facts, status, backward)

    def fault(self, watched: Watched | None, where: str, error: Exception) -> None:
        """Hand on an error of our own."""
        self._sink.fault(watched, where, error)


def _fitted_nothing(cut: Slice, most: int) -> str:
    cuts = f"`slices=` has cut nothing along dimension {cut.dim}"
    if cut.dim >= most:
        return f"{cuts}: tensors that were seen have {most} at most, the first of which is 0"
    return f"{cuts}: no tensor that was seen is of size {cut.size} there"
