"""The pane of the selected row in a browser: in a report, and beside a kernel that can be asked."""

from __future__ import annotations

import re

import pytest
import torch
from playwright.sync_api import expect

import probe_nb as probe
from probe_nb.view import report

NAN = float("nan")
FIRST_BAD = 6
STEPS = 8


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)

    def forward(self, x):
        return torch.relu(self.fc(x)).sum()


def recorded():
    """A run whose input has a NaN from one step on; its tensors are kept."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    keep = probe.Keep("fc", roles="input, output")
    with probe.watch(
        model, optimizer=optimizer, level="mix", stacks=True, keep=keep, live=False
    ) as run:
        for step in range(STEPS):
            optimizer.zero_grad()
            x = torch.tensor([[4.0, -4.0, 0.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
            if step >= FIRST_BAD:
                x[1, 2] = NAN
            model(x).backward()
            optimizer.step()
    return run


@pytest.fixture(scope="module")
def run():
    return recorded()


def opened(page, run, path, width=1200):
    path.write_text(report.html_page(run), encoding="utf-8")
    page.set_viewport_size({"width": width, "height": 1000})
    page.goto(path.as_uri())
    pane = page.locator(".detail")
    expect(pane.locator("h3")).to_be_visible()
    return pane


def choose(page, words):
    page.get_by_label("Search").fill(words)
    page.locator(".rows [role=row]").first.click()


def inside(outer, inner):
    return outer["y"] <= inner["y"] and inner["y"] + inner["height"] <= outer["y"] + outer["height"]


def test_heat_map_histogram_and_trend_are_seen_without_scrolling(page, run, tmp_path):
    pane = opened(page, run, tmp_path / "run.html")
    box = pane.bounding_box()
    for chart in ("canvas.heat", ".values svg", ".trend svg"):
        expect(pane.locator(chart)).to_be_visible()
        assert inside(box, pane.locator(chart).bounding_box()), chart


def test_in_a_narrow_cell_the_pane_is_under_the_table(page, run, tmp_path):
    pane = opened(page, run, tmp_path / "run.html", width=680)
    table, box = page.locator(".table").bounding_box(), pane.bounding_box()
    assert box["y"] >= table["y"] + table["height"] - 1
    assert box["width"] > 600
    assert page.evaluate("document.documentElement.scrollWidth") <= 680


def test_the_heat_map_says_what_it_shows_and_what_a_cell_holds(page, run, tmp_path):
    pane = opened(page, run, tmp_path / "run.html")
    choose(page, "fc input linear")
    heat, words = pane.locator("canvas.heat"), pane.locator(".over-steps .readout")
    expect(heat).to_have_attribute(
        "aria-label",
        f"histograms of {STEPS} steps, 0 to 7; values of both signs between 2⁻³ and 2⁵; "
        f"NaN in step {FIRST_BAD}, 7",
    )
    heat.focus()
    page.keyboard.press("ArrowRight")  # the strip of signs over the last step
    expect(words).to_have_text("step 7: 1 NaN")
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    expect(words).to_have_text("step 4: all finite")
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    # of 8 elements 4 and 4 are in [4, 8)
    expect(words).to_have_text("step 4, 2² … 2³: 25.0 % of 8")
    heat.hover(position={"x": 60, "y": 5})
    expect(words).to_have_text("step 0: all finite")


def test_the_trend_shows_the_statistic_that_is_chosen_and_its_scale(page, run, tmp_path):
    pane = opened(page, run, tmp_path / "run.html")
    choose(page, "fc input linear")
    drawing, choice = pane.locator(".trend svg"), pane.locator(".trend select")
    expect(drawing).to_have_attribute(
        "aria-label",
        f"absmax over {STEPS} steps, 0 to 7, from 4 to 4, log scale, not finite in 2 of them",
    )
    choice.select_option("zero")
    # 1 of 8 is zero in every step
    expect(drawing).to_have_attribute(
        "aria-label",
        f"zero share over {STEPS} steps, 0 to 7, from 12.5 % to 12.5 %, log scale, "
        "not finite in 2 of them",
    )
    expect(pane.locator(".trend .sign")).to_have_text(["✕", "✕"])
    choose(page, "fc output linear")  # the choice stays with the reader
    expect(choice).to_have_value("zero")
    choice.select_option("mean")
    expect(drawing).to_have_attribute("aria-label", re.compile("^mean over 8 steps"))


def test_the_pane_tells_the_line_that_called_the_module(page, run, tmp_path):
    pane = opened(page, run, tmp_path / "run.html")
    choose(page, "fc output linear")
    expect(pane.locator(".stack li").first).to_contain_text("return torch.relu(self.fc(x)).sum()")
    expect(pane.locator(".stack li").first).to_contain_text("test_detail.py:")


def pixel(canvas, x, y):
    return canvas.evaluate(
        "(c, [x, y]) => [...c.getContext('2d').getImageData(x, y, 1, 1).data]", [x, y]
    )


def test_a_kept_tensor_is_drawn_with_signs_and_colours_for_both_signs(page, run, tmp_path):
    pane = opened(page, run, tmp_path / "run.html")
    choose(page, "fc input linear")
    picture = pane.locator("canvas.tensor")
    expect(picture).to_have_attribute(
        "aria-label",
        "step 7; 2\N{MULTIPLICATION SIGN}4; 1 NaN (✕); colours from -4 to 4, 0 in the middle",
    )
    # cells of 18 pixels: 4 is the end of green, -4 that of purple, 0 the grey between
    assert pixel(picture, 2, 2)[:3] == [0, 105, 62]
    assert pixel(picture, 20, 2)[:3] == [118, 42, 131]
    assert pixel(picture, 38, 2)[:3] == [196, 199, 204]
    nan = pixel(picture, 38, 20)[:3]
    assert nan not in [pixel(picture, x, 2)[:3] for x in (2, 20, 38, 56)]
    picture.hover(position={"x": 45, "y": 27})
    expect(pane.locator(".kept .readout")).to_have_text("cell [1, 2]: NaN")


def test_a_chosen_step_is_marked_and_the_tensors_of_others_say_which_they_are(page, run, tmp_path):
    pane = opened(page, run, tmp_path / "run.html")
    choose(page, "fc input linear")
    for _ in range(2):
        page.keyboard.press("Escape")
    page.get_by_role("button", name="latest").click()
    page.locator(".table").focus()
    for _ in range(2):
        page.keyboard.press(",")
    expect(pane).to_contain_text("numbers of step 5")
    expect(pane.locator(".trend path.chosen")).to_have_count(1)


KEEPING = """
import torch, probe_nb as probe
model = torch.nn.Sequential(torch.nn.Linear(3, 2))
with probe.watch(model, keep="*", live=False) as run:
    for step in range(3):
        model(torch.full((2, 3), 2.0 - step))
        run.step()
"""


def test_the_pane_asks_an_idle_kernel_for_what_was_kept(open_in_lab):
    notebook = open_in_lab([KEEPING, "run.inspect()"])
    notebook.run_all()
    shown = notebook.output(1)
    shown.get_by_label("Search").fill("0 input linear")
    shown.locator(".rows [role=row]").first.click()
    picture = shown.locator("canvas.tensor")
    expect(picture).to_have_attribute(
        "aria-label", "step 2; 2\N{MULTIPLICATION SIGN}3; every finite cell is 0"
    )
    shown.get_by_label("Search").fill("0 output linear")
    shown.locator(".rows [role=row]").first.click()
    expect(shown.locator(".kept")).to_contain_text("keep= did not ask for this tensor.")


# -- copy as Python ------------------------------------------------------------------------------


def of_all_kinds():
    """Modules, functions in and outside of them, saved values, optimizers, and two models."""
    torch.manual_seed(0)
    one, two = (torch.nn.Sequential(torch.nn.Linear(2, 2)) for _ in range(2))
    optimizer = torch.optim.Adam(one.parameters())
    with probe.watch(
        {"one": one, 'tw"o': two}, optimizer=optimizer, level="mix", live=False
    ) as run:
        for _ in range(2):
            optimizer.zero_grad()
            x = torch.relu(torch.ones(3, 2))
            y = one(x) + two(x)
            probe.save(y, 'it\'s a "value"')
            y.sum().backward()
            optimizer.step()
    return run


def test_the_copied_expression_gives_the_records_of_its_row_of_every_kind(page, tmp_path):
    run = of_all_kinds()
    pane = opened(page, run, tmp_path / "run.html")
    names = ["model", "module", "type", "api", "direction", "role", "leaf"]
    sites = [tuple(row) for row in run.df[names].drop_duplicates().itertuples(index=False)]
    assert {"optimizer", "forward", "backward"} <= {site[4] for site in sites}
    copied = set()
    page.locator(".table").focus()
    page.keyboard.press("Home")
    for _ in range(len(sites)):
        copied.add(pane.locator(".copy").get_attribute("title"))
        page.keyboard.press("ArrowDown")
    assert len(copied) == len(sites)
    found = []
    for expression in copied:
        rows = eval(expression, {"run": run})
        (site,) = {tuple(row) for row in rows[names].itertuples(index=False)}
        whole = run.df[(run.df[names] == list(site)).all(axis=1)]
        assert rows["order"].tolist() == whole["order"].tolist()
        found.append(site)
    assert sorted(found) == sorted(sites)


def test_of_a_learning_rate_its_number_is_shown_and_no_histogram(page, run, tmp_path):
    pane = opened(page, run, tmp_path / "run.html")
    choose(page, "group0.lr")
    expect(pane.locator(".numbers dt")).to_have_text(["value"])
    expect(pane.locator(".numbers dd")).to_have_text(["0.1"])
    expect(pane.locator(".trend svg")).to_be_visible()
    for drawing in (".values", ".over-steps"):
        expect(pane.locator(drawing)).to_be_hidden()
    choose(page, "fc weight param")
    for drawing in (".values", ".over-steps"):
        expect(pane.locator(drawing)).to_be_visible()
