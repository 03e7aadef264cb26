"""Everyone can read it: axe-core finds nothing serious, and colours and movement follow the reader's settings."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

import hatch_build
import probe_nb as probe
from probe_nb.view import report
from probe_nb.view.comparing import Comparing
from probe_nb.view.inspector import ComparisonInspector, Inspector
from tests.browser.mounting import update
from tests.unit.view.make_runs import hundred_layers

AXE = hatch_build.FRONTEND / "node_modules" / "axe-core" / "axe.min.js"
FINDINGS = """() => axe.run("body", { resultTypes: ["violations"] }).then(({ violations }) =>
    violations.filter(({ impact }) => ["serious", "critical"].includes(impact))
        .map(({ id, nodes }) => [id, ...nodes.slice(0, 3).map(({ html, failureSummary }) =>
            [html.slice(0, 200), failureSummary])]))"""


@pytest.fixture(scope="module", autouse=True)
def axe():
    """Make sure that it is installed: what builds the bundle leaves the tests' packages out."""
    hatch_build.install(tests=True)


def assert_nothing_serious(page):
    if not page.evaluate("'axe' in window"):
        page.add_script_tag(path=AXE)
    found = page.evaluate(FINDINGS)
    assert found == [], json.dumps(found, indent=1)


@pytest.fixture
def live(mounted):
    """A live view that has seen NaN, with moments behind it."""
    run = hundred_layers(bad=50)
    run.info.ended = "open"
    widget = Inspector(run)
    page = mounted(widget)
    page.set_viewport_size({"width": 1250, "height": 700})
    update(page, widget)
    expect(page.locator("[role=row][aria-selected=true]")).to_be_visible()
    return page


def test_axe_itself_finds_what_cannot_be_read(page):
    page.set_content("<main><p style='color: #aaa; background: #fff'>faint</p></main>")
    with pytest.raises(AssertionError, match="color-contrast"):
        assert_nothing_serious(page)


def test_nothing_serious_in_the_live_view_with_a_finding(live):
    expect(live.locator(".detail")).to_contain_text("NaN")
    assert_nothing_serious(live)


def test_nothing_serious_in_the_tree_with_the_columns_open(live):
    live.get_by_role("button", name="tree").click()
    live.locator(".columns summary").click()
    expect(live.locator(".folds:not([hidden])").first).to_be_visible()
    assert_nothing_serious(live)


def test_nothing_serious_in_the_dark(live):
    live.emulate_media(color_scheme="dark")
    expect(live.locator(".pnb")).to_have_attribute("data-theme", "dark")
    assert_nothing_serious(live)


def test_nothing_serious_in_a_narrow_cell(live):
    live.set_viewport_size({"width": 400, "height": 1000})
    assert_nothing_serious(live)


def test_nothing_serious_in_the_report_with_and_without_scripts(page, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(report.html_page(hundred_layers(bad=50)), "utf-8")
    page.goto(path.as_uri())
    expect(page.locator(".table")).to_be_visible()
    assert_nothing_serious(page)
    page.evaluate("""for (const report of document.querySelectorAll("[data-probe-nb]")) {
        report.children[0].hidden = false;
        report.children[2].hidden = true;
    }""")
    expect(page.locator("table").first).to_be_visible()
    assert_nothing_serious(page)


def test_nothing_serious_in_a_comparison(mounted):
    compared = probe.compare(hundred_layers(bad=99), hundred_layers(bad=50))
    page = mounted(ComparisonInspector(Comparing(compared)))
    page.set_viewport_size({"width": 1250, "height": 700})
    expect(page.locator(".verdict .badge").filter(has_text="diverges here").first).to_be_visible()
    assert_nothing_serious(page)


def test_the_chosen_colours_of_the_system_keep_what_is_wrong_and_what_is_chosen_apart(live):
    chosen = live.locator("[role=row][aria-selected=true]")
    live.emulate_media(forced_colors="active")
    around = "e => getComputedStyle(e, '::after').borderTopWidth"
    assert chosen.evaluate(around) == "2px"
    fills = "e => [...e.querySelectorAll('path')].map(p => [p.className.baseVal, getComputedStyle(p).fill])"
    paint = dict(chosen.locator("svg").first.evaluate(fills))
    assert paint["bars"] != paint["nonfinite"]
    assert paint["bars"] != "none"


def test_nothing_moves_where_the_reader_wants_no_movement(live):
    dot = "e => getComputedStyle(e, '::before').animationName"
    assert live.locator(".state").evaluate(dot) == "pulse"
    live.emulate_media(reduced_motion="reduce")
    moving = """() => {
        const root = document.querySelector(".probe-nb-inspector").shadowRoot;
        return [...root.querySelectorAll("*")].flatMap((e) => ["", "::before", "::after"].map((part) => {
            const { animationName, transitionDuration } = getComputedStyle(e, part || null);
            return animationName !== "none" || parseFloat(transitionDuration) > 0;
        })).filter(Boolean).length;
    }"""
    assert live.evaluate(moving) == 0
