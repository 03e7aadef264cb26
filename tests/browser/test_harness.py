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


def test_cells_run_show_change_stop_and_are_saved(open_notebook):
    cells = ["6 * 7", "raise ValueError('told so')", COUNTER, "counter.value = 7; time.sleep(600)"]
    notebook = open_notebook(cells)
    assert notebook.prompt(0) == "[ ]:"
    for index in range(3):
        notebook.run(index)
    assert notebook.prompt(0) == "[1]:"
    expect(notebook.output(0)).to_contain_text("42")
    expect(notebook.output(1)).to_contain_text("ValueError: told so")
    expect(notebook.page.locator(".counter")).to_have_text("count 0")
    notebook.start(3)
    expect(notebook.page.locator(".counter")).to_have_text("count 7")
    assert notebook.running(3)
    notebook.interrupt()
    notebook.wait(3)
    expect(notebook.output(3)).to_contain_text("KeyboardInterrupt")
    saved = notebook.save()
    assert saved.cells[0].outputs[0].data["text/plain"] == "42"
