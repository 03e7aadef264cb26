"""The inspector in JupyterLab and Notebook 7, with a real kernel, and what stays of it on disk."""

from __future__ import annotations

import json
import re
import time

import nbformat
import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import expect

from tests.browser.harness import RUN_SECONDS, Notebook, new_page

SETUP = """
import os, time, torch
import probe_nb as probe
%load_ext probe_nb
torch.set_num_threads(1)
_ = torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps, nan_at=None, pause=0.0):
    for step in range(steps):
        x = torch.randn(16, 4)
        if step == nan_at:
            x[3, 2] = float("nan")
        optimizer.zero_grad()
        model(x).square().mean().backward()
        if nan_at is None:
            optimizer.step()
        time.sleep(pause)
def train_until(file):
    steps = 0
    while not os.path.exists(file):
        train(1, pause=0.02)
        steps += 1
    print(steps, "steps of mine")
"""
BAD = "NaN first appeared at step 2 in (root) (forward input)"
WITH_NAN = """
with probe.watch(model) as run:
    for _ in range(2):
        train(1)
    train(1, nan_at=0)
"""


RAISES = """
with probe.watch(model) as failed:
    train(2)
    raise ValueError("mine")
"""
SAYS = "failed.info.ended, len(failed) > 0"


@pytest.fixture(scope="module")
def watched(browser, lab):
    """A notebook open in JupyterLab in which one cell watched a NaN and another one an exception."""
    notebook = Notebook(new_page(browser), lab, [SETUP, WITH_NAN, RAISES, SAYS])
    notebook.run_all()
    expect(notebook.output(1).get_by_role("grid")).to_be_visible()
    return notebook


@pytest.fixture(scope="module")
def saved(watched):
    """The same, as JupyterLab saved it."""
    watched.save()
    return watched


@pytest.fixture(scope="module")
def exported(saved, tmp_path_factory):
    """The same notebook as an HTML page."""
    html, _ = HTMLExporter().from_filename(str(saved.path))
    path = tmp_path_factory.mktemp("export") / "notebook.html"
    path.write_text(html, encoding="utf-8")
    return path


def assert_keys_stay(notebook, view):
    """Type `dd` over the table: in command mode it deletes the cell."""
    cells = notebook.page.locator(".jp-Notebook .jp-Cell")
    before = cells.count()
    view.get_by_role("grid").focus()
    notebook.page.keyboard.press("d")
    notebook.page.keyboard.press("d")
    notebook.page.wait_for_timeout(200)
    assert cells.count() == before


def step_shown(output):
    """Return the step that the live inspector says it is at."""
    facts = output.locator(".top .facts")
    expect(facts).to_contain_text(re.compile(r"live\W*step \d+"))
    return int(re.search(r"step ([\d,]+)", facts.inner_text())[1].replace(",", ""))


def test_the_inspector_moves_while_the_cell_runs_and_becomes_the_report(open_notebook):
    cells = [SETUP, "%probe_start model", "train_until('seen')", "%probe_stop"]
    notebook = open_notebook(cells)
    seen = notebook.server.folder / "seen"
    seen.unlink(missing_ok=True)
    notebook.run(0)
    notebook.run(1)
    notebook.start(2)
    first = step_shown(notebook.output(1))
    deadline = time.monotonic() + RUN_SECONDS
    while step_shown(notebook.output(1)) <= first + 5 and time.monotonic() < deadline:
        notebook.page.wait_for_timeout(50)
    assert step_shown(notebook.output(1)) > first + 5
    assert notebook.running(2)
    seen.touch()  # and the cell ends
    notebook.wait(2)
    steps = int(notebook.output(2).first.inner_text().split()[0])
    notebook.run(3)
    expect(notebook.output(1)).not_to_contain_text("live")
    expect(notebook.output(1).get_by_role("grid")).to_have_count(0)
    report = notebook.output(3)
    expect(report.get_by_role("grid")).to_be_visible()
    expect(report).to_contain_text(f"{steps:,} steps")
    expect(report).to_contain_text("no NaN or Inf")
    assert_keys_stay(notebook, report)


def test_the_first_line_names_the_nan_and_its_row_is_chosen(watched):
    report = watched.output(1)
    expect(report.locator(".headline")).to_contain_text(BAD)
    chosen = report.locator("[role=row][aria-selected=true]")
    expect(chosen).to_contain_text("(root)")
    expect(chosen).to_contain_text("NaN")


def test_rows_can_be_searched_filtered_and_walked_by_keyboard(watched):
    report = watched.output(1)
    report.get_by_label("Role", exact=True).select_option("grad_input")
    expect(report.get_by_role("grid")).to_have_attribute("aria-rowcount", "3")  # relu, 2, head
    report.get_by_label("Role", exact=True).select_option(index=0)
    search = report.get_by_label("Search")
    search.fill("no such module")
    expect(report.get_by_role("grid")).to_have_attribute("aria-rowcount", "1")
    search.fill("")
    grid = report.get_by_role("grid")
    grid.focus()
    chosen = report.locator("[role=row][aria-selected=true]")
    at = int(chosen.get_attribute("aria-rowindex"))
    watched.page.keyboard.press("ArrowDown")
    expect(chosen).to_have_attribute("aria-rowindex", str(at + 1))
    watched.page.keyboard.press("ArrowUp")  # as the other tests of this notebook want to find it
    expect(chosen).to_have_attribute("aria-rowindex", str(at))
    assert_keys_stay(watched, report)


def test_an_exception_in_the_block_fails_the_cell_and_keeps_the_report(watched):
    shown = watched.cell(2)
    expect(shown).to_contain_text("ValueError: mine")
    expect(shown.get_by_role("grid")).to_be_visible()
    expect(watched.output(3)).to_contain_text("ValueError at step 1: mine")
    expect(watched.output(3)).to_contain_text("True")


def test_what_is_saved_needs_no_widget(saved):
    text = saved.path.read_text(encoding="utf-8")
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    outputs = nbformat.reads(text, as_version=4).cells[1].outputs
    assert len(outputs) == 1
    assert set(outputs[0].data) == {"text/html", "text/plain"}
    assert "NaN first appeared at step 2" in outputs[0].data["text/plain"]
    assert len(outputs[0].data["text/plain"].splitlines()) < 30
    assert len(outputs[0].data["text/html"]) < 200_000


def test_a_reopened_notebook_shows_the_inspector_without_running_anything(saved, page, lab):
    again = Notebook(page, lab, saved.path, name=saved.path.name)
    expect(again.output(1).get_by_role("grid")).to_be_visible()
    expect(again.output(1).locator(".headline")).to_contain_text(BAD)
    assert again.prompt(1) != "[*]:"


def test_a_notebook_from_a_stranger_shows_the_plain_table(saved, page, lab):
    book = nbformat.read(saved.path, as_version=4)
    book.metadata["stranger"] = "another file, so not one that this user has trusted"
    path = lab.folder / "stranger.ipynb"
    nbformat.write(book, path)
    notebook = Notebook(page, lab, path, name="from_a_stranger.ipynb")
    expect(notebook.output(1).get_by_role("grid")).to_have_count(0)
    expect(notebook.output(1).locator("table").first).to_be_visible()
    expect(notebook.output(1)).to_contain_text("NaN first appeared at step 2")


@pytest.mark.parametrize("dark", [False, True])
def test_an_exported_page_works_offline_in_light_and_dark(browser, exported, dark):
    page = new_page(browser, dark=dark)
    page.context.set_offline(True)
    page.goto(exported.as_uri())
    grid = page.get_by_role("grid").first
    expect(grid).to_be_visible()
    expect(page.locator(".headline").first).to_contain_text(BAD)
    colours = grid.evaluate(
        "e => { let b = e; while (getComputedStyle(b).backgroundColor === 'rgba(0, 0, 0, 0)')"
        " b = b.parentElement; return [getComputedStyle(e).color,"
        " getComputedStyle(b).backgroundColor]; }"
    )
    text, background = (sum(map(float, re.findall(r"[\d.]+", c)[:3])) for c in colours)
    assert abs(text - background) > 300  # of 765: readable on what it stands on


def test_an_exported_page_without_scripts_shows_the_worst_row_first(browser, exported):
    plain = new_page(browser, scripts=False)
    plain.goto(exported.as_uri())
    expect(plain.get_by_text("NaN first appeared at step 2").first).to_be_visible()
    rows = plain.locator("table").filter(has_text="NaN").first.locator("tbody tr")
    expect(rows.first).to_contain_text("NaN")
    expect(rows.first).to_contain_text("(root)")
