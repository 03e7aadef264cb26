"""Two runs in the inspector: as the report of a comparison, and while the candidate still runs."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from playwright.sync_api import expect
from torch import nn

import probe_nb as probe
from tests.browser.harness import new_page


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.act = nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU()

    def forward(self, x):
        return x + self.act(self.up(self.norm(x)))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of a comparison as a page: a wrong epsilon in the second of four blocks."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(4)))
    other = copy.deepcopy(model)
    other[1].norm.eps = 1e-2
    other[3].act = nn.Sequential(nn.GELU(), nn.Identity())
    runs = []
    for each in (model, other):
        generator = torch.Generator().manual_seed(1)
        with probe.watch(each, live=False) as run:
            for _ in range(3):
                each(torch.randn(8, 16, generator=generator)).square().mean().backward()
        runs.append(run)
    comparison = probe.compare(*runs)
    path = tmp_path_factory.mktemp("compare") / "page.html"
    page = "<!doctype html><meta charset=utf-8>" + comparison._repr_mimebundle_()["text/html"]
    path.write_text(page, "utf-8")
    return comparison, path


@pytest.fixture
def shown(page, report):
    """The inspector over it."""
    page.goto(report[1].as_uri())
    expect(page.locator(".table")).to_be_visible()
    return page


def selected(page):
    return page.locator("[role=row][aria-selected=true]")


def test_the_table_opens_where_the_runs_part(shown, report):
    first = report[0].first_divergence()
    expect(shown.locator(".headline")).to_contain_text(first.sentence)
    expect(shown.locator(".fed summary")).to_contain_text("Both were fed the same.")
    expect(selected(shown)).to_be_visible()
    expect(selected(shown).locator(".module")).to_contain_text("1.norm")
    expect(selected(shown).locator(".verdict")).to_contain_text("diverges here")
    # six statistics, the elements, six counts
    expect(shown.locator(".detail table.both tbody tr")).to_have_count(13)
    expect(shown.locator("body > div > div > div > table").first).to_be_hidden()


def test_verdicts_filter_and_the_button_leads_back(shown, report):
    grid = shown.locator(".table")
    alone = shown.get_by_role("button", name="candidate only")
    alone.click()
    expect(alone).to_have_attribute("aria-pressed", "true")
    rows = report[0].df.query("verdict == 'only_in_candidate'")
    sites = rows[["module", "role", "direction"]].drop_duplicates()
    expect(grid).to_have_attribute("aria-rowcount", str(len(sites) + 1))
    expect(selected(shown)).to_have_count(0)
    shown.get_by_role("button", name="divergence").click()
    expect(alone).to_have_attribute("aria-pressed", "false")
    expect(selected(shown).locator(".module")).to_contain_text("1.norm")


def test_what_follows_is_folded_and_opens_by_keyboard(shown):
    grid = shown.locator(".table")
    before = int(grid.get_attribute("aria-rowcount"))
    group = shown.locator("[role=row][aria-expanded]").filter(has_text="in 1.up")
    expect(group).to_contain_text("rows that follow from it")
    grid.focus()
    shown.keyboard.press("ArrowDown")
    expect(group).to_have_attribute("aria-selected", "true")
    shown.keyboard.press("ArrowRight")
    expect(group).to_have_attribute("aria-expanded", "true")
    assert int(grid.get_attribute("aria-rowcount")) > before
    shown.keyboard.press("ArrowLeft")
    expect(grid).to_have_attribute("aria-rowcount", str(before))


def test_modules_fold_into_a_tree_opened_at_the_culprit(shown):
    shown.get_by_role("button", name="tree").click()
    expect(selected(shown).locator(".module")).to_contain_text("1.norm")
    names = shown.locator(".folds:not([hidden]) .name").all_inner_texts()
    assert {"0", "1", "norm", "2", "3"} <= set(names)
    name = shown.locator(".name", has_text=re.compile("^3$"))  # cells behind it have texts, too
    closed = shown.locator(".folds:not([hidden])").filter(has=name)
    expect(closed).to_contain_text("candidate only")


def test_columns_can_be_hidden_and_made_wider(shown):
    shown.locator(".columns summary").click()
    shown.get_by_label("explained").uncheck()
    expect(shown.locator(".head .explained")).to_be_hidden()
    shown.keyboard.press("Escape")
    head = shown.locator(".head .difference")
    width = head.bounding_box()["width"]
    grip = head.locator(".grip").bounding_box()
    x, y = grip["x"] + grip["width"] / 2, grip["y"] + 5
    shown.mouse.move(x, y)
    shown.mouse.down()
    shown.mouse.move(x + 40, y, steps=4)
    shown.mouse.up()
    assert head.bounding_box()["width"] == pytest.approx(width + 40, abs=2)
    head.get_by_role("button").focus()
    shown.keyboard.press("Shift+ArrowLeft")
    assert head.bounding_box()["width"] == pytest.approx(width + 28, abs=2)
    assert head.get_attribute("aria-sort") == "none"


def test_without_scripts_the_table_stays(browser, report):
    plain = new_page(browser, scripts=False)
    plain.goto(report[1].as_uri())
    expect(plain.locator("table").first).to_be_visible()
    expect(plain.locator("tbody tr").first).to_contain_text("1.norm")


LIVE = """
import time, torch, probe_nb as probe
%load_ext probe_nb
torch.set_num_threads(1)
def made(by):
    torch.manual_seed(0)
    class Scale(torch.nn.Module):
        def forward(self, x):
            return x * by
    return torch.nn.Sequential(torch.nn.Linear(4, 4), Scale(), torch.nn.Tanh())
def train(model, steps, pause=0.0):
    for step in range(steps):
        model(torch.randn(2, 4, generator=torch.Generator().manual_seed(step))).sum().backward()
        time.sleep(pause)
model = made(1.0)
with probe.watch(model, live=False) as good:
    train(model, 100)
good.save("good.parquet")
other = made(1.1)
"""


def test_verdicts_appear_while_the_candidate_runs(open_in_lab):
    notebook = open_in_lab(
        [LIVE, '%probe_start other --baseline "good.parquet"', "train(other, 400, pause=0.25)"]
    )
    notebook.run(0)
    notebook.run(1)
    view = notebook.output(1)
    expect(view.locator(".headline")).to_contain_text("Nothing to compare yet")
    notebook.start(2)
    expect(view.locator(".headline")).to_contain_text("first diverges at 1 (Scale) at step 0")
    expect(view.locator(".verdict .badge").filter(has_text="diverges here")).to_be_visible()
    assert notebook.running(2)
    assert view.locator(".state").get_attribute("data-state") == "live"
    notebook.interrupt()  # long before its end
    notebook.wait(2)
