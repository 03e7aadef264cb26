"""Take the pictures of the inspector's main states: healthy, a NaN, two runs, dark, narrow, static.

From the root of the repository: `python -m docs.images.states`, or with the names of some of them.
It needs Chromium, which `python tools/chromium.py` installs.
"""

# ruff: noqa: INP001 - a script, not a package

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from bs4 import BeautifulSoup
from PIL import Image
from torch import nn

import probe_nb as probe
from tests.browser.harness import open_page

HERE = Path(__file__).parent
HEAD = '<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
GITHUB = """<style>
body { font: 14px/1.5 system-ui, sans-serif; background: #fff; color: #1f2328; margin: 24px }
table { border-collapse: collapse } td, th { padding: 6px 13px; border: 1px solid #d1d9e0 }
</style>"""
"""What a page like GitHub's gives to tables; everything of ours is taken away."""


class Block(nn.Module):
    """A feed-forward block with a residual."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(size), nn.Linear(size, 2 * size)
        self.act, self.down = nn.GELU(), nn.Linear(2 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what the block makes of `x`."""
        return x + self.down(self.act(self.up(self.norm(x))))


class Softmax(nn.Module):
    """A softmax as one writes it first: beyond 88 the exponential of float32 is infinite."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return shares of one."""
        powers = x.exp()
        return powers / powers.sum(-1, keepdim=True)


def trained(model: nn.Module, steps: int = 40, outlier: int = -1) -> probe.Run:
    """Watch a training on random numbers; in one step one of them is far too large."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(1)
    keep = probe.Keep("*", roles="output")
    with probe.watch(model, optimizer=optimizer, live=False, stacks=True, keep=keep) as run:
        for step in range(steps):
            x = torch.randn(16, 32, generator=generator)
            x[3, 7] = 300.0 if step == outlier else x[3, 7]
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return run


def blocks(*last: nn.Module) -> nn.Sequential:
    """Return four blocks and a head, the same ones each time."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block(32) for _ in range(4)), *last, nn.Linear(32, 4))


def healthy() -> probe.Run:
    """Train without a fault."""
    return trained(blocks())


def nan() -> probe.Run:
    """Train until an outlier meets a softmax that cannot take it."""
    return trained(blocks(Softmax()), outlier=31)


def parted() -> probe.Comparison:
    """Compare two trainings: the second has a wrong epsilon, and a module more."""
    model = blocks()
    other = copy.deepcopy(model)
    other[1].norm.eps = 1e-3
    other[2].act = nn.Sequential(nn.GELU(), nn.Identity())
    return probe.compare(trained(model, 12), trained(other, 12))


STATES: dict[str, tuple[Callable[[], probe.Run | probe.Comparison], bool, int]] = {
    "healthy-light": (healthy, False, 1300),
    "healthy-dark": (healthy, True, 1300),
    "nan-light": (nan, False, 1300),
    "nan-dark": (nan, True, 1300),
    "nan-narrow": (nan, False, 640),
    "nan-static": (nan, False, 1300),
    "comparison-light": (parted, False, 1300),
    "comparison-dark": (parted, True, 1300),
    "comparison-narrow": (parted, False, 640),
}
"""What is shown, whether on a dark page, and how wide the page is."""


def plain(report: str) -> str:
    """Return what a page without scripts and styles leaves of a report."""
    soup = BeautifulSoup(report, "html.parser")
    for tag in soup.find_all(["script", "style", "span"]):
        if tag.name != "span" or tag.has_attr("data-code"):
            tag.decompose()
    for tag in soup.find_all(style=True):
        del tag["style"]
    return GITHUB + str(soup)


def main(names: list[str]) -> None:
    """Write the pictures."""
    reports: dict[Callable[[], probe.Run | probe.Comparison], str] = {}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        for name, (make, dark, width) in STATES.items():
            if names and name not in names:
                continue
            report = reports.get(make) or make()._repr_mimebundle_()["text/html"]
            reports[make] = report
            static = name.endswith("static")
            body = plain(report) if static else report
            path.write_text(f"{HEAD}<body style='margin: 8px'>{body}", "utf-8")
            take(path, HERE / f"{name}.png", dark=dark, width=width, static=static)


def take(path: Path, target: Path, *, dark: bool, width: int, static: bool) -> None:
    """Open a page and write a picture of the report on it."""
    with open_page(dark=dark) as page:
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(path.as_uri())
        if static:
            page.screenshot(path=target)
        else:
            page.locator(".table").wait_for()
            page.wait_for_timeout(500)
            page.locator(".pnb").screenshot(path=target)
    with Image.open(target) as picture:
        small = picture.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    small.save(target, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
