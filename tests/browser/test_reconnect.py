"""A kernel that is started again, a page that is opened again, two notebooks of one server."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.harness import OPEN_SECONDS, READY, Notebook, new_page

SETUP = """
import time, torch
import probe_nb as probe
from probe_nb.view import live
%load_ext probe_nb
torch.set_num_threads(1)
live.REFRESH = 1.0  # seconds after which the output is written anew; half a minute otherwise
_ = torch.manual_seed({seed})
model = torch.nn.Sequential(torch.nn.Linear(4, {width}), torch.nn.ReLU(), torch.nn.Linear({width}, 2))
def train(steps, pause=0.02):
    for step in range(steps):
        model(torch.randn(16, 4)).square().mean().backward()
        time.sleep(pause)
"""
START = "%probe_start model"
STOP = "run = %probe_stop\nprint('modules', len(set(run.df['module'])), 'rows', len(run))"


def set_up(*, seed=0, width=8):
    return SETUP.replace("{seed}", str(seed)).replace("{width}", str(width))


STATUSES = """() => {
    const shown = () => document.querySelector(".jp-Notebook-ExecutionIndicator")?.dataset.status;
    window.statuses = [];
    new MutationObserver(() => window.statuses.push(shown())).observe(document.body,
        { subtree: true, childList: true, attributes: true, attributeFilter: ["data-status"] });
}"""
"""Note what the kernel is said to be, from now on."""


def restart(page):
    """Start the kernel again by the keyboard, and wait until the new one can be asked."""
    page.evaluate(STATUSES)
    page.keyboard.press("Escape")
    page.keyboard.press("0")
    page.keyboard.press("0")
    page.locator(".jp-Dialog button.jp-mod-accept").click()
    page.wait_for_function(
        "statuses.some((each) => each && each !== 'idle')", timeout=OPEN_SECONDS * 1000
    )
    page.wait_for_function(READY, timeout=OPEN_SECONDS * 1000)


def test_an_output_that_is_written_anew_keeps_the_view_and_what_was_chosen(browser, lab):
    notebook = Notebook(new_page(browser), lab, [set_up(), START, "train(250)", STOP])
    page = notebook.page
    notebook.run(0)
    notebook.run(1)
    views = page.locator(".probe-nb-inspector")
    expect(views).to_have_count(1)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def listeners():
        session.send("HeapProfiler.collectGarbage")
        told = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
        return told["JSEventListeners"]

    notebook.start(2)
    page.wait_for_timeout(500)
    search = (
        notebook.output(1)
        .get_by_role("searchbox")
        .or_(notebook.output(1).locator("input[type=search]"))
    )
    search.first.fill("2")
    page.wait_for_timeout(500)
    before = listeners()
    views.first.evaluate("(host) => (host.mine = true)")
    notebook.wait(2)  # five seconds: the output is written anew several times
    expect(views).to_have_count(1)
    assert views.first.evaluate("(host) => host.mine")  # it is the same one
    expect(search.first).to_have_value("2")
    # five views that are kept would have a thousand; rows that come into the table have some as well
    assert listeners() - before < 400
    notebook.run(3)
    assert "modules" in notebook.output(3).first.inner_text()


def test_after_a_kernel_was_started_again_the_old_view_says_nothing_false_and_a_new_one_works(
    browser, lab
):
    notebook = Notebook(new_page(browser), lab, [set_up(), START, "train(5)", STOP])
    page = notebook.page
    for cell in range(3):
        notebook.run(cell)
    restart(page)
    for cell in range(3):
        notebook.run(cell)
    views = notebook.output(1).locator(".probe-nb-inspector")
    expect(views).to_have_count(1)
    notebook.run(3)
    assert "rows" in notebook.output(3).first.inner_text()
    assert "Traceback" not in "".join(notebook.output(3).all_inner_texts())


ROWS = """train(5)
from probe_nb.session import sessions
print(len(sessions()), "open", len(sessions()[-1].run), "rows")"""


def test_a_page_that_is_opened_again_during_a_watch_finds_it_going_on(browser, lab):
    notebook = Notebook(new_page(browser), lab, [f"{set_up()}\n{START}", ROWS, "probe.stop()"])
    notebook.run(0)
    notebook.run(1)
    before = notebook.output(1).first.inner_text()
    notebook.save()
    notebook.page.reload()
    notebook.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=OPEN_SECONDS * 1000)
    notebook.page.wait_for_function(READY, timeout=OPEN_SECONDS * 1000)
    notebook.start(1)
    prompt = notebook.cell(1).locator(".jp-InputArea-prompt")
    expect(prompt).to_have_text("[3]:")  # the kernel is the one of before
    after = notebook.output(1).first.inner_text()
    assert before.startswith("1 open")
    assert after.startswith("1 open")
    assert int(after.split()[2]) == 2 * int(before.split()[2])
    expect(notebook.output(0).locator(".probe-nb-inspector")).to_have_count(1)


def test_two_notebooks_of_one_server_do_not_know_of_each_other(browser, lab):
    one = Notebook(new_page(browser), lab, [set_up(seed=1), START, "train(5)", STOP])
    two = Notebook(new_page(browser), lab, [set_up(seed=2, width=9), START, "train(9)", STOP])
    for cell in range(3):
        one.run(cell)
        two.run(cell)
    for notebook in (one, two):
        expect(notebook.output(1).locator(".probe-nb-inspector")).to_have_count(1)
    one.run(3)
    two.run(3)
    rows = [int(each.output(3).first.inner_text().split()[-1]) for each in (one, two)]
    assert rows[0] * 9 == rows[1] * 5
