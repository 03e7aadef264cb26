"""What is seen before anything is clicked, and what each order, filter and fold then shows."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from probe_nb.view.inspector import Inspector
from tests.browser.mounting import drawn
from tests.unit.view.make_runs import hundred_layers

IN_VIEW = """table => {
    const { top, bottom } = table.getBoundingClientRect();
    return [...table.querySelectorAll(".rows [role=row]:not([hidden])")]
        .map((row) => [row.getBoundingClientRect(), row])
        .filter(([at]) => at.top >= top + 24 && at.bottom <= bottom + 1)
        .sort(([a], [b]) => a.top - b.top)
        .map(([, row]) => [row.querySelector(".module").textContent,
            row.querySelector(".role").textContent.trim(), row.getAttribute("aria-selected")]);
}"""


@pytest.fixture
def shown(mounted):
    page = mounted(Inspector(hundred_layers(bad=50)))
    expect(page.locator("[role=row][aria-selected=true]")).to_be_in_viewport()
    return page


def rows(page):
    return page.locator(".table").evaluate(IN_VIEW)


def test_it_opens_at_the_culprit_with_what_led_to_it_above(shown):
    seen = rows(shown)
    at = next(index for index, row in enumerate(seen) if row[2] == "true")
    assert seen[at][:2] == ["layers.50", "output0"]
    assert [row[:2] for row in seen[at - 3 : at]] == [
        ["layers.49", "input0"],
        ["layers.49", "output0"],
        ["layers.50", "input0"],
    ]
    assert seen[at + 1][:2] == ["layers.51", "input0"]


def test_worst_first_begins_with_the_culprit_then_its_victims_then_the_rest(shown):
    shown.get_by_label("Order", exact=True).select_option("worst")
    seen = rows(shown)
    assert [row[:2] for row in seen[:3]] == [
        ["layers.50", "output0"],
        ["layers.51", "input0"],
        ["layers.51", "output0"],
    ]
    shown.locator(".table").evaluate("e => e.scrollTop = e.scrollHeight")
    drawn(shown)
    assert rows(shown)[-1][:2] == ["layers.50", "input0"]


def test_the_tree_counts_what_is_inside_gravest_first(shown):
    shown.get_by_role("button", name="tree").click()
    shown.locator(".table").evaluate("e => e.scrollTop = 0")
    top = shown.locator("[aria-level='1']:not([hidden]) .group")  # behind it, a row's own cells
    expect(top.locator(".badge").first).to_have_text("✕ 99 NaN")  # of 50 outputs and 49 inputs
    expect(top).to_contain_text("200 rows")
    shown.get_by_role("button", name="NaN first appeared").click()
    born = shown.locator("[aria-level='2'][aria-expanded='true'] .group")
    expect(born).to_have_text(re.compile("50.*2 rows.*1 NaN"))


@pytest.mark.parametrize("width", [400, 640, 1200, 1600])
def test_the_name_and_what_is_wrong_are_seen_at_every_width(shown, width):
    shown.set_viewport_size({"width": width, "height": 900})
    chosen = shown.locator("[role=row][aria-selected=true]")
    table = shown.locator(".table").bounding_box()
    for cell in ("module", "health"):
        expect(chosen.locator(f".{cell}")).not_to_have_class(re.compile(r"\bcut\b"))
        box = chosen.locator(f".{cell}").bounding_box()
        assert box["x"] >= table["x"]
        assert box["x"] + box["width"] <= table["x"] + table["width"]
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
