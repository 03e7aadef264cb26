"""A moment is what a live view showed then: compared with frames that one really made."""

from __future__ import annotations

import base64
import gzip
import json
import re
import struct

import numpy as np
import pytest
from hypothesis import given, settings

from probe_nb.comparison import compare
from probe_nb.view import moments, report
from probe_nb.view.comparing import Comparing
from probe_nb.view.frame import COLUMNS, FrameBuilder
from tests.unit.view.make_runs import Book, hundred_layers
from tests.unit.view.test_frame import decode, records


def read(data: bytes) -> tuple[list[float], list[int], list[dict]]:
    """Read moments by their description alone."""
    magic, version, number, rows, *zeros = struct.unpack_from("<8I", data)
    assert (magic, version, zeros) == (0x31424E50, 3, [0, 0, 0, 0])
    steps = np.frombuffer(data, "<f8", number, 32).tolist()
    at = 32 + 8 * number
    places = np.frombuffer(data, "<u4", rows, at).tolist()
    at += -(-4 * rows // 8) * 8
    frames = []
    for _ in range(number):
        _, _, mine, columns, spark, entries, *_ = struct.unpack_from("<8I", data, at)
        assert (mine, spark) == (rows, 0)
        blocks = (8 * columns * rows, 4 * (rows + 1), 2 * entries, 4 * entries)
        end = at + 32 + sum(-(-size // 8) * 8 for size in blocks)
        frames.append(decode(data[at:end]))
        at = end
    assert at == len(data)
    return steps, places, frames


def histogram(frame: dict, row: int) -> tuple[list, list]:
    cut = slice(frame["offsets"][row], frame["offsets"][row + 1])
    return frame["bins"][cut].tolist(), frame["counts"][cut].tolist()


def assert_same(moment: dict, places: list[int], live: dict) -> None:
    """A moment has of its rows what the live frame had, and nothing of rows that came later."""
    for at, row in enumerate(places):
        known = row < len(live["order"])
        for name in COLUMNS:
            np.testing.assert_equal(moment[name][at], live[name][row] if known else np.nan, name)
        assert histogram(moment, at) == (histogram(live, row) if known else ([], []))


def grown(steps: int, script) -> tuple[Book, dict[int, dict]]:
    """Let a run grow step by step under a live view; return what it showed after each."""
    book = Book()
    live = FrameBuilder(book.columns, book.info, live=True)
    shown = {}
    for step in range(steps):
        script(book, step)
        book.flush()
        shown[step] = decode(live.update()[2])
    return book, shown


def layers(book: Book, step: int) -> None:
    """Twelve layers; the sixth overflows from step 7 on, and one of them comes in step 3."""
    random = np.random.default_rng(step)
    for layer in range(12):
        if layer == 9 and step < 3:
            continue
        values = random.normal(size=16) * 10.0**layer * (1e5 if step > 20 else 1)
        if layer >= 6 and step >= 7:
            values[:layer] = np.inf if layer == 6 else np.nan
        if layer == 2 and step % 5 == 4:
            values[:] = 0
        book.add(f"layers.{layer}", values, step=step, dtype="float16")
        if layer % 2:
            book.add(f"layers.{layer}", values / 3, "grad_output", step=step)


def test_each_step_of_a_run_is_what_a_live_view_showed_at_its_end():
    book, shown = grown(30, layers)
    builder = FrameBuilder(book.columns, book.info)
    builder.update()
    steps, places, frames = read(moments.whole(builder))
    assert steps == [float(step) for step in range(30)]
    assert places == list(range(18))
    for step, frame in enumerate(frames):
        assert_same(frame, places, shown[step])
    first = [np.nanmax(frame["first_bad_step"]) for frame in frames]
    assert first[6:9] == [-1, 7, 7]
    assert len({frame["badges"].tobytes() for frame in frames}) > 3  # they differ as they should


@settings(max_examples=40, deadline=None)
@given(records)
def test_whatever_is_recorded_moments_are_what_was_shown(script):
    book = Book()
    live = FrameBuilder(book.columns, book.info, live=True)
    shown, step = {}, 0
    for module, role, ahead, numbers, status, _ in script:
        if ahead > 36:
            book.flush()
            shown[step] = decode(live.update()[2]) if len(book.columns) else None
            step += ahead
        book.add(f"m{module}", numbers, role, step=step, status=status)
    book.flush()
    shown[step] = decode(live.update()[2])
    builder = FrameBuilder(book.columns, book.info)
    builder.update()
    steps, places, frames = read(moments.whole(builder))
    assert steps == [s for s, frame in shown.items() if frame is not None]
    for step, frame in zip(steps, frames, strict=True):
        assert_same(frame, places, shown[step])


@pytest.mark.parametrize(("most", "bad"), [(4, 50), (5, 1), (9, 0), (16, 57), (30, 118)])
def test_few_moments_are_spread_evenly_and_have_the_first_bad_step_and_the_one_before(most, bad):
    book = Book()
    for step in range(120):
        book.add("a", [1.0], step=step).add("b", [np.inf if step >= bad else 1.0], step=step)
    builder = FrameBuilder(book.run().columns, book.info)
    builder.update()
    found = moments.moments(builder, np.arange(2), most).steps.tolist()
    assert len(found) <= most
    assert {max(bad - 1, 0), bad, 119} <= set(found)
    if most > 4:
        assert max(np.diff([0, *found])) <= 2 * 120 / (most - 3)


def test_a_budget_holds_and_the_worst_rows_stay():
    book, shown = grown(30, layers)
    builder = FrameBuilder(book.columns, book.info)
    builder.update()
    whole = len(moments.whole(builder))
    for budget in (whole, whole // 2, whole // 4, whole // 10, 2000):
        data = moments.whole(builder, budget)
        assert len(data) <= budget
        steps, places, frames = read(data)
        assert len(steps) >= 1
        for step, frame in zip(steps, frames, strict=True):
            assert_same(frame, places, shown[step])
        if places:
            assert builder.verdict().site in places


def test_late_records_show_when_they_came():
    book = Book().add("a", [1.0], step=0).flush().add("a", [2.0], step=1)
    book.add("b", [np.nan], step=0).flush().add("a", [3.0], step=2)
    builder = FrameBuilder(book.run().columns, book.info)
    builder.update()
    steps, _, frames = read(moments.whole(builder))
    assert steps == [0, 1, 2]
    assert [f["first_bad_step"][1] for f in frames[1:]] == [0, 0]
    assert np.isnan(frames[0]["first_bad_step"][1])


def test_what_was_moved_to_disk_is_read_too():
    shown = grown(30, layers)[1]
    small = Book()
    small.columns.budget = 20_000
    for step in range(30):
        layers(small, step)
        small.flush()
    assert small.columns.spilled
    builder = FrameBuilder(small.columns, small.info)
    builder.update()
    steps, places, frames = read(moments.whole(builder))
    assert len(steps) == 30
    for step, frame in enumerate(frames):
        assert_same(frame, places, shown[step])


def test_a_run_of_nothing_has_no_moments():
    book = Book()
    builder = FrameBuilder(book.columns, book.info)
    builder.update()
    assert read(moments.whole(builder)) == ([], [], [])


class TestTheInspector:
    def test_it_is_asked_once_and_sends_all_moments(self):
        widget = hundred_layers(bad=50, steps=5).inspect()
        assert widget.history == b""
        ask(widget, {"ask": "history"})
        steps, places, _ = read(widget.history)
        assert (steps, places) == ([0, 1, 2, 3, 4], list(range(200)))
        before = widget.history
        ask(widget, {"ask": "history"})
        assert widget.history is before
        assert widget.refused == ""

    @pytest.mark.parametrize(
        "question", [{}, {"ask": "else"}, {"ask": ["history"]}, "history", None]
    )
    def test_what_it_does_not_know_it_does_not_answer(self, question):
        widget = hundred_layers(steps=2).inspect()
        ask(widget, question)
        assert (widget.history, widget.refused) == (b"", "")

    def test_a_fault_is_told_to_the_front_end_and_to_nobody_else(self, monkeypatch):
        widget = hundred_layers(steps=2).inspect()
        monkeypatch.setattr(moments, "whole", lambda _: 1 / 0)
        ask(widget, {"ask": "history"})
        assert json.loads(widget.refused) == {"history": "ZeroDivisionError: division by zero"}
        assert widget.history == b""


def ask(widget, question) -> None:
    """Ask as a front end does: a message over the comm."""
    widget._handle_msg(
        {"content": {"data": {"method": "custom", "content": question}}, "buffers": []}
    )


def embedded(page: str) -> dict[str, bytes]:
    """Return what a report carries for the front end, unpacked."""
    found = re.findall(r'data-(state|frame|history)="([^"]+)"', page)
    return {name: gzip.decompress(base64.b64decode(text)) for name, text in found}


class TestTheReport:
    def test_it_has_the_moments_of_all_rows_where_they_fit(self):
        book, shown = grown(12, layers)
        builder = FrameBuilder(book.columns, book.info)
        builder.update()
        page = report.fragment(builder)
        parts = embedded(page)
        steps, places, frames = read(parts["history"])
        assert steps == list(range(12))
        sites = json.loads(json.loads(parts["state"])["sites"])["rows"]
        assert places == list(range(18)) == list(range(len(sites)))
        for step, frame in zip(steps, frames, strict=True):
            assert_same(frame, places, shown[step])

    def test_a_large_one_stays_small_and_has_the_worst_rows(self):
        book, random = Book(), np.random.default_rng(0)
        for step in range(34):
            for layer in range(500):
                values = random.normal(size=64) * 10.0 ** random.integers(-9, 9)
                if layer == 400 and step >= 31:
                    values[:5] = np.nan
                book.add(f"layers.{layer}", values, step=step)
            book.flush()
        run = book.run()
        page = report.html_page(run)
        assert len(page) < 200_000
        parts = embedded(page)
        steps, places, frames = read(parts["history"])
        assert len(steps) <= 16
        assert {30, 31, 33} <= set(steps)
        sites = json.loads(json.loads(parts["state"])["sites"])["rows"]
        assert 20 <= len(places) < len(sites) < 500
        culprit = next(at for at, row in enumerate(places) if sites[row]["module"] == "layers.400")
        frame = run.df.query("module == 'layers.400'").set_index("step")
        for step, moment in zip(steps, frames, strict=True):
            assert moment["mean"][culprit] == frame["mean"][step]
            assert moment["nan_count"][culprit] == (5 if step >= 31 else 0)
            assert moment["first_bad_step"][culprit] == (31 if step >= 31 else -1)

    def test_one_step_a_comparison_and_what_is_long_to_read_have_none(self, monkeypatch):
        one, two = hundred_layers(steps=1), hundred_layers(steps=2)
        assert "history" not in embedded(report.bundle(one)["text/html"])
        assert "history" in embedded(report.bundle(two)["text/html"])
        comparing = Comparing(compare(two, hundred_layers(steps=2, bad=7)))
        assert "history" not in embedded(report.compared(comparing)["text/html"])
        monkeypatch.setattr(
            report, "QUICK", 599
        )  # 400 records, and each of two steps as many as 100
        assert "history" not in embedded(report.bundle(two)["text/html"])


def test_what_had_another_dtype_says_so_and_only_where_it_had():
    book = Book()
    for step, dtype in enumerate(("float32", "float32", "bfloat16", "float32", "bfloat16")):
        book.add("a", [1.0], step=step, dtype=dtype).add("b", [2.0], step=step)
        if step > 1:
            book.add("late", [3.0], step=step, dtype=dtype)
        book.flush()
    builder = FrameBuilder(book.columns, book.info)
    builder.update()
    data = moments.whole(builder)
    assert changes(data) == [
        {"0": ["float32", "cpu"]},
        {"0": ["float32", "cpu"]},
        {},
        {"0": ["float32", "cpu"], "2": ["float32", "cpu"]},
        {},
    ]
    of_two = moments.moments(builder, np.array([1, 2]), 5).packed(np.array([1]), np.array([7, 9]))
    assert changes(of_two) == [{}, {}, {}, {"0": ["float32", "cpu"]}, {}]
    of_one = moments.moments(builder, np.array([1]), 5).packed()
    assert struct.unpack_from("<8I", of_one)[4:] == (0, 0, 0, 0)


def changes(data: bytes) -> list[dict]:
    """Read what had another dtype or device, by the description of the layout alone."""
    size = struct.unpack_from("<8I", data)[4]
    return json.loads(data[-(-(-size // 8) * 8) :][:size])
