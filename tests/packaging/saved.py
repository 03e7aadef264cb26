"""What a run left behind, with what it must say, worked out by hand: `python saved.py FOLDER`.

`reads.py` reads it in an environment without torch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import probe_nb as probe
from probe_nb import Run


class Scale(nn.Module):
    """Times a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def recorded(factor: float, *, infinite: bool = False) -> Run:
    """Record two steps: rows of ones through weights -1.5, -1.25, ... 1.25, then times a factor."""
    linear = nn.Linear(4, 3, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.arange(-6.0, 6.0).reshape(3, 4) / 4)
    model = nn.Sequential(linear, Scale(factor))
    with probe.watch(model, live=False, keep="0") as run:
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            run.step()
        if infinite:
            model(torch.full((2, 4), torch.inf))
    return run


def main(folder: Path) -> None:
    """Write two runs, a third with infinities, and the dump of the first."""
    first = recorded(1.0)
    first.save(folder / "first.parquet")
    recorded(2.0).save(folder / "second.parquet")
    recorded(1.0, infinite=True).save(folder / "infinite.parquet")
    first.write_dump(folder / "dump", task="statistics")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
