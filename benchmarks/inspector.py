"""What the inspector costs the browser: `python -m benchmarks.inspector`, medians of a few rounds.

A page mounts the bundle on made-up frames, as a saved report does. Shown first: from mounting to
the second frame drawn. Live: what one update takes of the browser, and the longest task in it.
Scrolling: the longest time between two frames on the way through the whole table. Chromium without
a graphics card paints in software, so these are upper ends.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from probe_nb.view import BUNDLE, wire
from tests.browser.harness import open_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROUNDS: Final = 5
STEPS: Final = 64
SIZES: Final = (200, 2_000, 20_000)
BARS: Final = {200: 500, 2_000: 500, 20_000: 1500}
"""Milliseconds till a table of so many rows is shown."""

_PAGE: Final = """<!doctype html><meta charset=utf-8><style>body {{ margin: 0 }}</style><body>
<script type=module>
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const frames = {frames}.map((text) => new DataView(bytes(text).buffer));
const state = {{ sites: {sites}, status: {status}, frame: frames[0] }};
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


def main() -> None:
    """Measure, and print one table."""
    print(f"bundle: {len(gzip.compress(BUNDLE.read_bytes())) / 1000:.1f} kB gzipped (bar 60)\n")
    print("| rows | shown first, ms (bar) | live update, ms | longest task, ms | longest frame |")
    print("|---|---|---|---|---|")
    for rows in SIZES:
        print(_line(rows))


def _line(rows: int) -> str:
    with tempfile.TemporaryDirectory() as folder, open_page() as page:
        path = Path(folder) / "page.html"
        path.write_text(_page(rows), "utf-8")
        found = [_round(page, path) for _ in range(ROUNDS)]
    first, update, task, frame = (statistics.median(each) for each in zip(*found, strict=True))
    return f"| {rows:,} | {first:.0f} ({BARS[rows]}) | {update:.0f} | {task:.0f} | {frame:.0f} |"


def _round(page: Page, path: Path) -> tuple[float, float, float, float]:
    page.goto(path.as_uri())
    page.wait_for_function("window.bench", timeout=60_000)
    first = page.evaluate("bench.first")
    took, task = page.evaluate("bench.update(8)")
    return first, statistics.median(took), task, page.evaluate("bench.scroll(60)")


def _page(rows: int) -> str:
    return _PAGE.format(
        frames=json.dumps([base64.b64encode(_frame(rows, seed)).decode() for seed in (0, 1)]),
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
    spark = np.exp(rng.standard_normal((rows, STEPS)))
    columns = [table[name] for name in wire.COLUMNS]
    return wire.frame(columns, spark, sizes, bins, rng.integers(1, 999, len(bins)))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
