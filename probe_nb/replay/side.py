"""One run's part of a replay: its inputs, the truth for these, and its results beside that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import pandas as pd
import torch
from torch import Tensor, nn

from probe_nb.analysis.compare.rounding import UNITS, lowest
from probe_nb.analysis.words import plural
from probe_nb.errors import SelectionError
from probe_nb.progress import Told
from probe_nb.replay import fed
from probe_nb.replay.copies import again, wide_copy
from probe_nb.replay.functions import function_named
from probe_nb.replay.measured import amplified, judged, unknown
from probe_nb.replay.owned import Owned, module_at
from probe_nb.replay.result import Side
from probe_nb.replay.running import Replayed, Task
from probe_nb.replay.wide import Noise, Unanswerable, widened
from probe_nb.store.keeping import Tensors
from probe_nb.store.kept import Kept
from probe_nb.store.values import Values
from probe_nb.terms import RunInfo

DRAWS: Final = 6
"""Replays with noise, and as many with inputs that are off by a rounding."""

_SEEDS: Final = (1, 2)
RUNS: Final = len(_SEEDS) + 2 * DRAWS
"""How often a call is replayed."""

_SINGLE: Final = UNITS["float32"]


class Records(Protocol):
    """What is asked of a run."""

    info: RunInfo
    tensors: Tensors
    value_table: Values

    def frame(self, **filters: Any) -> pd.DataFrame:
        """Return rows."""


@dataclass(frozen=True)
class Wish:
    """What the user asked for.

    Attributes:
        of: The model, the module, or a function.
        inputs: Arguments that go before what was recorded, by leaf.
        state: Parameters and buffers that go before those of the module, None for those.
        tolerance: As `compare` takes it.
    """

    of: Any
    inputs: Mapping[str, Any]
    state: Mapping[str, Any] | None
    tolerance: float | str


class Part:
    """One run's part, while it is made."""

    def __init__(
        self, name: str, run: Records, call: Sequence[Kept], wish: Wish, told: Told
    ) -> None:
        """Begin with what was kept of the call; `told` hears of each replay."""
        self._told = told
        self.side = Side(name)
        self._wish = wish
        self.at = next(each for each in call if each.role == "input" and each.data is not None)
        self._call = call
        if run.info.config.get("slices"):
            raise SelectionError("Parts of the tensors were kept (`slices=`): a replay needs all.")
        rows = run.frame(step=self.at.step)
        self.rows = rows if self.at.rank < 0 else rows[rows["rank"] == self.at.rank]
        rows = self.rows[self.rows["direction"] == "forward"]
        same = (rows["model"] == self.at.model) & (rows["module"] == self.at.module)
        same &= (rows["api"] == self.at.api) & rows["role"].isin(("input", "output"))
        same &= (rows["call"] == self.at.call) & (rows["micro_step"] == self.at.micro_step)
        self._own = rows[same]
        self.kind = str(self._own["type"].iloc[0]) if len(self._own) else self.at.type
        self._owned = Owned(self.rows, run.tensors.known(), self.at)
        self._arguments = fed.arguments(call, run.value_table, wish.inputs)
        self._places: Sequence[tuple[str, str]] = ()
        self._knows_values = len(run.value_table) > 0
        coarsest = _coarsest([each.dtype for each in self._inputs()])
        self._moved_by = max(coarsest, _SINGLE) if coarsest else 0.0

    def make(self, places: Sequence[tuple[str, str]]) -> Side:
        """Replay, and measure what the run has beside that.

        Args:
            places: The path and the class of the module, in each run.
        """
        self._places = places
        kept = self._compared()
        try:
            replays = self._replays()
        except Unanswerable as error:
            self.side.why_not = str(error)
            self.side.rows = [self._about(key, kept) | unknown(str(error)) for key in kept]
            return self.side
        results = replays[0].results
        self.side.truths = {k: v for k, v in results.items() if k[0] == "output" or k in kept}
        self.side.rows = [self._row(k, kept, *replays) for k in {**self.side.truths, **kept}]
        if not any(role == "output" for role, _ in kept):
            self.side.why_not = (
                "no output of it was kept (`probe.Keep(…, roles='input, output')` keeps it)"
            )
        return self.side

    def _compared(self) -> dict[tuple[str, str], Kept]:
        """Return what is compared with the truth: outputs, and gradients of the first backward."""
        found: dict[tuple[str, str], Kept] = {}
        for each in self._call:
            if each.role in ("output", "grad_input") and each.data is not None:
                found.setdefault((each.role, each.leaf), each)
        return found

    def _row(
        self,
        key: tuple[str, str],
        compared: Mapping[tuple[str, str], Kept],
        truth: Replayed,
        draws: Sequence[Replayed],
        moved: Sequence[Replayed],
    ) -> dict[str, Any]:
        kept, exact, about = compared.get(key), truth.results.get(key), self._about(key, compared)
        if exact is None:
            return about | unknown("float64 gave no such tensor")
        about["amplification"] = amplified(exact, _of(moved, key), self._moved_by)
        if kept is None:
            return about | unknown("it was not kept")
        factor, _ = lowest(self._wish.tolerance)
        return about | judged(fed.tensor_of(kept), exact, _of(draws, key), factor)

    def _about(
        self, key: tuple[str, str], compared: Mapping[tuple[str, str], Kept]
    ) -> dict[str, Any]:
        kept, rows = compared.get(key), self._own[self._own["role"] == "output"]
        return {
            "run": self.side.name,
            "role": key[0],
            "leaf": key[1],
            "dtype": pd.NA if kept is None else kept.dtype,
            "shape": pd.NA if kept is None else kept.shape,
            "device": str(rows["device"].iloc[0]) if len(rows) else pd.NA,
            "amplification": float("nan"),
        }

    # -- the replays ----------------------------------------------------------------------------

    def _replays(self) -> tuple[Replayed, list[Replayed], list[Replayed]]:
        """Return the truth, replays with noise, and those with inputs that are off by a rounding.

        Raises:
            Unanswerable: There is no truth to be had.
        """
        task = self._task()
        truth, other = (self._run(task, seed) for seed in _SEEDS)
        if not _equal(truth, other):
            raise Unanswerable(_random(truth.drawn))
        unit, narrowed = self._unit(task.called)
        noises = [Noise(unit, seed, narrowed=narrowed) for seed in range(DRAWS)]
        draws = [self._run(task, _SEEDS[0], noise) for noise in noises]
        return truth, draws, self._moved(task)

    def _moved(self, task: Task) -> list[Replayed]:
        """Return what inputs give that are off by a rounding; nothing if they are refused."""
        if not self._moved_by:
            return []
        directions = [Noise(self._moved_by, seed, narrowed=False) for seed in range(DRAWS)]
        changes = [partial(each.off, size=self._moved_by) for each in directions]
        try:
            return [self._run(task, _SEEDS[0], change=each) for each in changes]
        except Unanswerable:  # a probability must not be above 1
            return []

    def _run(self, task: Task, seed: int, noise: Noise | None = None, **change: Any) -> Replayed:
        found = task.run(seed, noise, **change)
        self._told(1)
        return found

    def _inputs(self) -> list[Kept]:
        return [each for each in self._call if each.role == "input"]

    def _task(self) -> Task:
        """Return what is replayed.

        Raises:
            Unanswerable: There is no truth to be had.
            SelectionError: Something that is needed was not recorded.
        """
        called = self._function() if self.at.api else self._module()
        forward = called.forward if isinstance(called, nn.Module) else called
        left = fed.left_to_defaults(forward, self._arguments)
        if left and not self._knows_values:
            self.side.notices.append(
                f"{', '.join(left)} left to the default: `watch(values=True)` records arguments "
                "that are no tensors"
            )
        gradients, wanted = self._gradients()
        task = Task(called, self._arguments, gradients, wanted)
        if isinstance(called, nn.Module):
            self._check_buffers(task, called)
        return task

    def _function(self) -> Callable[..., Any]:
        of = self._wish.of
        if of is not None and not callable(of):
            raise SelectionError(f"`of` must be the function `{self.at.api}`, got {of!r}.")
        return function_named(self.at.api) if of is None else of

    def _module(self) -> nn.Module:
        module = module_at(self._wish.of, self._places)
        copy, left = wide_copy(module)
        if left:
            many = plural(left, "hook")
            self.side.notices.append(f"{many} of yours on it stayed behind and did not run")
        self.side.notices += self._owned.put(copy, self._wish.state)
        self._owned.set_modes(copy, self.at.call, self.at.micro_step)
        other = self._owned.differing(copy, "param")
        if other:
            why = self._owned.misfit(copy)
            raise Unanswerable(why or _not_then("parameters", other, self.at.step))
        return copy

    def _check_buffers(self, task: Task, copy: nn.Module) -> None:
        """Refuse buffers that are not those of the step, where the result depends on them."""
        names = self._owned.differing(copy, "buffer")
        if not names:
            return
        changed = again(copy)
        for name in names:
            buffer = changed.get_buffer(name)
            buffer.copy_(buffer.logical_not() if buffer.dtype == torch.bool else buffer * 2 + 1)
        same = Task(changed, task.arguments, task.gradients, task.wanted)
        if not _equal(task.run(_SEEDS[0]), same.run(_SEEDS[0])):
            raise Unanswerable(_not_then("buffers", names, self.at.step))

    def _gradients(self) -> tuple[dict[str, Tensor], tuple[str, ...]]:
        """Return the gradients of the outputs, and the inputs whose gradients are compared."""
        first = min((e.backward for e in self._call if e.role == "grad_output"), default=0)
        arrived = {
            each.leaf: fed.tensor_of(each)
            for each in self._call
            if each.role == "grad_output" and each.backward == first and each.data is not None
        }
        wanted = tuple(e.leaf for e in self._call if e.role == "grad_input" and e.data is not None)
        if not arrived or not wanted:
            return {}, ()
        return {leaf: widened(each) for leaf, each in arrived.items()}, wanted

    def _unit(self, called: Any) -> tuple[float, bool]:
        """Return the coarsest rounding in the call, and whether it is coarser than what came in."""
        module = isinstance(called, nn.Module)
        came = [each.dtype for each in self._inputs()]
        if module:
            rows = self._owned.rows
            came += [str(d) for d in rows[rows["role"] == "param"]["dtype"].unique()]
        went = [each.dtype for each in self._call if each.role == "output"]
        if module:
            went += self._owned.formats(self.at.call, self.at.micro_step)
        before, after = _coarsest(came), _coarsest(went)
        _, least = lowest(self._wish.tolerance)
        unit = max(before, after, least) or _SINGLE
        return unit, max(after, least) > before > 0


def _coarsest(dtypes: Sequence[str]) -> float:
    return max((UNITS.get(each, 0.0) for each in dtypes), default=0.0)


def _of(replays: Sequence[Replayed], key: tuple[str, str]) -> list[Tensor]:
    return [each.results[key] for each in replays if key in each.results]


def _equal(one: Replayed, other: Replayed) -> bool:
    if one.results.keys() != other.results.keys():
        return False
    both = ((each, other.results[key]) for key, each in one.results.items())
    return all(a.shape == b.shape and _same(a, b) for a, b in both)


def _same(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | ((a != a) & (b != b))).all())  # noqa: PLR0124 - NaN is not itself


def _random(drawn: Sequence[str]) -> str:
    if drawn:
        return (
            f"it draws random numbers ({', '.join(drawn)}), which a replay cannot draw again; "
            "switch it off, by `eval()` for dropout, and record again"
        )
    return "two replays of it differ: it draws random numbers, or remembers what came before"


def _not_then(what: str, names: Sequence[str], step: int) -> str:
    few = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")  # noqa: PLR2004
    return (
        f"the {what} {few} are not those of step {step}; replay before they change, keep them "
        "(`probe.Keep(…, roles='input, output, param, buffer')`), or give `state=`"
    )
