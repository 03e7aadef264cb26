"""What is said and drawn of a comparison."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from torch import nn

import probe_nb as probe
from probe_nb.errors import ConfigError, SelectionError


@pytest.fixture
def parted():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2))
    data = [torch.randn(16, 8) for _ in range(3)]
    runs = []
    for eps in (1e-5, 1e-2):
        model[2].eps = eps
        with probe.watch(model) as run:
            for x in data:
                model(x)
        runs.append(run)
    return probe.compare(*runs)


@pytest.fixture
def figure():
    yield
    plt.close("all")


def test_the_first_line_says_where_they_part(parted):
    lines = repr(parted).splitlines()
    assert lines[0].startswith("✕ first diverges at 2 (LayerNorm) at step 0: forward output")
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 120


def test_the_table_begins_at_the_culprit(parted):
    html = parted._repr_html_()
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    assert "<code>2</code>" in rows[1]
    assert "first diverges at 2 (LayerNorm)" in html


def test_the_html_needs_neither_script_nor_style_sheet(parted):
    class Tags(HTMLParser):
        found: set[str] = set()  # noqa: RUF012

        def handle_starttag(self, tag, attrs):
            self.found.add(tag)
            assert not any(name[:2] == "on" for name, _ in attrs)

    reader = Tags()
    reader.feed(parted._repr_html_())
    assert reader.found <= {"div", "b", "table", "thead", "tbody", "tr", "td", "code"}
    assert "color" not in parted._repr_html_()


def test_the_profile_is_drawn_in_order_with_a_cross_where_they_part(parted, figure):
    ax = parted.plot.profile()
    names = [ax.yaxis.get_major_formatter()(place) for place in range(5)]
    assert names == ["0", "1", "2", "3", "(root)"]
    cross = next(line for line in ax.lines if line.get_gid() == "parts")
    assert cross.get_ydata().tolist() == [2]
    expected = parted.profile()["difference"].to_numpy(float)
    drawn = ax.lines[0].get_xdata()
    assert drawn[2:].tolist() == pytest.approx(expected[2:].tolist())
    assert (drawn[:2] < expected[2]).all()


def test_histograms_are_overlaid_with_the_counts_of_both(parted, figure):
    ax = parted.plot.histograms("2", step=1)
    for container, run in zip(ax.containers, (parted.baseline, parted.candidate), strict=True):
        counts = [bar.get_height() for bar in container]
        expected = run.histogram("2", "output", 1)
        assert counts == [*(count for _, _, count in expected.signed()), expected.zero]


def test_a_trend_has_the_numbers_of_both_runs(parted, figure):
    ax = parted.plot.trend("2", stat="std")
    for line, run in zip(ax.lines, (parted.baseline, parted.candidate), strict=True):
        np.testing.assert_allclose(line.get_ydata(), run.history("2", stat="std").to_numpy(float))


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda c: c.plot.profile("sideways"), ConfigError, "Known: forward, backward"),
        (lambda c: c.plot.profile(step=9), SelectionError, "Step 9 has no pair"),
        (lambda c: c.plot.histograms("7"), SelectionError, "has no pair"),
        (
            lambda c: c.plot.histograms("2", "grad_output"),
            SelectionError,
            "no pair of `grad_output`",
        ),
        (lambda c: c.plot.trend("2", stat="med"), SelectionError, "not a statistic"),
        (lambda c: c.first_divergence("up"), ConfigError, "Known: forward"),
    ],
)
def test_what_is_not_there_is_named(parted, figure, ask, error, message):
    with pytest.raises(error, match=message):
        ask(parted)


def test_plots_follow_the_style_in_force(parted, figure):
    with plt.style.context("dark_background"):
        dark = parted.plot.profile().lines[0].get_color()
    assert dark != parted.plot.profile().lines[0].get_color()
    assert repr(parted.plot) == "Plots(profile, histograms, trend)"
