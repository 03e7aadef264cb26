"""Take the pictures of two runs in the inspector: light, dark and narrow.

From the root of the repository: `python -m docs.images.comparing`. It needs Chromium.
"""

# ruff: noqa: INP001 - a script, not a package

from __future__ import annotations

import copy
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from PIL import Image
from torch import nn

import probe_nb as probe
from tests.browser.harness import open_page

HERE = Path(__file__).parent
PICTURES = (("light", False, 1300), ("dark", True, 1300), ("narrow", False, 700))


class Block(nn.Module):
    """A feed-forward block with a residual."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(size), nn.Linear(size, 2 * size)
        self.act, self.down = nn.GELU(), nn.Linear(2 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what the block makes of `x`."""
        return x + self.down(self.act(self.up(self.norm(x))))


def parted() -> probe.Comparison:
    """Compare two trainings: the second has a wrong epsilon, and a module more."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(32) for _ in range(4)), nn.Linear(32, 4))
    other = copy.deepcopy(model)
    other[1].norm.eps = 1e-3
    other[2].act = nn.Sequential(nn.GELU(), nn.Identity())
    runs = []
    for each in (model, other):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.05)
        generator = torch.Generator().manual_seed(1)
        with probe.watch(each, optimizer=optimizer, live=False) as run:
            for _ in range(12):
                optimizer.zero_grad()
                each(torch.randn(16, 32, generator=generator)).square().mean().backward()
                optimizer.step()
        runs.append(run)
    return probe.compare(*runs)


def main() -> None:
    """Write the pictures."""
    report = parted()._repr_mimebundle_()["text/html"]
    head = '<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
    with TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_text(f"{head}<body style='margin: 8px'>{report}", "utf-8")
        for name, dark, width in PICTURES:
            target = HERE / f"comparison-{name}.png"
            with open_page(dark=dark) as page:
                page.set_viewport_size({"width": width, "height": 800})
                page.goto(path.as_uri())
                page.get_by_role("grid").wait_for()
                page.wait_for_timeout(500)
                page.locator(".pnb").screenshot(path=target)
            with Image.open(target) as picture:
                small = picture.convert("RGB").quantize(128, dither=Image.Dither.NONE)
            small.save(target, optimize=True)


if __name__ == "__main__":
    main()
