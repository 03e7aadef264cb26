"""What a fused summary costs against the three operators that give a range, a sum and a norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from benchmarks.table import Row
from benchmarks.timing import Ratio, Stopwatch, between, ratio
from probe_nb.stats.summary import Reducer

_LARGE: Final = 4_000_000
_SMALL: Final = 1000
_SMALL_RUNS: Final = 500
_LARGE_BAR: Final = 2.3
_SMALL_BAR: Final = 1.0


def rows(rounds: int, watch: Stopwatch) -> list[Row]:
    """Measure large and small tensors, the drain included."""
    torch.set_num_threads(1)
    normal = torch.randn(_LARGE, generator=torch.Generator().manual_seed(0))
    zeros = torch.where(normal > 0, normal, 0.0)
    out = torch.empty_like(normal)
    against = "against `aminmax`, `sum` and `vector_norm`"
    summaries = [
        Row(f"summary with exact histogram, {what}, {against}", _ratio(x, runs, rounds, watch), bar)
        for what, x, runs, bar in (
            ("4M normal", normal, 2, _LARGE_BAR),
            ("4M half zeros", zeros, 2, _LARGE_BAR),
            ("1,000 elements", normal[:_SMALL].clone(), _SMALL_RUNS, _SMALL_BAR),
        )
    ]
    copied = _ratio(normal, 2, rounds, watch, out.copy_)
    return [*summaries, Row("summary with exact histogram, 4M normal, against a copy", copied)]


def _three(x: Tensor) -> None:
    torch.aminmax(x)
    x.sum()
    torch.linalg.vector_norm(x)


def _ratio(
    x: Tensor,
    runs: int,
    rounds: int,
    watch: Stopwatch,
    other: Callable[[Tensor], object] = _three,
) -> Ratio:
    reducer = Reducer()

    def ours() -> None:
        for _ in range(runs):
            reducer.see(x, once=False)
        reducer.drain()

    def theirs() -> None:
        for _ in range(runs):
            other(x)

    ours()
    theirs()
    times = [watch.per_run(act, 1) for act in (theirs, ours) * rounds] + [watch.per_run(theirs, 1)]
    return ratio(between(times[::2], times[1::2]))
