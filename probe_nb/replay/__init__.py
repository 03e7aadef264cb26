"""A module or function run again on kept inputs, in float64 on the CPU: is an answer within bounds?

`fed` puts together what it was given, `owned` what it had, `copies` makes a copy of it, `running`
calls that copy, in the mode of `wide`, `measured` compares, `result` says what came out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from probe_nb.analysis.compare.rounding import lowest
from probe_nb.errors import SelectionError
from probe_nb.observe.aside import aside
from probe_nb.progress import progress
from probe_nb.replay.result import Replay, told
from probe_nb.replay.side import RUNS, Part, Records, Wish
from probe_nb.store.kept import Kept, of_call
from probe_nb.ungraded import ungraded

__all__ = ["Replay", "Where", "replay"]


class Where(NamedTuple):
    """A run, the path of a module there, and which process of several; None for any."""

    run: Records
    path: str | None
    rank: int | None = None


def replay(
    runs: Mapping[str, Where],
    of: Any,
    *,
    api: str | None,
    inputs: Mapping[str, Any] | None,
    state: Mapping[str, Any] | None,
    tolerance: float | str,
    **where: Any,
) -> Replay:
    """Replay one call of each run, as `Run.replay` says.

    Args:
        runs: What each is called -> the run, and the place in it.
        of: The model, the module, or a function.
        api: The name of a function.
        inputs: Arguments that go before what was recorded.
        state: Parameters and buffers.
        tolerance: As `compare` takes it.
        **where: `step`, `micro_step`, `call`, `model`.
    """
    lowest(tolerance)
    _check(runs, of, api)
    wish = Wish(of, dict(inputs or {}), state, tolerance)
    bar = progress("Replaying", RUNS * len(runs))
    calls = _calls(runs, api, where)
    with bar as told_of, aside(), torch._C._InferenceMode(False):  # noqa: SLF001 - in one instruction
        parts = [Part(name, runs[name].run, call, wish, told_of) for name, call in calls.items()]
        places = [(part.at.module, part.kind) for part in parts]
        sides = [ungraded(part.make, places) for part in parts]
    at = parts[0].at
    about = {name: getattr(at, name) for name in ("model", "module", "api", "step", "call")}
    return told(sides, about | {"micro_step": at.micro_step, "type": parts[0].kind})


def _check(runs: Mapping[str, Where], of: Any, api: str | None) -> None:
    for each in runs.values():
        if each.path is not None and not isinstance(each.path, str):
            raise SelectionError(
                "Give the path of the module first, then the model: `run.replay('fc1', model)`; "
                "that of the model itself is '(root)'."
            )
    if of is None and api is None:
        raise SelectionError(
            "A run has no modules, only their paths: give the model that was watched, or the "
            "module itself, as in `run.replay('fc1', model)`."
        )


def _calls(
    runs: Mapping[str, Where], api: str | None, where: Mapping[str, Any]
) -> dict[str, list[Kept]]:
    """Return what was kept of the same call in each run: of the newest step that all have."""

    def found(name: str, **at: Any) -> list[Kept]:
        run, path, rank = runs[name]
        return of_call(run.tensors.known(), path, api=api, rank=rank, **{**where, **at})

    calls = {name: found(name) for name in runs}
    step = min(call[0].step for call in calls.values())
    if all(call[0].step == step for call in calls.values()):
        return calls
    return {name: found(name, step=step) for name in runs}
