"""Structure only: what is there is written down, and nothing is computed of it."""

from __future__ import annotations

from torch import Tensor

from probe_nb.observe.calls import Call
from probe_nb.observe.shards import held
from probe_nb.observe.sink import Facts, Where
from probe_nb.recorder import Recorder


class Unmeasured(Recorder):
    """Writes rows of shapes and dtypes alone."""

    def tensor(
        self,
        call: Call,
        where: Where,
        t: Tensor,
        backward: int = -1,
        scale: Tensor | None = None,  # noqa: ARG002 - there is nothing to divide by it
    ) -> None:
        """Write the row of a tensor, without numbers."""
        try:
            mine, part = held(t)
            where = (where[0], where[1] + part, *where[2:]) if part else where
            self.absent(call, where, Facts.of(mine), "not_asked", backward)
        except Exception as error:
            self.fault(call.watched, where[0], error)
