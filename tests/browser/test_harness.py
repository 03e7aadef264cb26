"""The harness itself: cells run, show, can be watched while they run, interrupted and saved."""

from __future__ import annotations

from playwright.sync_api import expect

COUNTER = """
import anywidget, time, traitlets
class Counter(anywidget.AnyWidget):
    _esm = '''export default { render({ model, el }) {
        const show = () => { el.textContent = "count " + model.get("value"); };
        el.className = "counter"; model.on("change:value", show); show();
    } }'''
    value = traitlets.Int(0).tag(sync=True)
counter = Counter()
counter
"""


def test_a_cell_runs_and_shows_its_value(open_notebook):
    notebook = open_notebook(["6 * 7", "raise ValueError('told so')"])
    assert notebook.prompt(0) == "[ ]:"
    notebook.run_all()
    assert notebook.prompt(0) == "[1]:"
    expect(notebook.output(0)).to_contain_text("42")
    expect(notebook.output(1)).to_contain_text("ValueError: told so")


def test_a_widget_changes_while_its_cell_still_runs(open_notebook):
    notebook = open_notebook([COUNTER, "counter.value = 7; time.sleep(60)"])
    notebook.run(0)
    expect(notebook.page.locator(".counter")).to_have_text("count 0")
    notebook.start(1)
    expect(notebook.page.locator(".counter")).to_have_text("count 7", timeout=20_000)
    assert notebook.running(1)
    notebook.interrupt()
    notebook.wait(1, seconds=20)
    expect(notebook.output(1)).to_contain_text("KeyboardInterrupt")


def test_a_saved_notebook_holds_its_outputs(open_in_lab):
    notebook = open_in_lab(["print('kept')"])
    notebook.run(0)
    saved = notebook.save()
    assert saved.cells[0].outputs[0].text == "kept\n"
