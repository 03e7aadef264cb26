"""The report: one piece of HTML that carries its data and the inspector itself.

The plain table comes first. A script then unpacks the bundle of the live inspector and mounts it on
a stand-in for the widget's model; only when that has worked does the table hide. Where scripts or
blobs are forbidden, the table simply stays.

All that is embedded, the loader included, is base64 in attributes: no name of a module can end the
script, and a sanitiser that takes tags away but shows their text leaves one line behind.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import secrets
from collections.abc import Callable
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np
from numpy.typing import NDArray

from probe_nb.store.blocks import whole
from probe_nb.terms import printable
from probe_nb.view import BUNDLE, compare, html, moments, picture, text
from probe_nb.view.frame import FrameBuilder, reading, title
from probe_nb.view.rows import worst_first
from probe_nb.view.structure import structure_alone

if TYPE_CHECKING:
    from probe_nb.run import Run
    from probe_nb.view.comparing import Comparing

Rows = NDArray[np.intp]

LIMIT: Final = 200_000
"""Bytes that a report should stay under; rows are left out until it does."""

ROWS: Final = (300, 200, 100, 50, 20)
"""Rows to embed: the first number that fits."""

_LEAD: Final = 12
"""Rows before and after the headline's whose earlier steps are embedded first."""

HISTORY: Final = 24_000
"""Bytes kept free for the history of the worst rows."""

QUICK: Final = 250_000
"""Records that are read once more for the history, which takes as long as the first time."""

_OF_STEP: Final = 100
"""Records that take as long to read as a step of any size takes besides."""

LARGEST: Final = 2**26
"""Bytes of a kept tensor that is read at the end of a cell."""

_DENSE: Final = 8
"""Numbers become no smaller than this when they are packed: larger ones need not be tried."""

PICTURES: Final = 12_000
"""Bytes that pictures of kept tensors may take."""

_MOST: Final = 4
"""Kept tensors of which a picture is embedded."""

_AROUND: Final = 1_500
"""Bytes of what stands around all that."""

_LOADER: Final = """\
const inflate = async (base64) => {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
};
const mount = async (report) => {
  const [plain, data, host] = report.children;
  const code = await inflate(data.dataset.code);
  const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  const module = await import(url);
  URL.revokeObjectURL(url);
  const state = JSON.parse(new TextDecoder().decode(await inflate(data.dataset.state)));
  state.frame = new DataView(await inflate(data.dataset.frame));
  for (const name of ["history", "picture"]) {
    if (data.dataset[name]) state[name] = new DataView(await inflate(data.dataset[name]));
  }
  const nothing = () => {};
  const model = { get: (key) => state[key], set: nothing, save_changes: nothing, on: nothing,
    off: nothing };
  const widget = typeof module.default === "function" ? await module.default() : module.default;
  host.hidden = false;
  try {
    await widget.render({ model, el: host });
    plain.hidden = true;
  } catch (error) {
    host.hidden = true;
    throw error;
  }
};
for (const report of document.querySelectorAll('[data-probe-nb="@"]:not([data-mounted])')) {
  report.dataset.mounted = "";
  mount(report).catch((error) => console.warn("probe_nb: the plain table stays", error));
}
"""


_SCRIPT: Final = (
    "import(URL.createObjectURL(new Blob([atob(document.querySelector("
    "'[data-probe-nb=\"@\"]>span').dataset.load)],{type:'text/javascript'})))"
)


def bundle(run: Run) -> dict[str, str]:
    """Return the report for every kind of reader: `text/html` and `text/plain`."""
    with reading(run) as builder:
        return bundle_of(builder)


def html_page(run: Run) -> str:
    """Return the report as a whole HTML page, to write to a file or to send."""
    return page(bundle(run)["text/html"], title(run.info))


def page(report: str, name: str) -> str:
    """Return a report as a whole HTML page."""
    name = escape(printable(name) or "probe_nb")
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{name}</title>\n'
        '<meta name="color-scheme" content="light dark"></head>\n'
        f"<body>\n{report}</body>\n</html>\n"
    )


def write(text: str, path: str | os.PathLike[str]) -> Path:
    """Write a page whole or not at all, and return its path."""
    target = Path(path).expanduser()
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"There is no folder `{target.parent}` to write `{target.name}` into."
        )
    with whole(target) as file:
        file.write(text.encode())
    return target


def bundle_of(builder: FrameBuilder) -> dict[str, str]:
    """Return the report of a builder that has read its run."""
    if alone := structure_alone(builder):
        return {"text/html": alone._repr_html_(), "text/plain": text.lines_of(builder)}
    return {"text/html": fragment(builder), "text/plain": text.lines_of(builder)}


def fragment(builder: FrameBuilder) -> str:
    """Return the plain table and, if the front end was built and there is data, the inspector."""
    plain = html.static(builder)
    if not builder.tally.rows:
        return mounted(plain, None)
    worst = worst_first(builder)
    first = worst[np.argsort(builder.tally.latest["order"][worst], kind="stable")]
    return mounted(plain, builder, lambda limit: _chosen(worst, first, limit, "run.df"))


def compared(frames: Comparing) -> dict[str, str]:
    """Return the report of a comparison: the same table without scripts, the inspector over it."""
    of = frames.comparison
    worst, first = frames.worst_first(), np.arange(len(frames))
    whole = mounted(
        compare.html(of),
        frames if len(frames) else None,
        lambda limit: _chosen(worst, first, limit, "comparison.df"),
    )
    return {"text/html": whole, "text/plain": compare.text(of)}


def mounted(
    plain: str,
    source: FrameBuilder | Comparing | None,
    choose: Callable[[int], tuple[Rows, str | None]] = lambda _: (np.empty(0, np.intp), None),
) -> str:
    """Return plain HTML with the inspector over it, where there is anything to inspect.

    Args:
        plain: What stays where scripts do not run.
        source: What the inspector shows; None for nothing.
        choose: Gives rows for a limit, and says what is left out.
    """
    plain = f"<div>\n{plain}\n</div>"
    code = _code()
    if code is None or source is None:
        return f"<div>{plain}</div>\n"
    key = secrets.token_hex(6)
    load = base64.b64encode(_LOADER.replace("@", key).encode()).decode()
    packed = _embedded(source, choose, LIMIT - _AROUND - len(plain) - len(code) - len(load))
    names = {"load": load, "code": code, **packed}
    data = "".join(f' data-{name}="{text}"' for name, text in names.items())
    data = f"<span hidden{data}></span>"
    script = f'<script type="module">{_SCRIPT.replace("@", key)}</script>'
    return f'<div data-probe-nb="{key}">{plain}{data}<div hidden></div></div>\n{script}\n'


def _embedded(
    source: FrameBuilder | Comparing,
    choose: Callable[[int], tuple[Rows, str | None]],
    room: int,
) -> dict[str, str]:
    """Return state and frame of as many rows as fit, and their history if it does, packed."""
    kept = HISTORY if _has_history(source) else 0
    state, frame, rows = "", "", np.empty(0, np.intp)
    for limit in ROWS:
        rows, note = choose(limit)
        texts = {"sites": source.sites(rows), "status": source.status(rows, note)}
        state = _packed(json.dumps(texts).encode())
        frame = _packed(source.frame(rows))
        if len(state) + len(frame) <= room - kept:
            break
    room -= len(state) + len(frame)
    picture = _pictures(source, rows, min(room, PICTURES))
    history = _history(source, rows, room - len(picture)) if _has_history(source) else ""
    return {"state": state, "frame": frame, "history": history, "picture": picture}


def _pictures(source: FrameBuilder | Comparing, rows: Rows, room: int) -> str:
    """Return pictures of kept tensors: of the headline's row, of its module, of the worst rows."""
    if not isinstance(source, FrameBuilder) or source.tensors is None or not source.tensors.any:
        return ""
    culprit, module = source.verdict().site, source.tally.module
    sites, known = source.tally.columns.tables.sites.values, source.tensors.known()
    there = {picture.name(e) for e in known if e.data is not None and e.bytes <= LARGEST}
    kept = [row for row in worst_first(source).tolist() if picture.name(sites[row]) in there]
    if culprit is not None:
        kept.sort(key=lambda row: (row != culprit, module[row] != module[culprit]))
    places = {int(row): place for place, row in enumerate(rows)}
    found, data = "", b""
    for row in [row for row in kept if row in places][:_MOST]:
        data += source.picture(row, shown=places[row])
        if len(more := _packed(data)) > room:
            break
        found = more
    return found


def _has_history(source: FrameBuilder | Comparing) -> TypeGuard[FrameBuilder]:
    """Tell whether there are earlier moments that can be had at once."""
    if not isinstance(source, FrameBuilder):
        return False
    steps = len(source.tally.steps)
    return steps > 1 and source.tally.records + _OF_STEP * steps <= QUICK


def _history(builder: FrameBuilder, rows: Rows, room: int) -> str:
    """Return the moments of as many of these rows as fit; empty if few would.

    The first to have them are what ran around the headline's row, then the worst.
    """
    worst = worst_first(builder)
    worst = np.array(list(dict.fromkeys([*_around(builder, worst), *worst.tolist()])), np.intp)
    places = np.searchsorted(rows, worst[np.isin(worst, rows)])
    found = moments.moments(builder, rows, moments.FEW)
    for limit in ROWS:
        data = found.packed(np.sort(places[:limit]), np.arange(len(rows)))
        if len(data) <= _DENSE * room and len(packed := _packed(data)) <= room:
            return packed
    return ""


def _around(builder: FrameBuilder, rows: Rows) -> list[int]:
    """Return what ran just before and after the headline's row, and that row."""
    executed = rows[np.argsort(builder.tally.latest["order"][rows], kind="stable")]
    at = np.flatnonzero(executed == builder.verdict().site)
    begin, end = (max(0, int(at[0]) - _LEAD), int(at[0]) + _LEAD) if len(at) else (0, 0)
    return list(executed[begin:end].tolist())


def _chosen(worst: Rows, first: Rows, limit: int, whole: str) -> tuple[Rows, str | None]:
    """Return the rows to embed in execution order (half worst, half first), and what is missing."""
    if len(worst) <= limit:
        return np.sort(worst), None
    chosen = dict.fromkeys([*worst[: limit // 2].tolist(), *first.tolist()])
    rows = np.sort(np.array(list(chosen)[:limit], np.intp))
    shown = f"{limit:,} of {len(worst):,} rows are shown, the worst and the first ones"
    return rows, f"{shown}; all are in {whole}"


def _packed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def _code() -> str | None:
    """Return the front end, packed; None if it was not built."""
    try:
        return _packed_file(BUNDLE.stat().st_mtime_ns)
    except OSError:
        return None


@lru_cache(maxsize=1)
def _packed_file(_changed: int) -> str:
    return _packed(BUNDLE.read_bytes())


def line(builder: FrameBuilder) -> dict[str, Any]:
    """Return the headline alone, for a place that another report took over from."""
    found = builder.verdict()
    return sentence(f"{html.SIGNS[found.kind]} {found.sentence}")


def sentence(said: str) -> dict[str, str]:
    """Return one sentence for every kind of reader."""
    said = printable(said)
    return {"text/html": f"<p>{escape(said)}</p>", "text/plain": said}
