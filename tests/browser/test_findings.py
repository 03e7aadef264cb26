"""What was found and has no badge of its own: it is said in every order, filter and fold, and leads to its rows."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from probe_nb.view.inspector import Inspector
from tests.unit.view.test_found import LARGE, LOW, alarmed

BADGE = re.compile("^! alert$")


@pytest.fixture
def shown(mounted):
    page = mounted(Inspector(alarmed()))
    expect(page.locator("[role=row][aria-selected=true]")).to_be_in_viewport()
    return page


def badged(page):
    """The rows in view with the badge of the findings, as module and role; no other row has a badge."""
    rows = page.locator(".rows [role=row]:not([hidden])").filter(has=page.locator(".health .badge"))
    expect(rows.locator(".health .badge")).to_have_text([BADGE] * len(LARGE + LOW))
    return {tuple(text.split()) for text in rows.evaluate_all(NAMES)}


NAMES = "rows => rows.map((row) => `${row.querySelector('.module').textContent} ${row.querySelector('.role').textContent}`)"


def test_every_row_that_was_found_says_so(shown):
    want = {(module, f"{role}0") for module, role in LARGE + LOW}
    assert badged(shown) == want
    shown.get_by_role("button", name="anomalies only").click()
    expect(shown.locator(".rows [role=row]:not([hidden])")).to_have_count(len(want))
    assert badged(shown) == want
    shown.get_by_label("Order", exact=True).select_option("worst")
    first = shown.locator("[role=row][aria-selected=true]")
    expect(first.locator(".module")).to_have_text(LARGE[0][0])
    assert first.bounding_box()["y"] == min(
        each["y"] for each in map(box, shown.locator(".rows [role=row]:not([hidden])").all())
    )


def box(locator):
    return locator.bounding_box()


def test_the_row_of_the_headline_has_its_sentence_and_what_to_try(shown):
    expect(shown.locator("[role=row][aria-selected=true] .health")).to_have_text(BADGE)
    expect(shown.locator(".detail .finding").first).to_contain_text(
        "Alert `large` at step 0 in body.1.0"
    )
    expect(shown.locator(".detail .advice")).to_have_text("try: This is your own rule.")


def test_the_next_finding_stands_under_the_first_and_leads_to_its_row(shown):
    shown.get_by_label("Search").fill("stem")
    expect(shown.locator(".further li")).to_have_count(1)
    shown.locator(".further").get_by_role("button", name="Alert `low` at step 0 in body.2").click()
    row = shown.locator("[role=row][aria-selected=true]")
    expect(row.locator(".module")).to_have_text("body.2")
    expect(row).to_be_in_viewport()
    expect(shown.locator(".detail .finding").first).to_contain_text(
        "Alert `low` at step 0 in body.2"
    )


def test_modules_and_groups_say_what_was_found_inside(shown):
    shown.get_by_role("button", name="per module").click()
    modules = shown.locator(".rows [role=row]:not([hidden])").filter(has_text=re.compile("alert"))
    expect(modules.locator(".module")).to_have_text(
        ["body", "body.1.0", "body.1.1", "body.2", "head"], use_inner_text=False
    )
    shown.get_by_role("button", name="per module").click()
    shown.get_by_role("button", name="tree").click()
    body = shown.locator("[aria-level='1']:not([hidden]) .group:not([hidden])").filter(
        has_text="body"
    )
    expect(body.locator(".name")).to_have_text("body")
    expect(body.locator(".badge")).to_have_text("! 4 alert")
    for name in ("body.1", "body.1.0", "body.1.1"):
        expect(shown.locator(".group .name").get_by_text(name, exact=True)).to_be_visible()
    around = shown.locator("[role=row][aria-selected=true] .module .around")
    expect(around).to_have_text("body.1.")
    expect(around).to_be_visible()
