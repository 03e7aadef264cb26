"""The inspector in JupyterLab Dark: while it is live, and as the report it becomes."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from tests.browser.harness import Notebook

SETUP = """
import torch
import probe_nb as probe
%load_ext probe_nb
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
"""
TRAIN = """
for _ in range(3):
    model(torch.randn(2, 4)).sum().backward()
"""
CELLS = [SETUP, "%probe_start model", TRAIN, "%probe_stop"]
COLOURS = """e => {
    const style = getComputedStyle(e);
    return [style.color, style.backgroundColor];
}"""
READABLE = 400  # of 765: what text and background differ by


@pytest.fixture
def dark_lab(lab):
    """JupyterLab, with its dark theme for the time of a test."""
    folder = lab.folder / ".jupyter" / "lab-settings" / "@jupyterlab" / "apputils-extension"
    theme = folder / "themes.jupyterlab-settings"
    theme.write_text(json.dumps({"theme": "JupyterLab Dark"}))
    yield lab
    theme.unlink()


def brightness(colour):
    """Return red, green and blue of a computed colour together."""
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3]))


def assert_dark_and_readable(view):
    expect(view).to_have_attribute("data-theme", "dark")
    text, background = map(brightness, view.evaluate(COLOURS))
    assert background < 200
    assert text - background > READABLE


def test_the_live_view_and_its_report_are_readable_in_the_dark(page, dark_lab):
    notebook = Notebook(page, dark_lab, CELLS)
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light", "false")
    notebook.run(0)
    for _ in range(3):  # the first openings are those that went wrong
        notebook.run(1)
        live = notebook.output(1).locator(".pnb")
        expect(live).to_be_visible()
        assert_dark_and_readable(live)
        notebook.run(2)
        assert_dark_and_readable(live)
        notebook.run(3)
        assert_dark_and_readable(notebook.output(3).locator(".pnb"))
