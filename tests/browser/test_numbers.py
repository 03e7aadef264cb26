"""What stands on the page is what `run.df` has: every column, in the newest and in past steps, read from the page."""

from __future__ import annotations

import re

import pandas as pd
import pytest
import torch
from playwright.sync_api import expect

import probe_nb as probe
from probe_nb.view import report
from tests.browser.mounting import drawn

STEPS = 5
STATISTICS = ("mean", "std", "min", "max", "l2")
DIGITS = 1e-8
"""What a title writes of a number: nine digits."""


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(6, 5)
        self.act = torch.nn.ReLU()
        self.out = torch.nn.Linear(5, 3, dtype=torch.float64)

    def forward(self, x):
        hidden = self.act(self.fc(x)).double()
        return self.out(torch.nn.functional.gelu(hidden)).sum()


@pytest.fixture(scope="module")
def run():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with probe.watch(model, optimizer=optimizer, level="mix", live=False) as run:
        for step in range(STEPS):
            optimizer.zero_grad()
            x = torch.randn(4, 6) * 10.0 ** (3 * step - 6)
            if step == 3:
                x[0, 0], x[1, 1], x[2, 2] = float("nan"), float("inf"), -float("inf")
            model(x).backward()
            optimizer.step()
    return run


def page_rows(page):
    """Return the rows in view: of each cell its text and its title, by the column's key."""
    return page.locator(".table").evaluate(
        """table => [...table.querySelectorAll(".row:not(.head):not([hidden])")].map(row =>
            Object.fromEntries([...row.querySelectorAll(".cell")].map(cell =>
                [cell.classList[2], [cell.textContent, cell.title]])))"""
    )


def read(page):
    """Return all rows of the table, read screen by screen, by path, role and leaf."""
    found = {}
    grid = page.get_by_role("grid")
    height = grid.evaluate("grid => grid.scrollHeight")
    for top in range(0, height, 200):
        grid.evaluate(f"grid => grid.scrollTop = {top}")
        drawn(page)
        for row in page_rows(page):
            found[row["module"][1], row["role"][1].split(",")[0]] = row
    return found


def path(of):
    if of.direction == "optimizer" and of.api:
        return of.api.removesuffix(".0")
    name = of.module or "(root)"
    inside = bool(of.module) or bool(of.type)
    return (f"{name}, {of.api}" if inside else of.api) if of.api else name


def records(run, step):
    """Return of every site the record of its last step up to this one: the call with most that is not finite."""
    frame = run.df[run.df["step"] <= step]
    keys = ["model", "module", "api", "type", "direction", "role", "leaf"]
    bad = frame[["nan_count", "posinf_count", "neginf_count"]].sum(axis=1).astype("int64")
    return (
        frame.assign(bad=bad)
        .sort_values(["step", "bad"], kind="stable")
        .groupby(keys, observed=True)
        .tail(1)
    )


def checked(page, run, step):
    rows, wanted = read(page), records(run, step)
    for of in wanted.itertuples():
        row = rows.pop((path(of), f"{of.direction} {of.role} {of.leaf}"))
        for name in STATISTICS:
            value, (text, title) = getattr(of, name), row[name]
            if pd.isna(value):
                assert text == "—", (of, name)
            else:
                assert float(title.replace("Inf", "inf")) == pytest.approx(value, rel=DIGITS, abs=0)
                assert float(text.replace("Inf", "inf")) == pytest.approx(value, rel=5.1e-3, abs=0)
        counts = {
            "nan": of.nan_count,
            "inf": of.posinf_count + of.neginf_count,
            "zero": of.zero_count,
        }
        for name, count in counts.items():
            text, title = row[name]
            if pd.isna(count):
                assert text == "—"
            else:
                assert title.split(" ")[0] == f"{count:,}", (of, name)
        if of.numel and not pd.isna(of.zero_count):
            share = 100 * of.zero_count / of.numel
            assert float(row["zero"][0].lstrip(">")) == pytest.approx(share, abs=0.051)
        assert row["type"][0] == of.type
        shape = "\N{MULTIPLICATION SIGN}".join(map(str, of.shape)) or "scalar"
        then = {f"{of.numel:,} elements", f"{of.numel:,} element"} if step < STEPS - 1 else set()
        assert row["shape"][0] in {shape, *then}
        if step == STEPS - 1:
            assert row["dtype"][0] == of.dtype
            assert row["device"][0] == of.device
    for row in rows.values():  # what had not run by then
        assert {row[name][0] for name in (*STATISTICS, "nan", "inf", "zero")} == {"—"}
        assert row["health"][0] == "\N{EN DASH} no record"


@pytest.fixture
def opened(page, run, tmp_path):
    page.set_viewport_size({"width": 2600, "height": 900})
    file = tmp_path / "report.html"
    file.write_text(report.html_page(run), encoding="utf-8")
    page.goto(file.as_uri())
    expect(page.get_by_role("grid")).to_be_visible()
    return page


def test_every_cell_is_the_number_of_the_frame_in_every_step(opened, run):
    line = opened.get_by_role("slider", name="Step")
    line.focus()
    for step, key in (
        (STEPS - 1, "End"),
        (0, "Home"),
        (1, "ArrowRight"),
        (2, "ArrowRight"),
        (3, "ArrowRight"),
    ):
        line.focus()
        opened.keyboard.press(key)
        expect(line).to_have_attribute("aria-valuetext", re.compile(rf"^step {step} of"))
        checked(opened, run, step)


def chosen(page, module, role):
    page.get_by_label("Search").fill(f"{module} {role}")
    cell = page.locator(f".row:not(.head):not([hidden]) .cell.module[title='{module}']")
    cell.locator("xpath=..").filter(has_text=role).first.click()
    expect(page.locator(".detail h3")).to_have_text(module)
    return page.locator(".detail")


def test_the_heat_map_reads_out_the_histograms_of_the_run(opened, run):
    chosen(opened, "fc", "input")
    canvas, words = opened.locator("canvas.heat"), opened.locator(".over-steps .readout")
    canvas.focus()
    read_out = {}
    for _ in range(STEPS):
        opened.keyboard.press("ArrowLeft")
        for _ in range(120):
            opened.keyboard.press("ArrowUp")
        for _ in range(110):
            text = words.inner_text()
            if text in read_out.setdefault(text.split(",")[0].split(":")[0], []):
                break
            read_out[text.split(",")[0].split(":")[0]].append(text)
            opened.keyboard.press("ArrowDown")
    power = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-", strict=True))
    for step in range(STEPS):
        of = run.histogram("fc", "input", step=step)
        shares = {}
        for text in read_out[f"step {step}"]:
            found = re.fullmatch(
                r".*, (-?)2([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+) … -?2([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+): (\S+) % of 24", text
            )
            if found:
                low, high = (int("".join(power[c] for c in found[k])) for k in (2, 3))
                shares[-1 if found[1] else 1, low, high] = float(found[4].lstrip(">"))
        total = 0
        for (sign, low, high), share in shares.items():
            count = sum(n for s, e, n in of.signed() if s == sign and low <= e < high)
            assert share == pytest.approx(100 * count / 24, abs=0.051)
            total += count
        assert total == sum(n for _, _, n in of.signed())
        assert of.total == 24


def test_the_trend_is_the_history_of_the_run(opened, run):
    chosen(opened, "out", "output")
    frame = run.df.query("module == 'out' and role == 'output' and api == ''").set_index("step")
    for statistic in ("absmax", "std", "min", "mean"):
        opened.get_by_label("Statistic of the trend").select_option(statistic)
        picture = opened.locator(".trend .canvas")
        box = picture.bounding_box()
        said = set()
        for x in range(30, int(box["width"]), 4):
            opened.mouse.move(box["x"] + x, box["y"] + 30)
            said.add(opened.locator(".trend .readout").inner_text())
        by_step = {int(text.split(":")[0].removeprefix("step ")): text for text in said}
        assert set(by_step) == set(frame.index)
        for step, text in by_step.items():
            value = frame.loc[step, statistic]
            number = re.search(r": (-?[\d.]+(?:e-?\d+)?)", text)
            if pd.isna(value):
                assert number is None
            else:
                assert float(number[1]) == pytest.approx(value, rel=5.1e-3)
            assert ("NaN" in text) == bool(frame.loc[step, "nan_count"])
