"""Draw the pictures of `docs/plots.md`: a small network whose activations outgrow float16.

From the root of the repository: `python -m docs.images.plots`.
"""

# ruff: noqa: INP001 - a script, not a package

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from PIL import Image
from torch import Tensor, nn

import probe_nb as probe

STEPS = 60
DOTS = 90
COLOURS = 200


class Block(nn.Module):
    """Adds to what it is given, so that what grows goes on growing."""

    def __init__(self, width: int) -> None:
        """Make its two layers."""
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.act = nn.ReLU()
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        return x + self.down(self.act(self.up(x)))


class Net(nn.Module):
    """Five blocks, and a layer that nobody calls."""

    def __init__(self, width: int = 24) -> None:
        """Make its layers."""
        super().__init__()
        self.inlet = nn.Linear(8, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(5))
        self.head = nn.Linear(width, 1)
        self.unused = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return one number per row."""
        x = self.inlet(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train() -> probe.Run:
    """Train towards numbers that float16 does not have."""
    torch.manual_seed(0)
    model = Net()
    model.inlet.bias.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with probe.watch(model, optimizer=optimizer) as run:
        for _ in range(STEPS):
            x = torch.randn(64, 8)
            with torch.autocast("cpu", dtype=torch.float16):
                y = model(x)
            loss = nn.functional.l1_loss(y.float(), 3e6 * x[:, :1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return run


def draw(run: probe.Run) -> dict[str, Axes]:
    """Draw every plot once, in the style in force."""
    plot = run.plot
    return {
        "histogram": plot.histogram("head"),
        "trend": plot.trend(["inlet", "blocks.?", "head"]),
        "heatmap": plot.heatmap(),
        "histograms": plot.histograms("head"),
        "gradient-flow": plot.gradient_flow(10),
        "update-ratios": plot.update_ratios(leaf="weight"),
    }


def save(ax: Axes, target: Path) -> None:
    """Write a picture with few colours, so that it is small."""
    ax.figure.savefig(target, dpi=DOTS)
    with Image.open(target) as picture:
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(target, optimize=True)


if __name__ == "__main__":
    mpl.use("Agg")
    found = train()
    for name, ax in draw(found).items():
        save(ax, Path(__file__).parent / f"plot-{name}.png")
    plt.close("all")
    with plt.style.context("dark_background"):
        save(draw(found)["heatmap"], Path(__file__).parent / "plot-heatmap-dark.png")
