"""The inspector as a live widget, without Jupyter: the same bundle on a page of its own, on the traits of a real widget.

A tenth of the time of a notebook, and the page is ours: its policy, its theme, its listeners. What Jupyter itself adds
(trust, sanitising, shortcuts of the notebook, messages) is tested in Jupyter.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from probe_nb.view import BUNDLE

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>mounted</title>
<meta name="color-scheme" content="light dark">{head}
</head><body><main></main><script type="module">
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const value = ([kind, text]) => (kind === "bytes" ? new DataView(bytes(text).buffer) : text);
// what a notebook hears: Notebook 7 asks before us and skips what carries the attribute, JupyterLab asks after us
window.heard = [];
const hear = (event) => event.target.closest("[data-lm-suppress-shortcuts]") || window.heard.push(event.key);
document.addEventListener("keydown", hear, {{ capture: true }});
document.addEventListener("keydown", hear);
window.models = {models}.map((traits) => {{
  const state = Object.fromEntries(Object.entries(traits).map(([name, of]) => [name, value(of)]));
  const heard = new Map();
  return {{
    sent: [],
    get: (name) => state[name],
    set: (name, of) => (state[name] = value(of)),
    send(message) {{ this.sent.push(message); }},
    on: (event, callback) => heard.set(event, (heard.get(event) ?? new Set()).add(callback)),
    off: (event, callback) => heard.get(event)?.delete(callback),
    tell: () => heard.forEach((callbacks) => callbacks.forEach((callback) => callback())),
    listeners: () => [...heard.values()].reduce((sum, callbacks) => sum + callbacks.size, 0),
  }};
}});
const code = new Blob([bytes("{code}")], {{ type: "text/javascript" }});
const {{ default: widget }} = await import(URL.createObjectURL(code));
window.mount = (model) => {{
  const el = document.createElement("div");
  document.querySelector("main").append(el);
  return widget.render({{ model, el }});
}};
const each = (model) => Array.from({{ length: {views} }}, () => window.mount(model));
window.ends = window.models.flatMap(each);
</script></body></html>"""


def traits(widget: Any) -> dict[str, tuple[str, str]]:
    """Return what a widget's traits hold, as the page reads it."""
    found = {}
    for name in widget.keys:
        value = getattr(widget, name)
        if name.startswith("_") or not isinstance(value, str | bytes):
            continue
        text = base64.b64encode(value).decode() if isinstance(value, bytes) else value
        found[name] = ("bytes" if isinstance(value, bytes) else "text", text)
    return found


def mount(page: Page, folder: Path, *widgets: Any, head: str = "", views: int = 1) -> Page:
    """Show widgets on a page of their own, each in as many views as asked for."""
    models = json.dumps([traits(widget) for widget in widgets]).replace("</", "<\\/")
    code = base64.b64encode(BUNDLE.read_bytes()).decode()
    path = folder / "mounted.html"
    text = _PAGE.format(head=head, models=models, code=code, views=views)
    path.write_text(text, "utf-8")
    page.goto(path.as_uri())
    page.wait_for_function("window.ends")
    return page


def drawn(page: Page) -> None:
    """Wait until the page has drawn what was asked of it: a scroll, a new size."""
    page.evaluate(
        "async () => { for (let k = 0; k < 3; k++) await new Promise(requestAnimationFrame); }"
    )


def update(page: Page, widget: Any, *, model: int = 0) -> None:
    """Tell the page what a widget's traits hold now, in one go, and wait until it is drawn."""
    page.evaluate(
        """async ([model, traits]) => {
            for (const [name, of] of Object.entries(traits)) window.models[model].set(name, of);
            window.models[model].tell();
            for (let k = 0; k < 2; k++) await new Promise(requestAnimationFrame);
        }""",
        [model, traits(widget)],
    )
