"""What the inspector costs: `python -m benchmarks.inspector`, medians of a few rounds.

In the browser a page mounts the bundle on made-up frames, as a saved report does. Shown first: from
mounting to the second frame drawn. Live: what one update takes from the message to the second frame
drawn, and the longest task in it. Scrolling: the longest time between two frames on the way through
the whole table. Chromium without a graphics card paints in software, so these are upper ends.

In the kernel: what one update takes of the cell that trains (`benchmarks.in_kernel`). `--write`
keeps the page in `results/inspector.md`; measure on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import gzip
import json
import statistics
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks import in_kernel
from benchmarks.report import machine
from probe_nb.analysis.window import WINDOW
from probe_nb.view import BUNDLE, wire
from tests.browser.harness import open_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROUNDS: Final = 5
SIZES: Final = (200, 2_000, 20_000)
BARS: Final = {200: 500, 2_000: 500, 20_000: 1500}
"""Milliseconds till a table of so many rows is shown."""

SMOOTH: Final = 50
"""Milliseconds that no task and no frame should take: more is felt."""

KERNEL_BAR: Final = 2
"""Milliseconds that an update of 2,000 rows may take of the cell that trains."""

RESULT: Final = Path(__file__).parent / "results" / "inspector.md"

_PAGE: Final = """<!doctype html><meta charset=utf-8><style>body {{ margin: 0 }}</style><body>
<script type=module>
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const frames = {frames}.map((text) => new DataView(bytes(text).buffer));
const trend = new DataView(bytes("{trend}").buffer);
const state = {{ sites: {sites}, status: {status}, frame: frames[0], trend }};
const heard = [];
const model = {{ get: (k) => state[k], on: (_, f) => heard.push(f), off() {{}} }};
const code = new Blob([new TextDecoder().decode(bytes("{code}"))], {{ type: "text/javascript" }});
const {{ default: widget }} = await import(URL.createObjectURL(code));
const el = document.createElement("div");
document.body.append(el);
const drawn = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
const begin = performance.now();
widget.render({{ model, el }});
const mounting = performance.now() - begin;
await drawn();
const first = performance.now() - begin;
const tasks = [];
new PerformanceObserver((list) => tasks.push(...list.getEntries().map((e) => e.duration)))
  .observe({{ type: "longtask" }});
const grid = el.firstChild.shadowRoot.querySelector("[role=grid]");
const update = async (n) => {{
  const took = [];
  tasks.length = 0;
  for (let k = 1; k <= n; k++) {{
    state.frame = frames[k % 2];
    const at = performance.now();
    for (const f of heard) f();
    await drawn();
    took.push(performance.now() - at);
    await new Promise((done) => setTimeout(done, 60));
  }}
  return [took, Math.max(0, ...tasks)];
}};
const scroll = async (n) => {{
  const gaps = [];
  let before = performance.now();
  for (let k = 0; k <= n; k++) {{
    grid.scrollTop = (grid.scrollHeight * k) / n;
    await new Promise(requestAnimationFrame);
    gaps.push(performance.now() - before);
    before = performance.now();
  }}
  return Math.max(...gaps.slice(2));
}};
window.bench = {{ first, mounting, update, scroll }};
</script>"""


def main(words: list[str] | None = None) -> None:
    """Measure, and print one page; `--write` keeps it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inspector")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each row")
    parser.add_argument("--write", action="store_true", help="keep the page in results/")
    given = parser.parse_args(words)
    text = _measured(given.rounds)
    print(text)
    if given.write:
        RESULT.write_text(text, "utf-8")


def _measured(rounds: int) -> str:
    lines = [
        "# What the inspector costs",
        _taken_with(rounds),
        _in_kernel(rounds),
        f"Bundle: {len(gzip.compress(BUNDLE.read_bytes())) / 1000:.1f} kB gzipped (bar 60).",
        "\n".join([_HEADS, *(_line(rows, rounds) for rows in SIZES)]),
    ]
    return "\n\n".join(lines) + "\n"


def _taken_with(rounds: int) -> str:
    day = datetime.now(tz=timezone.utc).date()
    return (
        f"{day}; {machine()}, Chromium without a graphics card; medians of {rounds} rounds "
        "(lowest to highest); `python -m benchmarks.inspector --write`."
    )


_COLUMNS: Final = (
    "rows",
    "first shown, ms",
    "bar",
    "live update to screen, ms",
    "longest task in it, ms",
    "bar",
    "longest frame while scrolling, ms",
    "bar",
)
_HEADS: Final = f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}"


def _in_kernel(rounds: int) -> str:
    rows, took = in_kernel.updates(5 * rounds)
    return (
        f"A live update of {rows:,} rows in the kernel: {_several(took, 2)} ms (bar {KERNEL_BAR})."
    )


def _line(rows: int, rounds: int) -> str:
    with tempfile.TemporaryDirectory() as folder, open_page() as page:
        path = Path(folder) / "page.html"
        path.write_text(_page(rows), "utf-8")
        found = [_round(page, path) for _ in range(rounds)]
    first, update, task, frame = (_several(each) for each in zip(*found, strict=True))
    cells = (f"{rows:,}", first, BARS[rows], update, task, SMOOTH, frame, SMOOTH)
    return f"| {' | '.join(map(str, cells))} |"


def _several(values: Sequence[float], digits: int = 0) -> str:
    """Return the median of several, with the lowest and the highest."""
    ends = f"{min(values):.{digits}f} to {max(values):.{digits}f}"
    return f"{statistics.median(values):.{digits}f} ({ends})"


def _round(page: Page, path: Path) -> tuple[float, float, float, float]:
    page.goto(path.as_uri())
    page.wait_for_function("window.bench", timeout=60_000)
    first = page.evaluate("bench.first")
    took, task = page.evaluate("bench.update(8)")
    return first, statistics.median(took), task, page.evaluate("bench.scroll(60)")


def _page(rows: int) -> str:
    return _PAGE.format(
        frames=json.dumps([base64.b64encode(_frame(rows, seed)).decode() for seed in (0, 1)]),
        trend=base64.b64encode(_trend(rows)).decode(),
        sites=json.dumps(_sites(rows)),
        status=json.dumps(_status(rows)),
        code=base64.b64encode(BUNDLE.read_bytes()).decode(),
    )


def _sites(rows: int) -> str:
    roles = [("input", "forward"), ("output", "forward"), ("grad_output", "backward")]
    found = []
    for row in range(rows):
        role, direction = roles[row % 3]
        module = f"model.layers.{row // 24}.block.{row // 3 % 8}"
        about = ("model", module, "Linear", role, direction, "0")
        site: dict[str, Any] = dict(zip(wire.OF_SITE, about, strict=True))
        found.append(site | {"dtype": "bfloat16", "shape": [8, 512], "device": "cuda:0"})
    return wire.compact({"version": wire.VERSION, "rows": found})


def _status(rows: int) -> str:
    headline = {"kind": "bad", "text": "NaN first appeared", "detail": "", "row": rows // 2}
    about = {"title": "model", "open": True, "ended": "open", "headline": headline, "step": 9}
    return wire.compact({"version": wire.VERSION, **about, "spark": "absmax", "steps": 10})


def _frame(rows: int, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    table = {name: rng.standard_normal(rows) for name in wire.COLUMNS}
    table |= {"order": np.arange(rows), "step": np.full(rows, 9), "calls": np.ones(rows)}
    for name in wire.COLUMNS:
        if name.endswith("_count") or name in ("status", "badges", "first_bad_step"):
            table[name] = np.zeros(rows)
    table["badges"] = np.where(np.arange(rows) >= rows // 2, 1 + 256, 0)
    sizes = np.full(rows, 24)
    bins = np.tile(np.r_[112:124, 368:380], rows)
    columns = [table[name] for name in wire.COLUMNS]
    return wire.frame(columns, np.empty((rows, 0)), sizes, bins, rng.integers(1, 999, len(bins)))


def _trend(rows: int) -> bytes:
    rng = np.random.default_rng(rows)
    return wire.trend(np.arange(WINDOW), np.exp(rng.standard_normal((rows, WINDOW))))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
