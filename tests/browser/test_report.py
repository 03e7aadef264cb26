"""The report at the end, as a page of its own: it mounts where it may, and reads where it may not."""

from __future__ import annotations

import numpy as np
import pytest
from playwright.sync_api import expect

from probe_nb.view import report
from tests.browser.mounting import drawn
from tests.unit.view.make_runs import Book, hundred_layers

STRICT = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
HOSTILE = [
    "</script><script>document.title='broken'</script>",
    "<img src=x onerror=\"document.title='broken'\">",
]


@pytest.fixture
def show(page, tmp_path):
    """Open a page that holds these runs' reports."""

    def shown(*runs, head=""):
        body = "".join(report.bundle(run)["text/html"] for run in runs)
        path = tmp_path / "page.html"
        path.write_text(
            f"<!doctype html><meta charset=utf-8><title>fine</title>{head}{body}", "utf-8"
        )
        page.goto(path.as_uri())
        return page

    return shown


def test_two_reports_on_a_page_mount_side_by_side(show):
    page = show(hundred_layers(bad=50), hundred_layers(bad=7))
    expect(page.get_by_role("grid")).to_have_count(2)
    expect(page.get_by_text("in layers.50 (forward output)").locator("visible=true")).to_have_count(
        1
    )
    expect(page.get_by_text("in layers.7 (forward output)").locator("visible=true")).to_have_count(
        1
    )
    expect(page.locator("table").first).to_be_hidden()


def test_where_blobs_are_forbidden_the_table_stays(show):
    page = show(
        hundred_layers(bad=50),
        head=f'<meta http-equiv="Content-Security-Policy" content="{STRICT}">',
    )
    page.wait_for_timeout(500)
    expect(page.locator("table").first).to_be_visible()
    expect(page.locator("table tbody tr").first).to_contain_text("layers.50")
    expect(page.get_by_role("grid")).to_have_count(0)


def test_a_front_end_that_fails_leaves_the_table(show, tmp_path, monkeypatch):
    broken = tmp_path / "widget.js"
    broken.write_text(
        "export default { render({ el }) { el.append('half'); throw new Error('no'); } }"
    )
    monkeypatch.setattr(report, "BUNDLE", broken)
    report._packed_file.cache_clear()
    try:
        page = show(hundred_layers(bad=50))
        page.wait_for_timeout(500)
        expect(page.locator("table").first).to_be_visible()
        expect(page.get_by_text("half")).to_be_hidden()
    finally:
        report._packed_file.cache_clear()


def test_no_name_runs_as_a_script(show):
    book = Book()
    for name in HOSTILE:
        book.add(name, [np.nan, 1.0])
    page = show(book.run())
    expect(page.get_by_role("grid")).to_be_visible()
    page.wait_for_timeout(300)
    assert page.title() == "fine"


SHOWN_IN_PART = """grid => {
    const { left, right } = grid.getBoundingClientRect();
    const heads = [...grid.querySelectorAll("[role=columnheader]:not(.cut)")];
    const module = heads[0].getBoundingClientRect().right;
    return heads.slice(1).map(e => [e.className, e.getBoundingClientRect()]).filter(([, at]) =>
        (at.left < module - 1 && at.right > left) || at.right > right + 1).map(([name]) => name);
}"""


@pytest.mark.parametrize("width", [780, 1000, 1130, 1300, 1700])
def test_no_number_is_shown_in_part(show, width):
    page = show(hundred_layers(bad=50))
    page.set_viewport_size({"width": width, "height": 900})
    grid = page.get_by_role("grid")
    for scrolled in (0, 37, 150):
        grid.evaluate(f"grid => grid.scrollLeft = {scrolled}")
        drawn(page)
        assert grid.evaluate(SHOWN_IN_PART) == []
    grid.evaluate("grid => grid.scrollLeft = 0")
    drawn(page)
    shown = grid.locator("[role=columnheader]:not(.cut)").all_inner_texts()
    assert {"nan", "inf"} <= {text.split()[0] for text in shown}
    at = {name: grid.locator(f".head .{name}").bounding_box()["x"] for name in ("nan", "mean")}
    assert at["nan"] < at["mean"]
