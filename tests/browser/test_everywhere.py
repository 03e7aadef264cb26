"""Wherever it is shown: several on a page, several views of one, and pages with the rules and themes of others.

VS Code and Colab cannot run here. Their pages are emulated: the policy that VS Code's notebook page declares, and the
variables that both set on it.
"""

from __future__ import annotations

import gzip
import re

import pytest
from playwright.sync_api import expect

from probe_nb.view import BUNDLE
from probe_nb.view.inspector import Inspector
from tests.browser.mounting import update
from tests.unit.view.make_runs import Book, hundred_layers, info

SVG_NAMES = "http://www.w3.org/2000/svg"  # a name of SVG's elements, which nobody fetches
WEBVIEW = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' blob:; style-src 'self' 'unsafe-inline';"
    " img-src 'self' https: http: data:; font-src 'self' https:; connect-src https:"
)
"""As VS Code declares it, without `unsafe-eval`; anywidget loads every front end from a blob."""

VSCODE = {
    "dark": ("#1f1f1f", "#cccccc", "#9d9d9d"),
    "light": ("#ffffff", "#3b3b3b", "#3b3b3b"),
}
"""Background, text and description of VS Code's own themes, "Dark Modern" and "Light Modern"."""


def bundle():
    return BUNDLE.read_text(encoding="utf-8")


def test_the_bundle_names_no_address_and_makes_no_code_from_text():
    text = bundle().replace(SVG_NAMES, "")
    assert re.findall(r"\b(?:https?|wss?)://[^\s\"'`]*", text) == []
    makes_code = r"\beval\(|new Function\b|\bimportScripts\b|\bdocument\.write\b"
    assert re.findall(makes_code, text) == []
    asks = r"\bfetch\(|XMLHttpRequest|WebSocket\(|EventSource|sendBeacon|\bimport\("
    assert re.findall(asks, text) == []


def test_the_bundle_is_small():
    assert len(gzip.compress(BUNDLE.read_bytes())) <= 60_000


def chosen(view):
    return view.locator("[role=row][aria-selected=true] .module")


def grown(steps):
    """A run that still goes on, with a widget over it."""
    book = Book(info=info(ended="open", modules=2))
    for step in range(steps):
        add(book, step)
    run = book.run()
    return book, Inspector(run)


def add(book, step):
    for layer in range(3):
        book.add(f"layer.{layer}", [1.0 + step, 2.0], step=step)
    book.flush()


def test_two_inspectors_with_two_views_each_keep_what_is_theirs(mounted):
    _, first = grown(2)
    book, second = grown(3)
    page = mounted(first, second, views=2)
    views = page.locator(".pnb")
    expect(views).to_have_count(4)
    views.nth(0).locator("[role=row]").filter(has_text="layer.2").click()
    expect(chosen(views.nth(0))).to_have_text("layer.2")
    for other in (1, 2, 3):
        expect(chosen(views.nth(other))).not_to_have_text("layer.2")
    add(book, 3)
    second.refresh()
    update(page, second, model=1)
    for at, step in enumerate((1, 1, 3, 3)):
        expect(views.nth(at).locator(".top .facts")).to_contain_text(f"step {step}")


def test_a_view_that_is_closed_leaves_nothing_and_the_other_one_goes_on(mounted):
    book, widget = grown(2)
    page = mounted(widget, views=2)
    both = page.evaluate("window.models[0].listeners()")
    page.evaluate("window.ends[0]()")
    assert page.evaluate("window.models[0].listeners()") == both / 2
    add(book, 2)
    widget.refresh()
    update(page, widget)
    expect(page.locator(".pnb")).to_have_count(1)
    expect(page.locator(".top .facts")).to_contain_text("step 2")
    page.evaluate("window.ends[1]()")
    assert page.evaluate("window.models[0].listeners()") == 0
    assert page.evaluate("document.querySelector('main').innerText.trim()") == ""


COLOURS = """view => {
    const hex = (colour) => "#" + colour.match(/\\d+/g).slice(0, 3)
        .map((part) => Number(part).toString(16).padStart(2, "0")).join("");
    const soft = getComputedStyle(view.querySelector(".counter")).color;
    const { backgroundColor, color } = getComputedStyle(view);
    return [backgroundColor, color, soft].map(hex);
}"""


@pytest.mark.parametrize("theme", VSCODE)
def test_on_a_page_like_that_of_vs_code_it_has_the_editors_colours(mounted, theme):
    background, text, description = VSCODE[theme]
    names = ("editor-background", "editor-foreground", "descriptionForeground")
    colours = ";".join(
        f"--vscode-{name}: {value}" for name, value in zip(names, VSCODE[theme], strict=True)
    )
    # its page also sets JupyterLab's variables, in their light version, and puts white behind every widget
    style = f":root {{ {colours}; --jp-layout-color0: white; --jp-content-font-color1: black }}"
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{WEBVIEW}">'
        f"<style>{style} main {{ background: white }}</style>"
    )
    page = mounted(Inspector(hundred_layers(bad=50)), head=head)
    view = page.locator(".pnb")
    expect(view).to_have_attribute("data-theme", theme)
    assert view.evaluate(COLOURS) == [background, text, description]
    expect(view.locator(".headline")).to_contain_text("layers.50")


@pytest.mark.parametrize(("theme", "surface"), [("dark", "#383838"), ("light", "#ffffff")])
def test_on_a_page_like_that_of_colab_it_stands_on_its_surface(mounted, theme, surface):
    style = f"<style>:root {{ --colab-primary-surface-color: {surface} }}</style>"
    page = mounted(Inspector(hundred_layers(bad=50)), head=style)
    view = page.locator(".pnb")
    expect(view).to_have_attribute("data-theme", theme)
    background, text, soft = view.evaluate(COLOURS)
    assert background == surface
    assert contrast(background, text) > 7
    assert contrast(background, soft) > 4.5


def contrast(one, other):
    """Return the contrast ratio of two colours, as the accessibility guidelines define it."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour):
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
