"""Everything without a mouse: each control is reached, its focus is seen, it works, and the notebook hears nothing."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from probe_nb.view.inspector import Inspector
from tests.unit.view.make_runs import hundred_layers

MARK = """() => {
    const root = document.querySelector(".probe-nb-inspector").shadowRoot;
    const all = [...root.querySelectorAll("button, input, select, summary, a[href], [tabindex]")];
    const met = all.filter((e) => e.checkVisibility({ visibilityProperty: true }) && !e.disabled
        && e.getAttribute("tabindex") !== "-1");
    met.forEach((e, at) => e.setAttribute("data-stop", at));
    return met.map((e) => e.outerHTML.slice(0, 90));
}"""
"""Number whatever a mouse could use, and a key should."""

FOCUS = """() => {
    const root = document.querySelector(".probe-nb-inspector").shadowRoot;
    const on = root.activeElement;
    if (!on) return null;
    const { outlineStyle, outlineWidth } = getComputedStyle(on);
    const row = root.querySelector(".table:focus-visible [role=row][aria-selected=true]");
    const seen = (outlineStyle !== "none" && parseFloat(outlineWidth) >= 1)
        || (row !== null && parseFloat(getComputedStyle(row, "::after").borderTopWidth) >= 1);
    return [Number(on.dataset.stop ?? -1), seen];
}"""
"""Where the focus is, and whether one sees it."""


@pytest.fixture
def shown(mounted):
    run = hundred_layers(bad=50)
    run.info.ended = "open"
    page = mounted(Inspector(run))
    expect(selected(page)).to_be_visible()
    return page


@pytest.fixture
def press(shown):
    """Press keys in turn."""

    def pressed(*keys):
        for key in keys:
            shown.keyboard.press(key)

    return pressed


def selected(page):
    return page.locator("[role=row][aria-selected=true]")


def heard(page):
    """Return the keys that a notebook around it would have acted on."""
    return page.evaluate("window.heard")


def test_every_control_is_a_stop_of_the_tab_key_and_shows_that_it_is(shown, press):
    stops = shown.evaluate(MARK)
    assert len(stops) > 10
    found = []
    press("Tab")
    while (on := shown.evaluate(FOCUS)) is not None and len(found) <= len(stops):
        found.append(on)
        press("Tab")
    assert [at for at, _ in found] == list(range(len(stops))), stops
    assert [stops[at] for at, seen in found if not seen] == []
    press("Shift+Tab")  # and back in again: nothing is a trap
    assert shown.evaluate(FOCUS)[0] == len(stops) - 1


def test_the_list_is_walked_and_the_selection_stays_in_view(shown, press):
    shown.locator(".table").focus()
    press("Home")
    expect(selected(shown).locator(".module")).to_have_text("layers.0")
    press("ArrowDown", "ArrowDown")
    expect(selected(shown).locator(".module")).to_have_text("layers.1")
    press("End")
    expect(selected(shown).locator(".module")).to_have_text("layers.99")
    expect(selected(shown)).to_be_in_viewport()
    press("PageUp")
    expect(selected(shown)).to_be_in_viewport()
    expect(shown.locator(".table")).to_have_attribute(
        "aria-activedescendant", selected(shown).get_attribute("id")
    )
    assert heard(shown) == []


def test_search_filters_and_orders_work_by_keys(shown, press):
    table = shown.locator(".table")
    table.focus()
    press("/")
    shown.keyboard.type("layers.7 output")
    expect(table).to_have_attribute("aria-rowcount", "12")  # 7 and 70 to 79, and the heads
    press("Enter")
    assert shown.evaluate(FOCUS)[1]
    press("Escape")
    expect(table).to_have_attribute("aria-rowcount", "201")
    shown.get_by_role("button", name="anomalies only").focus()
    press("Space")
    expect(table).to_have_attribute("aria-rowcount", "100")  # 50 outputs and 49 inputs
    press("Space")
    shown.get_by_label("Order", exact=True).focus()
    press("ArrowDown")
    expect(shown.locator("[role=row][aria-rowindex='2'] .module")).to_have_text("layers.50")
    assert heard(shown) == []


def test_heads_sort_and_resize_by_keys(shown, press):
    shown.locator(".table").focus()
    press("Tab")
    head = shown.locator(".head .mean")
    while not head.locator("button").evaluate("e => e.matches(':focus')"):
        press("ArrowRight")
    press("Enter")
    expect(head).to_have_attribute("aria-sort", "descending")
    press("Enter")
    expect(head).to_have_attribute("aria-sort", "ascending")
    width = head.bounding_box()["width"]
    press("Shift+ArrowRight")
    assert head.bounding_box()["width"] == pytest.approx(width + 12, abs=1)
    assert heard(shown) == []


def test_columns_are_chosen_by_keys(shown, press):
    summary = shown.locator(".columns summary")
    summary.focus()
    press("Enter", "Tab", "Space")
    box = shown.locator(".choices input").first
    expect(box).not_to_be_checked()
    expect(shown.locator(f".head .{box.get_attribute('value')}")).to_be_hidden()
    press("Escape")
    expect(box).to_be_hidden()
    expect(summary).to_be_focused()
    assert heard(shown) == []


def test_the_tree_is_opened_and_left_by_keys(shown, press):
    shown.get_by_role("button", name="tree").focus()
    press("Enter")
    table = shown.locator(".table")
    expect(table).to_have_attribute("role", "treegrid")
    expect(selected(shown)).to_have_attribute("aria-level", "3")
    table.focus()
    press("ArrowLeft")
    expect(selected(shown)).to_have_attribute("aria-level", "2")
    expect(selected(shown)).to_have_attribute("aria-expanded", "true")
    press("ArrowLeft")
    expect(selected(shown)).to_have_attribute("aria-expanded", "false")
    press("ArrowRight")
    expect(selected(shown)).to_have_attribute("aria-expanded", "true")
    press("ArrowLeft", "ArrowLeft", "Enter")
    expect(selected(shown)).to_contain_text("layers")
    expect(table).to_have_attribute("aria-rowcount", "2")
    expect(selected(shown)).to_contain_text("99 NaN")  # in 50 outputs and 49 inputs
    assert heard(shown) == []


def test_what_ran_before_is_gone_to_by_keys(shown, press):
    expect(selected(shown).locator(".role")).to_contain_text("output")
    shown.locator(".neighbour").first.focus()
    press("Enter")
    expect(selected(shown).locator(".module")).to_have_text("layers.49")
    expect(shown.locator(".detail h3")).to_have_text("layers.49")
    assert heard(shown) == []


def test_letters_stay_and_running_the_cell_passes(shown, press):
    shown.locator(".table").focus()
    press("d", "d", "x", "a", "b", "0", "Escape", "Enter")
    assert heard(shown) == []
    press("Shift+Enter")
    assert "Enter" in heard(shown)
