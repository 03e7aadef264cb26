"""A recorder that writes, beside each row, what was asked for as `extras=`.

Without `extras=` it is not there. What it adds are rows of one number, with the role `state`: the
leaf has the name of the quantity, `spectral_norm.weight`. They have the direction `forward`: no
loss scale is in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from torch import Tensor, nn

from probe_nb.extras import BELOW, OF_CALL, OF_STEP, OF_WEIGHT, Extra
from probe_nb.observe.calls import Call
from probe_nb.observe.select import Watched, matching
from probe_nb.observe.sink import Facts, Where
from probe_nb.recorder import Recorder
from probe_nb.stats import attention, extras
from probe_nb.summing import Summing
from probe_nb.terms import Status

Leaf = tuple[str, Tensor]

_MATRIX: Final = 2


class Measuring(Recorder):
    """Takes observations, writes their rows, and computes what else is wanted of them."""

    _wanted: tuple[Extra, ...] = ()

    def wants(self, wanted: Sequence[Extra], watched: Sequence[Watched]) -> None:
        """Choose among these modules; later ones are asked for when they are seen.

        Raises:
            SelectionError: A pattern matches no module.
        """
        self._wanted = tuple(wanted)
        self._chosen: dict[Watched, tuple[Extra, ...]] = {}
        self._by_inputs: set[Watched] = set()
        for each in self._wanted:
            if not matching(watched, each.select, must_match=False):
                matching(watched, each.select)  # says what is there instead

    def _of(self, watched: Watched, names: Sequence[str]) -> list[Extra]:
        if watched.api or not watched.selected:
            return []
        chosen = self._chosen.get(watched)
        if chosen is None:
            chosen = self._chosen[watched] = tuple(
                each for each in self._wanted if matching([watched], each.select, must_match=False)
            )
        return [each for each in chosen if each.name in names]

    # -- rows that are recorded ---------------------------------------------------------------

    def tensor(
        self,
        call: Call,
        where: Where,
        t: Tensor,
        backward: int = -1,
        scale: Tensor | None = None,
    ) -> None:
        """Write the row of a tensor, then what was asked for of it."""
        super().tensor(call, where, t, backward, scale)
        try:
            for each in self._of(call.watched, (BELOW,)):
                mask = extras.below(t, each.limit)
                self._write(call, f"{each.text}({_spelled(where)})", mask, t, backward)
            if where[0] == "param" and len(where) == _MATRIX and t.dim() >= _MATRIX:
                self._weight(call, where[1], t)
        except Exception as error:  # a fault of ours is never the user's
            self.fault(call.watched, "an extra", error)

    def _weight(self, call: Call, name: str, t: Tensor) -> None:
        wanted = {each.name for each in self._of(call.watched, OF_WEIGHT)}
        if wanted & {"spectral_norm", "stable_rank"}:
            found = extras.spectral(t)
            values = (None, None) if found is None else found
            for key, value in zip(("spectral_norm", "stable_rank"), values, strict=True):
                if key in wanted:
                    why: Status = "unsupported" if extras.matrix(t) is None else "no_finite"
                    self._write(call, f"{key}.{name}", value, t, why=why)
        if "router_similarity" in wanted:
            self._write(call, f"router_similarity.{name}", extras.router_similarity(t), t)

    # -- calls --------------------------------------------------------------------------------

    def entering(self, call: Call, module: nn.Module, leaves: Sequence[Leaf]) -> None:
        """Look at what a module is called with, before it can change it."""
        self._guarded(call, module, leaves, results=False)

    def leaving(self, call: Call, module: nn.Module, leaves: Sequence[Leaf]) -> None:
        """Look at what a module gives."""
        self._guarded(call, module, leaves, results=True)

    def _guarded(
        self, call: Call, module: nn.Module, leaves: Sequence[Leaf], *, results: bool
    ) -> None:
        wanted = self._of(call.watched, OF_CALL)
        try:
            if wanted and leaves and not call.recompute:
                self._attention(call, module, leaves, wanted, results=results)
        except Exception as error:  # a fault of ours is never the user's
            self.fault(call.watched, "an extra", error)

    def _attention(
        self,
        call: Call,
        module: nn.Module,
        leaves: Sequence[Leaf],
        wanted: Sequence[Extra],
        *,
        results: bool,
    ) -> None:
        known: dict[tuple[str, bool], tuple[Tensor, Tensor] | None] = {}
        for each in wanted:
            if each.name == "expert_entropy":
                if results:
                    self._write(call, each.name, attention.of_experts(leaves), leaves[0][1])
                continue
            if results and call.watched in self._by_inputs:
                continue
            how = (each.order, each.causal)
            if how not in known:
                known[how] = (
                    attention.of_results(module, leaves)
                    if results
                    else attention.of_inputs(module, leaves, each.order, masked=each.causal)
                )
            found = known[how]
            if found is not None or results:
                value = None if found is None else found[each.name == "softmax_max"]
                self._write(call, each.name, value, leaves[0][1])
        if not results and any(known.values()):
            self._by_inputs.add(call.watched)
        elif not results:
            self._by_inputs.discard(call.watched)

    # -- steps --------------------------------------------------------------------------------

    def before_step(self, call: Call, name: str, grad: Tensor | None, kept: Sequence[Leaf]) -> None:
        """Look at what an optimizer keeps of a parameter before it moves it."""
        wanted = {each.name for each in self._of(call.watched, OF_STEP)}
        if not wanted:
            return
        for leaf, t in kept if "state_before" in wanted else ():
            self.tensor(call, ("state", f"before.{leaf}", "forward"), t)
        momentum = dict(kept).get(f"{name}.exp_avg", dict(kept).get(f"{name}.momentum_buffer"))
        if "grad_direction" in wanted and grad is not None and momentum is not None:
            value = extras.direction(grad, momentum)
            self._write(call, f"grad_direction.{name}", value, grad)

    def _write(
        self,
        call: Call,
        leaf: str,
        value: Tensor | None,
        of: Tensor,
        backward: int = -1,
        *,
        why: Status = "unsupported",
    ) -> None:
        """Write the row of a quantity, or why there is none."""
        where: Where = ("state", leaf, "forward")
        if value is None:
            self.absent(call, where, Facts.of(of), why, backward)
        else:
            super().tensor(call, where, value, backward)


class SummingAndMeasuring(Measuring, Summing):
    """Writes checksums too."""


def _spelled(where: tuple[Any, ...]) -> str:
    """Name the row that a quantity belongs to: `output.0`, `optimizer.param.weight`."""
    way = f"{where[2]}." if len(where) > _MATRIX and where[0] != "state" else ""
    return f"{way}{where[0]}.{where[1]}"
