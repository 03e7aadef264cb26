"""What the live inspector costs the kernel: building a frame, four times a second."""

from __future__ import annotations

from typing import Final

import torch

import probe_nb
from benchmarks.models import batch, encoder, train
from benchmarks.table import Row
from benchmarks.timing import Stopwatch, ratio
from probe_nb.view.frame import FrameBuilder

_WIDTH: Final = 16
_LAYERS: Final = 33
_PER_SECOND: Final = 4
_BAR: Final = 0.01


def rows(rounds: int, watch: Stopwatch) -> list[Row]:
    """Measure the share of each second that frames take, every site having a new record."""
    torch.set_num_threads(1)
    model, x = encoder(_WIDTH, _LAYERS), batch(_WIDTH)
    shares = []
    with probe_nb.watch(model, live=False) as run:
        builder = FrameBuilder(run.columns, run.info, live=True)  # as the inspector does
        for _ in range(rounds + 1):
            train(model, x)
            run.step()
            shares.append(watch.per_run(builder.update, 1) * _PER_SECOND)
        sites = len(run.columns.tables.sites.values)
    what = f"live frames, {sites:,} rows, {_PER_SECOND} a second: share of the time"
    return [Row(what, ratio(shares[1:]), _BAR)]  # the first frame describes the sites
