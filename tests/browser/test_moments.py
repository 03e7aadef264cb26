"""Steps that are gone back to, in a report, beside a kernel and while a cell runs; and the button that stops it."""

from __future__ import annotations

import dataclasses
import re

import pytest
from playwright.sync_api import expect

from probe_nb.run import Run
from probe_nb.view import moments, report
from probe_nb.view.inspector import Inspector
from tests.browser.mounting import mount, update
from tests.browser.test_inspector import SETUP
from tests.unit.view.make_runs import hundred_layers

FIRST_BAD = 7
STEPS = 12
HEADLINE = f"NaN first appeared at step {FIRST_BAD} in layers.50 (forward output)"
HOOKS = """
from torch.nn.modules import module as m
print([len(d) for d in (m._global_forward_hooks, m._global_forward_pre_hooks)], len(run) > 0, run.info.ended)
"""


@pytest.fixture(scope="module")
def run():
    return hundred_layers(bad=50, steps=STEPS, bad_step=FIRST_BAD)


@pytest.fixture
def shown(page, run, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(report.html_page(run), encoding="utf-8")
    page.goto(path.as_uri())
    expect(page.get_by_role("grid")).to_be_visible()
    return page


def slider(place):
    return place.get_by_role("slider", name="Step")


def chosen(place):
    return place.locator("[role=row][aria-selected=true]")


def said_of(step):
    where = ", where it began" if step == FIRST_BAD else ""
    return f"step {step} of {STEPS - 1}{where}"


def test_what_has_ended_badly_opens_at_the_step_where_it_began(shown):
    """At the end everything is NaN; at that step, only what is at fault and what follows."""
    expect(slider(shown)).to_have_attribute("aria-valuetext", said_of(FIRST_BAD))
    expect(chosen(shown)).to_contain_text("layers.50")
    expect(chosen(shown)).to_contain_text("NaN")
    before = shown.locator(".row:not([hidden])", has_text="layers.49").filter(has_text="output")
    expect(before).to_contain_text("ok")
    shown.get_by_role("button", name="latest").click()
    expect(slider(shown)).to_have_attribute("aria-valuetext", said_of(STEPS - 1))


def test_what_has_ended_well_opens_at_its_last_step(page, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(report.html_page(hundred_layers(bad_step=99, steps=4)), encoding="utf-8")
    page.goto(path.as_uri())
    expect(slider(page)).to_have_attribute("aria-valuetext", "step 3 of 3")


def test_the_slider_leads_back_to_before_the_fault(shown, run):
    line = slider(shown)
    shown.get_by_role("button", name="latest").click()
    expect(line).to_have_attribute("aria-valuetext", said_of(STEPS - 1))
    expect(chosen(shown)).to_contain_text("NaN")
    row = shown.locator(".row:not([hidden])", has_text="layers.50").filter(has_text="output")
    line.focus()
    for step in range(STEPS - 2, -1, -1):
        shown.keyboard.press("ArrowLeft")
        expect(line).to_have_attribute("aria-valuetext", said_of(step))
        expect(shown.locator(".detail")).to_contain_text(re.compile(rf"numbers of step {step}\b"))
        if step >= FIRST_BAD:
            expect(row).to_contain_text("NaN")
        else:
            expect(row).not_to_contain_text("NaN")
        expect(shown.locator(".headline")).to_contain_text(HEADLINE)  # that of the whole run
    mean = run.df.query("module == 'layers.50' and role == 'output' and step == 0")["mean"].item()
    title = row.locator(".cell.mean").get_attribute("title")
    assert float(title) == pytest.approx(mean, rel=1e-6)
    expect(shown.locator(".steps")).to_contain_text("of the whole run")
    shown.keyboard.press("End")
    expect(row).to_contain_text("NaN")
    expect(shown.get_by_role("button", name="latest")).to_have_attribute("aria-pressed", "true")


def test_comma_and_full_stop_move_by_one_from_the_table(shown):
    shown.get_by_role("grid").focus()
    for key, step in ((",", 6), (",", 5), (".", 6), (".", 7), (".", 8)):
        shown.keyboard.press(key)
        expect(slider(shown)).to_have_attribute("aria-valuetext", said_of(step))
    shown.get_by_label("Search").fill("layers.5,")  # a comma in a text is one
    expect(slider(shown)).to_have_attribute("aria-valuetext", said_of(8))


def test_a_report_of_one_step_says_that_there_is_one(page, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(report.html_page(hundred_layers(steps=1, bad_step=0)), encoding="utf-8")
    page.goto(path.as_uri())
    expect(slider(page)).to_be_disabled()
    expect(page.locator(".steps")).to_contain_text("there is one step only")
    expect(page.get_by_role("button", name="stop")).to_have_count(0)


def test_modules_are_one_line_each_with_what_they_gave_and_what_came_back(shown):
    expect(shown.get_by_role("grid")).to_have_attribute("aria-rowcount", "201")
    shown.get_by_role("button", name="per module").click()
    expect(shown.get_by_role("grid")).to_have_attribute("aria-rowcount", "101")
    expect(shown.locator(".counter")).to_have_text("100 modules")
    for head in ("output", "grad_output"):
        expect(shown.get_by_role("columnheader", name=head, exact=False).first).to_be_visible()
    expect(chosen(shown)).to_contain_text("layers.50")
    expect(chosen(shown)).to_contain_text("NaN")
    shown.get_by_role("button", name="per module").click()
    expect(shown.get_by_role("grid")).to_have_attribute("aria-rowcount", "201")


def test_what_cannot_be_drawn_is_said_in_the_view_and_is_over_with_the_next_frame(
    page, run, tmp_path
):
    """Whatever is wrong with what came, nothing is thrown at the notebook that holds the view."""
    thrown = []
    page.on("pageerror", lambda error: thrown.append(error))  # noqa: PLW0108 - a builtin is refused
    widget = Inspector(run)
    good = widget.frame
    mount(page, tmp_path, widget)
    trouble = page.get_by_role("alert")
    expect(trouble).to_be_hidden()
    for bad in (good[:100], b"\0" * len(good), good[:4] + b"\x09" + good[5:]):
        widget.frame = bad
        update(page, widget)
        expect(trouble).to_contain_text("The inspector cannot show this")
        expect(trouble).to_contain_text("The run itself is not affected")
        expect(page.locator(".headline")).to_contain_text(HEADLINE)
        widget.frame = good
        update(page, widget)
        expect(trouble).to_be_hidden()
        expect(chosen(page)).to_contain_text("layers.50")
    widget.history = b"\x01" * 64
    update(page, widget)
    expect(page.locator(".steps")).to_contain_text("the earlier steps cannot be read")
    expect(chosen(page)).to_contain_text("layers.50")
    assert thrown == []


def test_a_kernel_is_asked_once_however_many_views_and_a_refusal_is_told(page, run, tmp_path):
    widget = Inspector(run)
    mount(page, tmp_path, widget)
    expect(page.locator(".steps")).to_contain_text("asking the kernel")
    assert page.evaluate("window.models[0].sent") == [{"ask": "history"}]
    widget.refused = '{"history": "OSError: the disk is gone"}'
    update(page, widget)
    expect(page.locator(".steps")).to_contain_text("OSError: the disk is gone")
    widget.refused = ""
    widget.history = moments.whole(widget._builder)
    update(page, widget)
    expect(slider(page)).to_have_attribute("max", str(STEPS - 1))
    assert page.evaluate("window.models[0].sent") == [{"ask": "history"}]


def test_the_button_is_there_while_the_run_is_open_and_only_if_a_kernel_can_be_interrupted(
    page, run, tmp_path
):
    open_run = Run(dataclasses.replace(run.info, ended="open"), run.columns)
    widget = Inspector(open_run)
    mount(page, tmp_path, widget)
    stop = page.locator(".stop")
    expect(stop).to_be_hidden()  # a front end that gives no kernel
    for kernel in ("null", "{ interrupt: 3 }", "{}"):
        page.evaluate(f"window.models[0].widget_manager = {{ kernel: {kernel} }}")
        update(page, widget)
        expect(stop).to_be_hidden()
    page.evaluate(
        """() => {
            const kernel = { said: 0, interrupt: async () => { kernel.said++; throw Error("no"); } };
            window.kernel = kernel;
            window.models[0].widget_manager = { kernel };
        }"""
    )
    update(page, widget)
    expect(stop).to_be_visible()
    stop.click()
    assert page.evaluate("window.kernel.said") == 1
    expect(stop).to_have_attribute("title", re.compile("could not interrupt the kernel: Error: no"))
    expect(stop).to_be_enabled()
    page.evaluate(
        """() => {
            window.kernel.interrupt = async () => {};
            window.later = [];
            window.setTimeout = (then) => window.later.push(then);
        }"""
    )
    stop.click()
    expect(stop).to_be_disabled()  # for a while,
    page.evaluate("window.later.splice(0).forEach((then) => then())")
    expect(stop).to_be_enabled()  # which is over
    page.evaluate(
        """() => {
            const slots = new Set();
            window.kernel = { status: "busy", interrupt: async () => {}, statusChanged: {
                connect: (slot) => slots.add(slot), disconnect: (slot) => slots.delete(slot) } };
            window.say = (status) => slots.forEach((slot) => slot(window.kernel, status));
            window.slots = slots;
            window.models[0].widget_manager = { kernel: window.kernel };
        }"""
    )
    update(page, widget)
    expect(stop).to_be_enabled()
    assert page.evaluate("window.slots.size") == 1
    page.evaluate("say('idle')")
    expect(stop).to_be_disabled()
    expect(stop).to_have_attribute("title", "No cell runs")
    page.evaluate("say('busy')")
    expect(stop).to_be_enabled()
    page.evaluate("say('idle')")
    update(page, widget)  # numbers come: a cell runs, whatever was said
    expect(stop).to_be_enabled()
    widget.status = Inspector(run).status
    update(page, widget)
    expect(stop).to_be_hidden()


def test_while_a_cell_runs_steps_can_be_gone_back_to_and_it_can_be_stopped(open_notebook):
    cell = "with probe.watch(model) as run:\n    train(100_000, pause=0.02)"
    notebook = open_notebook([SETUP, cell, HOOKS])
    notebook.run(0)
    notebook.start(1)
    view = notebook.output(1)
    words = view.locator(".steps .words")
    expect(words).to_have_text(re.compile(r"step [\d,]{2,} of"))
    slider(view).focus()
    notebook.page.keyboard.press("Home")
    follow = view.get_by_role("button", name="follow live")
    expect(follow).to_have_attribute("aria-pressed", "false")
    before = words.inner_text()
    oldest = re.compile(before.partition(" of ")[0] + " of")
    row = view.locator(".row:not(.head):not([hidden])").first.inner_text()
    expect(words).not_to_have_text(before)  # the run goes on,
    expect(words).to_have_text(oldest)  # and the view stays
    assert view.locator(".row:not(.head):not([hidden])").first.inner_text() == row
    follow.click()
    expect(words).not_to_have_text(oldest)
    assert notebook.running(1)
    view.get_by_role("button", name="stop").click()
    notebook.wait(1)
    cell = notebook.cell(1)
    expect(cell).to_contain_text("KeyboardInterrupt")
    expect(cell.get_by_role("grid")).to_be_visible()
    expect(cell.get_by_role("button", name="stop")).to_have_count(0)
    notebook.run(2)
    expect(notebook.output(2)).to_contain_text("[0, 0] True KeyboardInterrupt")


def test_the_kernel_is_asked_for_all_steps_of_a_run_that_has_ended(open_notebook):
    cells = [SETUP, "with probe.watch(model, live=False) as run:\n    train(40)", "run.inspect()"]
    notebook = open_notebook(cells)
    notebook.run_all()
    view = notebook.output(2)
    line = slider(view)
    expect(line).to_be_enabled()
    expect(line).to_have_attribute("max", "39")
    line.focus()
    notebook.page.keyboard.press("Home")
    expect(line).to_have_attribute("aria-valuetext", "step 0 of 39")
    expect(view.locator(".detail")).to_contain_text("numbers of step 0")
    expect(view.get_by_role("button", name="stop")).to_be_hidden()
