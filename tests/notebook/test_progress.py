"""Bars in a real kernel: shown while somebody waits, and nothing of them is left."""

from __future__ import annotations

import pytest

SETUP = """
import time
from probe_nb import progress as bars
from probe_nb.progress import progress
bars._DELAY = 0.0
def long(of=5, fails_at=99):
    with progress("Waiting", of) as told:
        for done in range(of):
            time.sleep(0.1)
            told(1)
            if done == 2:
                print("shown")
            if done == fails_at:
                raise ValueError("it broke")
"""


@pytest.fixture
def waiting(kernel):
    assert kernel.run(SETUP).status == "ok"
    return kernel


def test_a_bar_is_a_widget_that_is_gone_at_the_end(waiting):
    reply = waiting.run("long()")
    assert reply.status == "ok"
    assert (reply.stdout, reply.stderr) == ("shown\n", "")
    assert reply.traits["value"].startswith("\u20075/5")  # the text on the right of the bar
    assert reply.shown == [""]
    assert [data for _, data in reply.updates] == [{"text/plain": ""}]


def test_what_is_short_shows_nothing(waiting):
    reply = waiting.run("bars._DELAY = 600.0\nlong(2)")
    assert (reply.shown, reply.traits, reply.stdout, reply.stderr) == ([], {}, "", "")


def test_an_error_takes_the_bar_away(waiting):
    reply = waiting.run("long(fails_at=3)")
    assert "it broke" in reply.tracebacks[0]
    assert (reply.shown, reply.stderr) == ([""], "")


def test_an_interrupt_takes_the_bar_away(waiting):
    reply = waiting.run("long(10**6)", interrupt_at="shown")
    assert "KeyboardInterrupt" in reply.tracebacks[0]
    assert (reply.shown, reply.stderr) == ([""], "")
    assert waiting.run("bars._DELAY = 600.0\nlong(2)").shown == []


def test_bars_can_be_turned_off_in_the_notebook(waiting):
    reply = waiting.run("import os; os.environ['TQDM_DISABLE'] = '1'\nlong()")
    waiting.run("del os.environ['TQDM_DISABLE']")
    assert (reply.shown, reply.traits, reply.stderr) == ([], {}, "")


def test_a_bar_of_a_thread_is_shown_and_taken_away(waiting):
    code = "t = threading.Thread(target=long); t.start(); t.join()"
    reply = waiting.run("import threading\nbefore = len(threading.enumerate())\n" + code)
    assert (reply.status, reply.shown, reply.stderr) == ("ok", [""], "")
    assert waiting.value("len(threading.enumerate()) == before")


def test_without_widgets_nothing_is_shown_and_nothing_is_warned_of(waiting):
    without = "import warnings; warnings.simplefilter('error')\nfrom tqdm import notebook\n"
    reply = waiting.run(without + "old = notebook.IProgress; notebook.IProgress = None\nlong()")
    waiting.run("notebook.IProgress = old; warnings.resetwarnings()")
    assert (reply.status, reply.shown, reply.stdout, reply.stderr) == ("ok", [], "shown\n", "")
